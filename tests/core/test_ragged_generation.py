"""GPT through windows, in chunks, and on prompts of different lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_twins import randomise

from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import ShapeError, TokenError

VOCABULARY, MAX_TIME = 17, 12

WAYS = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "among the likeliest": {"temperature": 2.0, "top_k": 9, "top_p": 0.8, "seed": 4},
}


def small_gpt(seed=0, **settings):
    model = GPT(VOCABULARY, 16, 2, 4, MAX_TIME, rng=seed, **settings)
    randomise(model, np.random.default_rng(seed), scale=0.3)
    return model


def tokens(rng, *shape):
    return rng.integers(0, VOCABULARY, shape)


# ---------------------------------------------------------------- windows


@given(
    window=st.sampled_from([1, 2, 3, 5, MAX_TIME - 1, MAX_TIME, MAX_TIME + 1]),
    chunks=st.lists(st.integers(1, 6), min_size=1, max_size=8),
)
@settings(max_examples=40)
def test_cached_logits_through_a_window_are_plain_logits(window, chunks):
    model = small_gpt(window=window).eval()
    chunks = within(MAX_TIME, chunks)
    ids = tokens(np.random.default_rng(len(chunks)), 2, sum(chunks))
    check_cached_logits(model, ids, chunks)


@given(chunks=st.lists(st.integers(0, 6), min_size=1, max_size=8), rows=st.integers(1, 3))
@settings(max_examples=40)
def test_cached_logits_are_plain_logits_for_any_chunks(chunks, rows):
    model = small_gpt().eval()
    chunks = within(MAX_TIME, chunks)
    ids = tokens(np.random.default_rng(len(chunks)), rows, sum(chunks))
    check_cached_logits(model, ids, chunks)


@pytest.mark.parametrize("window", [None, 4])
def test_the_causal_mask_holds_while_a_prompt_comes_in_chunks(window, rng):
    model, ids = small_gpt(window=window).eval(), tokens(rng, 2, 9)
    changed = ids.copy()
    changed[:, 8] = (changed[:, 8] + 1) % VOCABULARY
    for given_ids in (ids, changed):
        check_cached_logits(model, given_ids, [5, 3, 1])
    first, second = (in_chunks(model, each, [5, 4]) for each in (ids, changed))
    np.testing.assert_array_equal(first[:, :8], second[:, :8])
    assert not np.array_equal(first[:, 8], second[:, 8])


def within(most, chunks):
    """Give the first chunks that together are no longer than `most`."""
    kept = []
    for chunk in chunks:
        kept.append(min(chunk, most - sum(kept)))
    return kept


def in_chunks(model, ids, chunks):
    cache, pieces, start = model.make_cache(len(ids)), [], 0
    for length in chunks:
        logits, cache = model.forward_with_cache(ids[:, start : start + length], cache)
        pieces.append(logits.data)
        start += length
    return np.concatenate(pieces, axis=1)


def check_cached_logits(model, ids, chunks):
    found, wanted = in_chunks(model, ids, chunks), model(ids).data
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max(initial=0) < 1e-4 * max(1, np.abs(wanted).max(initial=0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("window", [1, 3, 5, MAX_TIME, 50])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, MAX_TIME, MAX_TIME + 3])
def test_a_windowed_cache_changes_no_token(length, window, way, rng):
    model, prompt = small_gpt(window=window), tokens(rng, 2, length)
    cached, plain = (
        model.generate(prompt, 15, use_cache=use_cache, **WAYS[way]) for use_cache in (True, False)
    )
    np.testing.assert_array_equal(cached.data, plain.data)


def test_a_window_reaches_as_many_tokens_back_as_layers_carry_it(rng):
    model, ids = small_gpt(window=2).eval(), tokens(rng, 1, 10)
    changed = ids.copy()
    changed[0, 3] = (changed[0, 3] + 1) % VOCABULARY
    moved = np.abs(model(ids).data - model(changed).data).max(axis=-1)[0] > 0
    assert moved.tolist() == [False] * 3 + [True] * 3 + [False] * 4  # two layers, one step each


# ---------------------------------------------------------------- prompts of different lengths


def tie_free(model, prompt, count):
    """Continue a prompt alone, and say how many tokens come before a choice that is close."""
    ids = list(prompt)
    for number in range(count):
        logits = np.sort(model(np.array(ids[-MAX_TIME:])).data[-1])
        if logits[-1] - logits[-2] < 1e-4:  # what a cache may move logits by
            return np.array(ids), number
        ids.append(int(model(np.array(ids[-MAX_TIME:])).data[-1].argmax()))
    return np.array(ids), count


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(
    "lengths", [[1, 4], [5, 2, 3], [1, MAX_TIME, 7], [2, MAX_TIME + 4], [3, 3]]
)
def test_rows_of_a_ragged_batch_are_what_each_prompt_gives_alone(lengths, window, use_cache, rng):
    model = small_gpt(window=window).eval()
    prompts = [tokens(rng, length).tolist() for length in lengths]
    found = model.generate(prompts, 12, use_cache=use_cache)
    assert len(found) == len(prompts)
    for prompt, row in zip(prompts, found, strict=True):
        assert row.shape == (len(prompt) + 12,)
        wanted, sure = tie_free(model, prompt, 12)
        assert sure > 0
        stop = len(prompt) + sure
        np.testing.assert_array_equal(row.data[:stop], wanted[:stop])


@given(st.lists(st.integers(1, MAX_TIME), min_size=1, max_size=4), st.integers(1, 20))
@settings(max_examples=30)
def test_logits_after_padding_are_those_of_the_prompt_alone(lengths, window):
    model = small_gpt(window=window).eval()
    draw = np.random.default_rng(sum(lengths))
    rows = [tokens(draw, length) for length in lengths]
    longest = max(lengths)
    ids = np.stack([np.pad(row, (longest - len(row), 0)) for row in rows])
    cache = model.make_cache(len(rows))
    cache.reset([longest - length for length in lengths])
    half = longest // 2
    pieces = [
        model.forward_with_cache(part, cache)[0].data for part in (ids[:, :half], ids[:, half:])
    ]
    found = np.concatenate(pieces, axis=1)
    for row, logits in zip(rows, found, strict=True):
        wanted = model(row).data
        assert np.abs(logits[longest - len(row) :] - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_a_list_of_equal_prompts_is_a_batch(rng):
    model, prompts = small_gpt(), tokens(rng, 3, 4)
    found = model.generate([Tensor(row) for row in prompts], 5)
    assert isinstance(found, Tensor)
    np.testing.assert_array_equal(found.data, model.generate(prompts, 5).data)


def test_rows_of_a_list_end_at_their_own_stop_token(rng):
    model = small_gpt()
    prompts = [tokens(rng, 2), tokens(rng, 5)]
    settings = {"temperature": 3.0, "seed": 2}
    free = [row.data for row in model.generate(prompts, 40, **settings)]
    new = [row[len(prompt) :].tolist() for row, prompt in zip(free, prompts, strict=True)]
    stop = next(
        token for token in new[0] if token in new[1] and new[0].index(token) != new[1].index(token)
    )
    found = model.generate(prompts, 40, stop_token=stop, **settings)
    for row, prompt, unstopped in zip(found, prompts, new, strict=True):
        assert row.data[len(prompt) :].tolist() == unstopped[: unstopped.index(stop) + 1]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1, 2], []], "prompt 1 of 2 is empty; it needs at least one token"),
        ([[[1]], [[1, 2]]], "rows of token ids must have equal lengths"),
        (np.zeros((0, 4), int), r"with a token, got \(0, 4\)"),
        (np.zeros((4, 0), int), r"with a token, got \(4, 0\)"),
    ],
)
def test_a_prompt_without_a_token_is_an_error(prompts, message):
    with pytest.raises(ShapeError, match=message):
        small_gpt().generate(prompts)


def test_a_wrong_token_in_one_of_many_prompts_is_an_error():
    with pytest.raises(TokenError, match=r"17 is outside of the vocabulary 0\.\.16"):
        small_gpt().generate([[1, 2, 3], [1, 17]])
