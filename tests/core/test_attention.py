"""Attention against PyTorch: every kind of mask, forward, backward and cached."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import require_part
from torch_twins import assert_same, check_twins, randomise

from tinytorch.core.attention import (
    KVCache,
    MultiHeadAttention,
    _window_bias,
    scaled_dot_product_attention,
)
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import recording, use_backend
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DTypeError, SettingError, ShapeError

torch = require_part("torch")

BATCH, TIME, WIDTH, HEADS = 3, 5, 8, 2
DTYPES = [np.float32, np.float64]
BACKENDS = ["numpy", "reference"]


def translate(arrays):
    """Give our arrays by the names of PyTorch, which joins query, key and value."""
    joint = {
        f"in_proj_{kind}": np.concatenate([arrays[f"{part}_proj.{kind}"].T for part in "qkv"])
        for kind in ("weight", "bias")
    }
    outer = {f"out_proj.{kind}": arrays[f"out_proj.{kind}"].T for kind in ("weight", "bias")}
    return joint | outer


def visible_keys():
    """Give a mask per example of the batch, in which everybody sees somebody."""
    visible = np.random.default_rng(5).random((BATCH, TIME, TIME)) < 0.6
    return visible | np.eye(TIME, dtype=bool)


CAUSAL = np.tri(TIME, dtype=bool)
ADDED = np.random.default_rng(6).standard_normal((TIME, TIME))
BY_EXAMPLE = visible_keys()

# Name -> (our mask, what PyTorch is given: True means *may not look*, numbers are added).
MASKS = {
    "none": (None, None),
    "booleans": (CAUSAL, ~CAUSAL),
    "zeros and ones": (CAUSAL.astype(np.float32), ~CAUSAL),
    "whole zeros and ones": (CAUSAL.astype(np.int64), ~CAUSAL),
    "numbers to add": (ADDED, ADDED),
    "whole numbers to add": (np.where(CAUSAL, 0, -30), np.where(CAUSAL, 0.0, -30.0)),
    "infinities to add": (np.where(CAUSAL, 0, -np.inf), ~CAUSAL),
    "zeros to add": (np.zeros((TIME, TIME)), None),
    "one per example": (BY_EXAMPLE, np.repeat(~BY_EXAMPLE, HEADS, axis=0)),
    "one per example and head": (
        np.repeat(BY_EXAMPLE[:, None], HEADS, axis=1),
        np.repeat(~BY_EXAMPLE, HEADS, axis=0),
    ),
    "a tensor": (Tensor(CAUSAL), ~CAUSAL),
}


def twins(rng, **settings):
    ours = MultiHeadAttention(WIDTH, HEADS, rng=rng, **settings)
    randomise(ours, rng)
    return ours, torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)


def their_mask(mask, dtype):
    if mask is None:
        return None
    return torch.tensor(mask if mask.dtype == bool else mask.astype(dtype))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MASKS)
def test_attention_is_that_of_pytorch_under_every_mask(name, dtype, backend, rng):
    mask, wanted = MASKS[name]
    ours, theirs = twins(rng)
    their_own = their_mask(wanted, dtype)
    with use_backend(backend):
        check_twins(
            ours,
            theirs,
            rng.standard_normal((BATCH, TIME, WIDTH)).astype(dtype),
            rng,
            translate=translate,
            our_call=lambda x: ours(x, mask),
            their_call=lambda x: theirs(x, x, x, attn_mask=their_own, need_weights=False)[0],
            factor=10,  # four projections and a softmax in a row
        )


@pytest.mark.parametrize("shape", [(BATCH, TIME, WIDTH), (TIME, WIDTH), (1, 1, WIDTH)])
def test_causal_attention_is_that_of_pytorch_for_batches_and_one_sequence(shape, rng):
    ours, theirs = twins(rng, causal=True)
    hidden = ~torch.tril(torch.ones(shape[-2], shape[-2], dtype=torch.bool))
    check_twins(
        ours,
        theirs,
        rng.standard_normal(shape),
        rng,
        translate=translate,
        their_call=lambda x: theirs(x, x, x, attn_mask=hidden, need_weights=False)[0],
        factor=10,
    )


def test_a_causal_mask_and_a_given_one_hold_together(rng):
    ours, _ = twins(rng, causal=True)
    x = Tensor(rng.standard_normal((BATCH, TIME, WIDTH)).astype(np.float32))
    both = BY_EXAMPLE & CAUSAL
    together = ours(x, BY_EXAMPLE)
    ours.causal = False
    # The same sums; hidden scores are -inf in one and -inf twice in the other.
    np.testing.assert_array_equal(together.data, ours(x, both).data)


def test_projections_may_have_no_bias():
    layer = MultiHeadAttention(WIDTH, HEADS, bias=False)
    assert [name for name, _ in layer.named_parameters()] == [
        f"{part}_proj.weight" for part in ("q", "k", "v", "out")
    ]


# ---------------------------------------------------------------- the function


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (2, 3, 4, 3)])
def test_the_function_is_that_of_pytorch(shape, causal, backend, rng):
    arrays = rng.standard_normal((3, *shape))
    ours = [Tensor(array, requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    with use_backend(backend):
        mixed = scaled_dot_product_attention(*ours, causal=causal)
        wanted = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=causal)
        assert_same(mixed, wanted)
        slope = rng.standard_normal(shape)
        mixed.backward(slope)
        wanted.backward(torch.tensor(slope))
    for mine, other in zip(ours, theirs, strict=True):
        assert_same(mine.grad, other.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_query_sees_every_key_when_there_are_more_keys(backend, rng):
    key, value = (Tensor(rng.standard_normal((6, 3))) for _ in range(2))
    query = Tensor(rng.standard_normal((6, 3)))
    with use_backend(backend):
        whole = scaled_dot_product_attention(query, key, value, causal=True)
        last = scaled_dot_product_attention(query[4:], key, value, causal=True)
    # The same sums over at most six terms of order one.
    np.testing.assert_allclose(last.data, whole.data[4:], atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_query_that_may_see_nothing_gives_zeros_and_no_gradient(backend, rng):
    query, key, value = (Tensor(rng.standard_normal((2, 3)), requires_grad=True) for _ in range(3))
    mask = np.array([[True, True], [False, False]])
    with use_backend(backend):
        mixed = scaled_dot_product_attention(query, key, value, mask)
        mixed.sum().backward()
    assert not mixed.data[1].any()
    assert mixed.data[0].any()
    assert not query.grad[1].any()
    assert np.isfinite(key.grad).all()


@pytest.mark.parametrize("mask_shape", [(300,), (1, 300), (300, 1), (300, 300), (2, 1, 300)])
def test_a_long_sequence_without_a_graph_gives_what_it_gives_with_one(mask_shape, rng):
    # Without a graph the queries go in blocks of 256, so 300 of them need two.
    query, key, value = (rng.standard_normal((2, 300, 4)) for _ in range(3))
    mask = rng.standard_normal(mask_shape)
    for causal in (False, True):
        tensors = [Tensor(array, requires_grad=True) for array in (query, key, value)]
        wanted = scaled_dot_product_attention(*tensors, mask, causal=causal)
        with no_grad():
            found = scaled_dot_product_attention(*tensors, mask, causal=causal)
        assert_same(found, wanted.data)


# ---------------------------------------------------------------- cached


@pytest.mark.parametrize("chunks", [[1] * 7, [7], [3, 4], [1, 5, 1], [6, 1]])
@pytest.mark.parametrize("unbatched", [False, True])
def test_cached_attention_is_plain_causal_attention(chunks, unbatched, rng):
    layer = MultiHeadAttention(WIDTH, HEADS, causal=True, rng=rng)
    shape = (7, WIDTH) if unbatched else (2, 7, WIDTH)
    x = Tensor(rng.standard_normal(shape).astype(np.float32))
    cache, pieces, start = None, [], 0
    for length in chunks:
        piece, cache = layer.forward_with_cache(x[..., start : start + length, :], cache)
        pieces.append(piece.data)
        start += length
    assert cache.seq_pos == 7
    # Equal but for the order of sums of at most eight terms.
    np.testing.assert_allclose(np.concatenate(pieces, axis=-2), layer(x).data, rtol=0, atol=1e-6)


def test_a_cache_of_its_own_grows_as_needed(rng):
    layer = MultiHeadAttention(WIDTH, HEADS, causal=True, rng=rng)
    x = Tensor(rng.standard_normal((1, 150, WIDTH)).astype(np.float32))
    cache = None
    for position in range(150):
        last, cache = layer.forward_with_cache(x[:, position : position + 1], cache)
    assert cache.max_seq_len >= 150
    np.testing.assert_allclose(last.data, layer(x).data[:, -1:], rtol=0, atol=1e-6)


def test_cached_attention_builds_no_graph(rng):
    x = Tensor(rng.standard_normal((TIME, WIDTH)).astype(np.float32), requires_grad=True)
    out, _ = MultiHeadAttention(WIDTH, HEADS).forward_with_cache(x)
    assert out.creator is None
    assert not out.requires_grad


def test_a_cache_for_another_shape_is_an_error_that_shows_both():
    layer = MultiHeadAttention(WIDTH, HEADS)
    cache = KVCache(4, 10, 1, HEADS, WIDTH // HEADS)
    with pytest.raises(ShapeError, match=r"= \(4, 2, time, 4\), got key \(3, 2, 5, 4\)"):
        layer.forward_with_cache(Tensor(np.zeros((3, 5, WIDTH), np.float32)), cache)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("shape", [(WIDTH,), (2, 3, 4), (1, 2, 3, WIDTH)])
def test_a_shape_that_does_not_fit_is_shown(shape):
    with pytest.raises(ShapeError) as caught:
        MultiHeadAttention(WIDTH, HEADS)(Tensor(np.zeros(shape, np.float32)))
    assert str(caught.value) == f"MultiHeadAttention(8, 2) needs (batch, time, 8), got {shape}"


def test_integers_are_an_error():
    with pytest.raises(DTypeError, match="needs floating-point input, got int64"):
        MultiHeadAttention(WIDTH, HEADS)(Tensor(np.zeros((2, 3, WIDTH), np.int64)))


@pytest.mark.parametrize("shape", [(4, 4), (2, TIME, TIME), (BATCH, 3, TIME, TIME), (TIME, 2)])
def test_a_mask_of_another_size_is_an_error_that_shows_both(shape):
    layer, x = MultiHeadAttention(WIDTH, HEADS), Tensor(np.zeros((BATCH, TIME, WIDTH), np.float32))
    scores = (BATCH, HEADS, TIME, TIME)
    seen = (2, 1, TIME, TIME) if len(shape) == 3 else shape
    with pytest.raises(ShapeError) as caught:
        layer(x, np.ones(shape, bool))
    assert str(caught.value) == f"a mask {seen} does not fit scores (..., queries, keys) {scores}"


def test_a_mask_does_not_make_the_batch_larger():
    x = Tensor(np.zeros((1, TIME, WIDTH), np.float32))
    with pytest.raises(ShapeError, match=r"a mask \(3, 1, 5, 5\) does not fit scores"):
        MultiHeadAttention(WIDTH, HEADS)(x, np.ones((3, TIME, TIME), bool))


@pytest.mark.parametrize("shapes", [[(4, 3), (4, 2), (4, 3)], [(4, 3), (5, 3), (4, 3)]])
def test_the_function_shows_shapes_that_do_not_fit_together(shapes):
    with pytest.raises(ShapeError, match=r"attention needs query .* got") as caught:
        scaled_dot_product_attention(*(Tensor(np.zeros(shape)) for shape in shapes))
    assert str(caught.value).endswith(", ".join(str(shape) for shape in shapes))


def test_the_function_needs_a_time_axis_everywhere():
    with pytest.raises(ShapeError, match="attention needs query"):
        scaled_dot_product_attention(Tensor(np.zeros((4, 3))), Tensor(np.zeros(3)), Tensor([0.0]))


@pytest.mark.parametrize(("width", "heads"), [(8, 3), (8, 0), (8, -1)])
def test_heads_must_divide_the_width(width, heads):
    message = f"embed_dim={width} must be a multiple of num_heads={heads}"
    with pytest.raises(SettingError, match=message):
        MultiHeadAttention(width, heads)


def test_whole_numbers_that_are_all_zero_hide_everything_and_floats_add_nothing():
    x = Tensor(np.ones((1, 3, 2)))
    hidden = scaled_dot_product_attention(x, x, x, np.zeros((3, 3), int))
    shown = scaled_dot_product_attention(x, x, x, np.zeros((3, 3)))
    np.testing.assert_array_equal(hidden.data, np.zeros((1, 3, 2)))
    np.testing.assert_allclose(shown.data, np.ones((1, 3, 2)))


def test_a_mask_with_a_gradient_is_refused():
    x = Tensor(np.ones((1, 3, 2)))
    with pytest.raises(SettingError, match="a mask has no gradient here"):
        scaled_dot_product_attention(x, x, x, Tensor(np.zeros((3, 3)), requires_grad=True))


# ---------------------------------------------------------------- windows


def band(queries, keys, window):
    """Give which keys a causal query sees through a window."""
    position = np.arange(keys - queries, keys)[:, None]
    key = np.arange(keys)
    return (key <= position) & (key > position - window)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [1, 2, TIME - 1, TIME, TIME + 3])
def test_a_window_is_the_mask_that_hides_what_lies_before_it(window, backend, rng):
    ours, theirs = twins(rng, causal=True, window=window)
    hidden = torch.tensor(~band(TIME, TIME, window))
    with use_backend(backend):
        check_twins(
            ours,
            theirs,
            rng.standard_normal((BATCH, TIME, WIDTH)),
            rng,
            translate=translate,
            their_call=lambda x: theirs(x, x, x, attn_mask=hidden, need_weights=False)[0],
            factor=10,
        )


def test_a_window_and_a_given_mask_hold_together(rng):
    windowed = MultiHeadAttention(WIDTH, HEADS, causal=True, window=3, rng=0)
    plain = MultiHeadAttention(WIDTH, HEADS, rng=0)
    x = Tensor(rng.standard_normal((BATCH, TIME, WIDTH)).astype(np.float32))
    both = BY_EXAMPLE & band(TIME, TIME, 3)
    # The same sums; hidden scores are -inf in one and -inf twice in the other.
    np.testing.assert_array_equal(windowed(x, BY_EXAMPLE).data, plain(x, both).data)


@pytest.mark.parametrize("queries", [1, 2, 6])
def test_the_window_of_the_function_ends_at_the_last_key(queries, rng):
    key, value = (Tensor(rng.standard_normal((6, 3))) for _ in range(2))
    query = Tensor(rng.standard_normal((queries, 3)))
    found = scaled_dot_product_attention(query, key, value, causal=True, window=4)
    wanted = scaled_dot_product_attention(query, key, value, band(queries, 6, 4))
    np.testing.assert_allclose(found.data, wanted.data, atol=1e-14)


@given(
    st.integers(1, 7),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.sampled_from(BACKENDS),
)
@settings(max_examples=40)
def test_cached_attention_through_a_window_is_the_plain_one(window, chunks, backend):
    layer = MultiHeadAttention(WIDTH, HEADS, causal=True, window=window, rng=0)
    drawn = np.random.default_rng(1).standard_normal((2, sum(chunks), WIDTH))
    x = Tensor(drawn.astype(np.float32))
    cache, pieces, start = None, [], 0
    with use_backend(backend):
        for length in chunks:
            piece, cache = layer.forward_with_cache(x[:, start : start + length], cache)
            pieces.append(piece.data)
            start += length
        wanted = layer(x).data
    # Equal but for the order of sums of at most eight terms.
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), wanted, rtol=0, atol=1e-6)


def test_a_windowed_layer_keeps_no_more_than_its_window(rng):
    layer = MultiHeadAttention(WIDTH, HEADS, causal=True, window=4, rng=rng)
    x = Tensor(rng.standard_normal((1, 300, WIDTH)).astype(np.float32))
    cache = None
    for position in range(300):
        last, cache = layer.forward_with_cache(x[:, position : position + 1], cache)
    assert cache.get_memory_usage()["total_elements"] == 2 * 4 * WIDTH
    np.testing.assert_allclose(last.data, layer(x).data[:, -1:], rtol=0, atol=1e-6)


def test_a_window_needs_a_causal_layer_and_a_token():
    with pytest.raises(SettingError, match="window=3 is of the tokens before each one, so it need"):
        MultiHeadAttention(WIDTH, HEADS, window=3)
    with pytest.raises(SettingError, match="a window must be at least 1 token, got 0"):
        MultiHeadAttention(WIDTH, HEADS, causal=True, window=0)
    x = Tensor(np.ones((3, 2)))
    with pytest.raises(SettingError, match="it needs causal=True"):
        scaled_dot_product_attention(x, x, x, window=2)


def test_a_cache_of_another_window_is_an_error_that_shows_both():
    layer = MultiHeadAttention(WIDTH, HEADS, causal=True, window=3)
    cache = KVCache(1, 10, 1, HEADS, WIDTH // HEADS)
    with pytest.raises(SettingError, match="the cache has window=None, the layer window=3"):
        layer.forward_with_cache(Tensor(np.zeros((1, 5, WIDTH), np.float32)), cache)


def test_a_layer_inside_of_a_model_takes_one_sequence_too(rng):
    layer = MultiHeadAttention(WIDTH, HEADS, causal=True, rng=rng)
    x = Tensor(rng.standard_normal((TIME, WIDTH)).astype(np.float32))
    cache = KVCache(1, 10, 1, HEADS, WIDTH // HEADS)
    with no_grad():
        found, _ = layer.forward_with_cache(x, cache, 0)
    assert cache.seq_pos == 0  # the model advances it
    np.testing.assert_allclose(found.data, layer(x).data, rtol=0, atol=1e-6)


def test_the_last_axis_that_the_kernel_gets_is_contiguous(rng):
    strides = []
    layer = MultiHeadAttention(WIDTH, HEADS, causal=True, rng=rng)
    cache = KVCache(2, 10, 1, HEADS, WIDTH // HEADS)

    def note(inputs, outputs):
        if len(inputs) == 3 and inputs[0].ndim == 4:
            strides.extend(array.strides[-1] for array in inputs)

    with recording(lambda call: None, arrays=note):
        for time in (3, 1):
            layer.forward_with_cache(Tensor(np.ones((2, time, WIDTH), np.float32)), cache)
    assert strides == [4] * 6


def test_the_layers_of_a_model_share_the_band_of_a_window():
    one, other = (_window_bias(5, 7, 3, np.dtype(np.float32)) for _ in range(2))
    assert one is other
    assert not one.flags.writeable
    assert _window_bias(5, 7, 3, np.dtype(np.float64)).dtype == np.float64
    np.testing.assert_array_equal(one[-1], [-np.inf] * 4 + [0] * 3)
