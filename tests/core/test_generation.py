"""GPT with its cache, and generating text."""

import numpy as np
import pytest
from parts import require_part
from torch_twins import randomise

from tinytorch.core.autograd import is_grad_enabled
from tinytorch.core.dispatch import use_backend
from tinytorch.core.generation import Sampler
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.transformers import GPT
from tinytorch.errors import CacheFullError, DTypeError, SettingError, ShapeError, TokenError

torch = require_part("torch")

VOCABULARY, MAX_TIME = 17, 12


def small_gpt(seed=0, **settings):
    model = GPT(VOCABULARY, 16, 2, 4, MAX_TIME, rng=seed, **settings)
    randomise(model, np.random.default_rng(seed), scale=0.3)
    return model


def tokens(rng, *shape):
    return rng.integers(0, VOCABULARY, shape)


# ---------------------------------------------------------------- cached


@pytest.mark.parametrize("chunks", [[1] * MAX_TIME, [MAX_TIME], [5, 7], [1, 4, 2, 5], [11, 1]])
@pytest.mark.parametrize("shape", [(3, MAX_TIME), (MAX_TIME,)])
def test_cached_logits_are_plain_logits_at_every_position(shape, chunks, rng):
    model, ids = small_gpt().eval(), tokens(rng, *shape)
    wanted = model(ids).data
    cache, pieces, start = None, [], 0
    for length in chunks:
        logits, cache = model.forward_with_cache(ids[..., start : start + length], cache)
        assert logits.creator is None
        assert is_grad_enabled()
        pieces.append(logits.data)
        start += length
        assert cache.seq_pos == start
    found = np.concatenate(pieces, axis=-2)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_no_new_tokens_give_no_logits():
    model = small_gpt()
    logits, cache = model.forward_with_cache(np.zeros((2, 0), np.int64))
    assert logits.shape == (2, 0, VOCABULARY)
    assert cache.seq_pos == 0


def test_a_cache_follows_the_dtype_of_the_model(rng):
    model, ids = small_gpt().astype(np.float64), tokens(rng, 1, 6)
    logits, cache = model.forward_with_cache(ids)
    assert cache.get(0)[0].dtype == logits.dtype == np.float64
    np.testing.assert_allclose(logits.data, model(ids).data, atol=1e-12)


def test_a_short_cache_says_that_it_is_full(rng):
    model = small_gpt()
    cache = model.make_cache(1, max_seq_len=4)
    with pytest.raises(CacheFullError, match="the cache is full: at position 0 of 4"):
        model.forward_with_cache(tokens(rng, 1, 5), cache)
    model.forward_with_cache(tokens(rng, 1, 4), cache)
    assert cache.seq_pos == 4


def test_the_past_counts_towards_the_longest_sequence(rng):
    model = small_gpt()
    _, cache = model.forward_with_cache(tokens(rng, 1, 10))
    with pytest.raises(ShapeError, match=r"at most 12 tokens \(max_seq_len\), got 13"):
        model.forward_with_cache(tokens(rng, 1, 3), cache)


# ---------------------------------------------------------------- generating

WAYS = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "top k": {"temperature": 2.0, "top_k": 5, "seed": 4},
    "top p": {"temperature": 1.5, "top_p": 0.8, "seed": 5},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 1), (2, MAX_TIME), (2, MAX_TIME + 3)])
def test_a_cache_changes_no_token(way, shape, rng):
    model, prompt = small_gpt(), tokens(rng, *shape)
    with_cache, without = (
        model.generate(prompt, 20, use_cache=use_cache, **WAYS[way]) for use_cache in (True, False)
    )  # 20 more tokens go past max_seq_len
    np.testing.assert_array_equal(with_cache.data, without.data)
    assert with_cache.shape == (*shape[:-1], shape[-1] + 20)
    assert with_cache.dtype.kind == "i"
    np.testing.assert_array_equal(with_cache.data[..., : shape[-1]], prompt)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", [3, MAX_TIME + 2])
def test_tokens_are_chosen_from_the_logits_of_the_last_ones_that_fit(way, length, rng):
    model, ids = small_gpt().eval(), tokens(rng, 2, length)
    found = model.generate(ids, 20, **WAYS[way]).data
    settings = dict(WAYS[way])
    draws = np.random.default_rng(settings.pop("seed", None))
    for _ in range(20):
        logits = model(ids[:, -MAX_TIME:]).data[:, -1]
        ids = np.concatenate([ids, Sampler(**settings).choose(logits, draws)[:, None]], axis=1)
    np.testing.assert_array_equal(found, ids)


def test_the_first_of_one_is_greedy(rng):
    model, prompt = small_gpt(), tokens(rng, 2, 3)
    only = model.generate(prompt, 8, temperature=1.3, top_k=1, seed=0)
    np.testing.assert_array_equal(only.data, model.generate(prompt, 8).data)


def test_one_seed_gives_one_text_and_another_seed_another(rng):
    model, prompt = small_gpt(), tokens(rng, 3)
    first, again, other = (
        model.generate(prompt, 30, temperature=1.0, seed=seed).data for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_generation_ends_when_every_row_has_stopped(rng):
    model, prompt = small_gpt(), tokens(rng, 2, 3)
    free = model.generate(prompt, 60, temperature=3.0, seed=0).data[:, 3:]
    firsts = {
        token: [int(np.flatnonzero(row == token)[0]) for row in free]
        for token in set(free[0].tolist()) & set(free[1].tolist())
    }
    # The token at which one row stops long before the other does.
    stop = max(firsts, key=lambda token: abs(firsts[token][0] - firsts[token][1]))
    assert abs(firsts[stop][0] - firsts[stop][1]) > 2
    found = model.generate(prompt, 60, temperature=3.0, seed=0, stop_token=stop).data[:, 3:]
    assert found.shape[1] == max(firsts[stop]) + 1
    for row, unstopped, end in zip(found, free, firsts[stop], strict=True):
        # Rows draw their own numbers, so one that stopped does not change the other.
        np.testing.assert_array_equal(row[: end + 1], unstopped[: end + 1])
        assert (row[end:] == stop).all()


def test_a_stop_token_in_the_prompt_does_not_stop(rng):
    model = small_gpt()
    prompt = model.generate(tokens(rng, 3), 4).data
    stop = (int(prompt[-1]) + 1) % VOCABULARY
    found = model.generate(np.append(prompt[:2], stop), 5, stop_token=stop)
    assert found.shape[0] >= 4


def test_generating_builds_no_graph_and_leaves_every_mode_as_it_was(rng):
    model = small_gpt(dropout=0.5)
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    assert is_grad_enabled()
    for use_cache in (True, False):
        found = model.generate(tokens(rng, 3), 4, use_cache=use_cache)
        assert found.creator is None
        assert is_grad_enabled()
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_is_off_while_generating(rng):
    model, prompt = small_gpt(dropout=0.5), tokens(rng, 3)
    calm = small_gpt(dropout=0.0)
    assert model.training
    for use_cache in (True, False):
        settings = {"temperature": 1.0, "seed": 1, "use_cache": use_cache}
        found, wanted = (each.generate(prompt, 20, **settings).data for each in (model, calm))
        np.testing.assert_array_equal(found, wanted)


def test_an_error_while_generating_leaves_the_mode_as_it_was(rng, monkeypatch):
    model = small_gpt()
    monkeypatch.setattr(model.blocks[0].mlp, "layers", [model.norm, model.token_embedding])
    with pytest.raises(TokenError):
        model.generate(tokens(rng, 3), 2)
    assert model.training


def test_no_new_tokens_give_the_prompt(rng):
    prompt = tokens(rng, 2, 3)
    np.testing.assert_array_equal(small_gpt().generate(prompt, 0).data, prompt)


# ---------------------------------------------------------------- a cache to use again


@pytest.mark.parametrize("window", [None, 3])
def test_a_cache_may_be_used_again(window, rng):
    model = small_gpt(window=window)
    cache = model.make_cache(2)
    prompts = [tokens(rng, 2, 3), tokens(rng, 2, 7), [[1], [2, 3]], tokens(rng, 2, 1)]
    for prompt in prompts:
        found, wanted = model.generate(prompt, 5, cache=cache), model.generate(prompt, 5)
        for row, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(row.data, other.data)
    assert cache.seq_pos == 5  # all but the last token, which nobody has looked at


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((3, 12, 2, 4, 4), r"batch_size=3 instead of 2; make_cache\(2\)"),
        ((2, 12, 1, 4, 4), "num_layers=1 instead of 2"),
        ((2, 12, 2, 2, 8), "num_heads=2 instead of 4, head_dim=8 instead of 4"),
    ],
)
def test_a_cache_that_does_not_fit_the_model_is_an_error(sizes, message, rng):
    model, cache = small_gpt(), KVCache(*sizes)
    with pytest.raises(ShapeError, match=message):
        model.generate(tokens(rng, 2, 3), 2, cache=cache)
    with pytest.raises(ShapeError, match=message):
        model.forward_with_cache(tokens(rng, 2, 3), cache)


def test_a_cache_of_another_window_or_dtype_is_an_error(rng):
    model, prompt = small_gpt(), tokens(rng, 1, 3)
    with pytest.raises(ShapeError, match="window=5 instead of None"):
        model.generate(prompt, 2, cache=KVCache(1, 12, 2, 4, 4, window=5))
    with pytest.raises(DTypeError, match="the cache holds float64, the model computes in float32"):
        model.generate(prompt, 2, cache=KVCache(1, 12, 2, 4, 4, dtype=np.float64))


def test_a_prompt_longer_than_the_cache_is_an_error_that_counts(rng):
    model = small_gpt()
    cache = model.make_cache(1, 4)
    with pytest.raises(
        CacheFullError, match=r"a prompt of 5 tokens is longer than the cache, .* 4"
    ):
        model.generate(tokens(rng, 1, 5), 1, cache=cache)
    with pytest.raises(CacheFullError, match="a prompt of 3 and 3 new ones need 5; make a longer"):
        model.generate(tokens(rng, 1, 3), 3, cache=cache)
    assert model.generate(tokens(rng, 1, 3), 2, cache=cache).shape == (1, 5)


def test_a_cache_that_may_not_be_used_is_an_error(rng):
    model = small_gpt()
    with pytest.raises(SettingError, match="a cache was given with use_cache=False"):
        model.generate(tokens(rng, 3), 2, cache=model.make_cache(), use_cache=False)


# ---------------------------------------------------------------- steps


def test_only_the_logits_of_the_last_token_are_computed_on_demand(rng):
    model, ids = small_gpt().eval(), tokens(rng, 2, 5)
    logits, cache = model.forward_with_cache(ids, last_only=True)
    assert logits.shape == (2, 1, VOCABULARY)
    assert cache.seq_pos == 5
    np.testing.assert_allclose(logits.data[:, 0], model(ids).data[:, -1], atol=1e-5)
    assert model.forward_with_cache(ids[0], last_only=True)[0].shape == (1, VOCABULARY)


@pytest.mark.parametrize("use_cache", [True, False])
def test_each_token_is_told_when_it_is_chosen(use_cache, rng):
    model, told = small_gpt(), []
    prompt = tokens(rng, 2, 3)
    found = model.generate(prompt, 6, use_cache=use_cache, on_token=told.append)
    np.testing.assert_array_equal(np.stack(told, axis=1), found.data[:, 3:])


def test_what_a_listener_does_to_its_tokens_changes_nothing(rng):
    model, prompt = small_gpt(), tokens(rng, 2, 3)
    found = model.generate(prompt, 6, on_token=lambda chosen: chosen.fill(0))
    np.testing.assert_array_equal(found.data, model.generate(prompt, 6).data)


@pytest.mark.parametrize("use_cache", [True, False])
def test_tokens_that_were_chosen_are_not_checked_again(use_cache, rng):
    model, limits = small_gpt(), []
    model.token_embedding.register_forward_pre_hook(
        lambda module, inputs: limits.append(inputs[0].limit)
    )
    model.generate(tokens(rng, 1, 3), 4, use_cache=use_cache)
    assert limits == [VOCABULARY] * 4  # known to lie below it


@pytest.mark.parametrize("use_cache", [True, False])
def test_weights_that_are_no_numbers_are_an_error_and_give_no_token(use_cache, rng):
    model = small_gpt()
    model.norm.bias.data = np.full_like(model.norm.bias.data, np.nan)
    with pytest.raises(SettingError, match="the logits hold NaN"):
        model.generate(tokens(rng, 3), 2, use_cache=use_cache)


@pytest.mark.parametrize("count", [-1, 2.5, None])
def test_a_number_of_tokens_is_a_whole_number(count):
    with pytest.raises(SettingError, match=f"max_new_tokens must be at least 0, got {count}"):
        small_gpt().generate([1], count)


def test_a_stop_token_outside_of_the_vocabulary_is_an_error():
    with pytest.raises(TokenError, match="17 is outside of the vocabulary"):
        small_gpt().generate([1], 3, stop_token=VOCABULARY)


def test_a_hook_sees_every_step_of_every_block(rng):
    model, seen = small_gpt(), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    model.generate(tokens(rng, 2, 3), 3)
    assert seen == [(2, 3, 16)] * 2 + [(2, 1, 16)] * 4


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_tokens_do_not_depend_on_the_cache_in_any_backend(backend, rng):
    model, prompt = small_gpt(window=5), [tokens(rng, 3), tokens(rng, 7)]
    with use_backend(backend):
        cached, plain = (model.generate(prompt, 9, use_cache=each) for each in (True, False))
    for row, other in zip(cached, plain, strict=True):
        np.testing.assert_array_equal(row.data, other.data)
