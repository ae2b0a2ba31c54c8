import dataclasses

import numpy as np
import pytest

from tinytorch.core.dataloader import TensorDataset
from tinytorch.workloads import tour, train, zoo
from tinytorch.workloads.tour import take_tour


@pytest.fixture(scope="module")
def short_tour():
    """Take the real tour, with fewer steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tour, "STEPS", {"mlp": 60, "cnn": 40, "gpt": 100})
        smaller = dataclasses.replace(train.RECIPES["gpt"], batch_size=8)
        patch.setitem(train.RECIPES, "gpt", smaller)
        patch.setattr(tour, "TEXT_WINDOWS", 20)
        seen = []
        return take_tour(seed=1, watch=lambda *what: seen.append(what)), seen


@pytest.mark.slow
def test_every_model_learns_more_than_a_constant(short_tour):
    result, _ = short_tour
    assert [model.name for model in result.models] == ["mlp", "cnn", "gpt"]
    assert result.works
    for model in result.models:
        assert model.without_learning < model.fresh_score < model.shipped_score


@pytest.mark.slow
def test_losses_are_those_of_every_step(short_tour):
    result, _ = short_tour
    assert [len(model.losses) for model in result.models] == [60, 40, 100]
    assert all(model.losses[-1] < model.losses[0] for model in result.models)


@pytest.mark.slow
def test_the_shown_digits_are_held_out_ones(short_tour):
    result, _ = short_tour
    known = {image.tobytes() for image in zoo.digit_data(held_out=True, flat=False).tensors[0].data}
    assert all(digit.image[None].tobytes() in known for digit in result.digits)
    assert all(0.1 <= digit.probability <= 1 for digit in result.digits)


@pytest.mark.slow
def test_text_continues_the_prompt(short_tour):
    result, _ = short_tour
    assert len(result.fresh_text) == len(result.shipped_text) == tour.NEW_CHARACTERS
    assert result.fresh_text != result.shipped_text


@pytest.mark.slow
def test_the_watcher_hears_of_every_step(short_tour):
    _, seen = short_tour
    assert ("training mlp", 60, 200) in seen
    assert ("training gpt", 200, 200) in seen
    done = [steps for _, steps, _ in seen]
    assert done == sorted(done)


@pytest.mark.slow
def test_a_model_that_learned_nothing_does_not_work(short_tour):
    result, _ = short_tour
    useless = dataclasses.replace(result.models[0], fresh_score=0.1)
    assert not useless.works
    assert not dataclasses.replace(result, models=(useless,)).works


def test_the_score_without_learning_is_that_of_the_best_constant():
    data = TensorDataset([[0.0]] * 4, np.array([1, 1, 2, 3]))
    assert tour._score_without_learning("mlp", data) == 0.5
