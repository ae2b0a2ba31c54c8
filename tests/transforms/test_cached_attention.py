"""Attention with a cache of its own: many calls give what one gives."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.layers import Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import TransformerBlock
from tinytorch.errors import CacheFullError, SettingError, ShapeError
from tinytorch.transforms.kv_cache import CachedMultiHeadAttention

WIDTH, HEADS = 8, 2


def twins(**settings):
    """Give a cached and a plain layer with the same weights."""
    plain = MultiHeadAttention(WIDTH, HEADS, causal=True, rng=0, **settings)
    return CachedMultiHeadAttention(WIDTH, HEADS, rng=0, **settings), plain


def drawn(*shape):
    return Tensor(np.random.default_rng(4).standard_normal(shape).astype(np.float32))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=7), st.sampled_from([None, 1, 3, 9]))
@settings(max_examples=30)
def test_calls_with_new_tokens_are_one_call_with_all(chunks, window):
    cached, plain = twins(window=window)
    x = drawn(2, sum(chunks), WIDTH)
    pieces, start = [], 0
    for length in chunks:
        pieces.append(cached(x[:, start : start + length]).data)
        start += length
    assert cached.seq_pos == start
    # Equal but for the order of sums of at most eight terms.
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), plain(x).data, atol=1e-6)


def test_reset_begins_a_new_sequence_also_of_another_batch():
    cached, plain = twins()
    cached(drawn(2, 5, WIDTH))
    cached.reset()
    assert cached.seq_pos == 0
    x = drawn(3, 4, WIDTH)
    np.testing.assert_allclose(cached(x).data, plain(x).data, atol=1e-6)


def test_one_sequence_needs_no_batch():
    cached, plain = twins()
    x = drawn(5, WIDTH)
    found = [cached(x[:2]).data, cached(x[2:]).data]
    np.testing.assert_allclose(np.concatenate(found), plain(x).data, atol=1e-6)


@pytest.mark.parametrize("max_seq_len", [None, 20])
def test_it_shares_the_weights_of_a_layer(max_seq_len):
    plain = MultiHeadAttention(WIDTH, HEADS, causal=True, window=3)
    cached = CachedMultiHeadAttention.of(plain, max_seq_len=max_seq_len)
    assert cached.q_proj is plain.q_proj
    assert list(cached.state_dict()) == list(plain.state_dict())
    x = drawn(1, 6, WIDTH)
    found = np.concatenate([cached(x[:, :4]).data, cached(x[:, 4:]).data], axis=1)
    np.testing.assert_allclose(found, plain(x).data, atol=1e-6)


def test_it_takes_the_place_of_the_attention_of_a_block():
    block = TransformerBlock(WIDTH, HEADS, causal=True, rng=0)
    x = drawn(1, 6, WIDTH)
    wanted = block(x).data
    block.attention = CachedMultiHeadAttention.of(block.attention)
    found = np.concatenate([block(x[:, :5]).data, block(x[:, 5:]).data], axis=1)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_limit_holds():
    cached, _ = twins()
    limited = CachedMultiHeadAttention.of(cached, max_seq_len=4)
    limited(drawn(1, 3, WIDTH))
    with pytest.raises(CacheFullError, match="at position 3 of 4, no room for 2 more"):
        limited(drawn(1, 2, WIDTH))
    limited(drawn(1, 1, WIDTH))
    assert limited.seq_pos == 4


def test_hooks_see_each_call_once():
    cached, _ = twins()
    seen = []
    cached.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    cached(drawn(1, 3, WIDTH))
    assert seen == [(1, 3, WIDTH)]


def test_a_copy_has_a_past_of_its_own():
    cached, plain = twins()
    x = drawn(1, 6, WIDTH)
    cached(x[:, :4])
    twin = copy.deepcopy(cached)
    cached(x[:, :2])
    np.testing.assert_allclose(twin(x[:, 4:]).data, plain(x).data[:, 4:], atol=1e-6)


def test_there_is_no_graph():
    cached, _ = twins()
    assert cached(drawn(1, 3, WIDTH)).creator is None


def test_another_batch_in_the_middle_is_an_error():
    model = Sequential(twins()[0])
    model(drawn(2, 3, WIDTH))
    message = r"^layers\.0: the 3 remembered tokens are of 2 sequences, the new ones of 1; reset"
    with pytest.raises(ShapeError, match=message):
        model(drawn(1, 1, WIDTH))


def test_a_mask_is_an_error():
    with pytest.raises(SettingError, match="takes no mask; use MultiHeadAttention"):
        twins()[0](drawn(1, 3, WIDTH), np.ones((3, 3)))


def test_only_causal_attention_can_be_cached():
    with pytest.raises(SettingError, match="only causal attention can be cached"):
        CachedMultiHeadAttention.of(MultiHeadAttention(WIDTH, HEADS))
    with pytest.raises(SettingError, match="max_seq_len must be at least 1, got 0"):
        CachedMultiHeadAttention(WIDTH, HEADS, max_seq_len=0)
