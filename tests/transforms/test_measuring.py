"""Measuring the trade-off: right things are timed, wrong ones are not, and the model stays."""

import numpy as np
import pytest

from tinytorch.core.dispatch import use_backend
from tinytorch.core.layers import Linear
from tinytorch.core.transformers import GPT
from tinytorch.errors import MeasurementError, SettingError
from tinytorch.transforms import kv_cache as measuring
from tinytorch.transforms.kv_cache import enable_kv_cache, measure_cache_tradeoff

BUDGET_S = 0.02


def small_gpt(**settings):
    return GPT(17, 16, 2, 4, 32, rng=0, **settings)


class Watcher:
    def __init__(self):
        self.texts, self.steps = [], 0

    def describe(self, text):
        self.texts.append(text)

    def advance(self, steps=1):
        self.steps += steps


@pytest.mark.parametrize("window", [None, 4])
def test_every_length_has_bytes_and_a_comparison(window):
    with use_backend("numpy"):
        found = measure_cache_tradeoff(small_gpt(window=window), (9, 3, 3), budget_s=BUDGET_S)
    assert [point.length for point in found.points] == [3, 9]
    assert (found.name, found.backend, found.batch_size) == ("GPT", "numpy", 1)
    held = [min(length, window or length) for length in (3, 9)]
    # Keys and values of 2 layers with 4 heads of 4 numbers in 4 bytes.
    assert [point.cache_bytes for point in found.points] == [256 * each for each in held]
    for point in found.points:
        assert point.comparison.n >= 6
        assert point.plain_s > 0
        assert point.cached_s > 0
        assert point.comparison.candidate_name == "with cache"
    assert found.largest_difference < 1e-4


def test_lengths_go_up_to_what_the_model_sees():
    found = measure_cache_tradeoff(small_gpt(), batch_size=2, budget_s=BUDGET_S)
    assert [point.length for point in found.points] == [2, 4, 8, 16, 32]
    assert found.points[-1].cache_bytes == 2 * 256 * 32


def test_the_model_stays_as_it_is():
    model = small_gpt(dropout=0.5)
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    cache = enable_kv_cache(model)
    model([[1, 2]])
    attached = model.forward
    measure_cache_tradeoff(model, (3,), budget_s=BUDGET_S)
    assert [module.training for module in model.modules()] == modes
    assert cache.seq_pos == 2
    assert model.forward is attached


def test_progress_is_told():
    watcher = Watcher()
    measure_cache_tradeoff(small_gpt(), (2, 5), budget_s=BUDGET_S, progress=watcher)
    assert watcher.texts == ["one more token after 1", "one more token after 4"]
    assert watcher.steps == 2


def test_a_step_that_gives_other_logits_is_not_timed(monkeypatch):
    model = small_gpt()
    right = GPT.forward_with_cache

    def wrong(self, tokens, cache=None, **settings):
        logits, cache = right(self, tokens, cache, **settings)
        return logits + 0.1, cache

    monkeypatch.setattr(GPT, "forward_with_cache", wrong)
    with pytest.raises(MeasurementError, match="at 3 tokens the logits with and without cache dif"):
        measure_cache_tradeoff(model, (3,), budget_s=BUDGET_S)


def test_logits_that_are_no_numbers_are_not_timed():
    model = small_gpt()
    model.norm.bias.data = np.full_like(model.norm.bias.data, np.nan)
    with pytest.raises(MeasurementError, match="differ by nan"):
        measure_cache_tradeoff(model, (3,), budget_s=BUDGET_S)


def test_a_note_is_said_once_with_its_lengths():
    found = measure_cache_tradeoff(small_gpt(), (2, 5), budget_s=BUDGET_S)
    assert len(set(found.notes)) == len(found.notes)
    always = [note for note in found.notes if "memory layout" in note]
    assert len(always) == 1
    assert not always[0].startswith("at ")
    one = type(found.points[0])(7, 1, found.points[0].comparison.with_notes("only here"))
    assert "at 7 tokens: only here" in measuring._joint_notes([*found.points, one])


@pytest.mark.parametrize("lengths", [(), (0, 3), (3, 33)])
def test_lengths_that_the_model_cannot_see_are_an_error(lengths):
    with pytest.raises(SettingError, match="each must be from 1 to 32"):
        measure_cache_tradeoff(small_gpt(), lengths)


def test_another_model_is_an_error():
    with pytest.raises(SettingError, match="measured on a GPT, got Linear"):
        measure_cache_tradeoff(Linear(2, 2))
