"""Compiled attention gives what the reference gives: for any shape, layout, mask and number."""

import numpy as np
import pytest
from compiled_checks import check_every_call, signatures_of
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import assert_close, torch
from parts import require_part

require_part("numba")

from tinytorch.core.attention import KVCache, MultiHeadAttention
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.kernels import NUMPY, REFERENCE
from tinytorch.core.kernels.numba import attention as compiled
from tinytorch.core.tensor import Tensor

attention = compiled.KERNELS["attention"]
reference = REFERENCE.kernels["attention"]
COMPILED = NUMPY.extended("compiled attention", compiled.KERNELS)
F = np.float32


def heads(rng, batch, count, time, width, layout="contiguous"):
    """Draw (batch, heads, time, d), laid out as layers and caches do."""
    if layout == "contiguous":
        return rng.normal(size=(batch, count, time, width)).astype(F)
    if layout == "layer":
        return rng.normal(size=(batch, time, count, width)).astype(F).swapaxes(1, 2)
    cache = np.full((batch, count, time + 5, width), np.nan, F)  # what is behind is not read
    cache[:, :, :time] = rng.normal(size=(batch, count, time, width))
    return cache[:, :, :time]


def check_attention(query, key, value, bias=None, *, scale=0.3, causal=False, keep_weights=False):
    """Compare with the reference in float64, whose own errors are negligible."""
    options = {"scale": scale, "causal": causal, "keep_weights": keep_weights}
    mix, weights = attention(query, key, value, bias, **options)
    exact = [None if x is None else x.astype(np.float64) for x in (query, key, value, bias)]
    wanted_mix, wanted_weights = reference(*exact, **options)
    # sums over the width and over the keys follow each other
    terms = query.shape[-1] + key.shape[-2]
    assert_close(mix, wanted_mix.astype(F), terms=terms)
    if keep_weights:
        assert_close(weights, wanted_weights.astype(F), terms=terms)
    else:
        assert weights is None


@pytest.mark.parametrize("kind", sorted(compiled.KERNELS))
def test_a_kernel_computes_what_the_reference_computes(kind):
    check_every_call(compiled.KERNELS, kind)
    # one compilation serves all layouts, and arrays that are read-only
    assert max(signatures_of(compiled).values()) <= 1


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    queries=st.integers(1, 80),
    keys=st.integers(1, 150),
    widths=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    layout=st.sampled_from(["contiguous", "layer", "cache"]),
    causal=st.booleans(),
    keep_weights=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_sizes_and_layouts_are_exact(
    shape, queries, keys, widths, layout, causal, keep_weights, seed
):
    rng = np.random.default_rng(seed)
    query = heads(rng, *shape, queries, widths[0], layout)
    key = heads(rng, *shape, keys, widths[0], layout)
    value = heads(rng, *shape, keys, widths[1], layout)
    check_attention(query, key, value, causal=causal, keep_weights=keep_weights)


@pytest.mark.parametrize("queries", [1, 3, 30])
@pytest.mark.parametrize(
    "shape", ["qk", "b1qk", "b11k", "bhqk", "1hq1", "q1", "k", "1", "bhqk transposed"]
)
def test_a_bias_of_any_shape_is_added(rng, shape, queries):
    lengths = {"b": 2, "h": 3, "q": queries, "k": 75, "1": 1}
    axes, *transposed = shape.split()
    bias = rng.normal(size=[lengths[axis] for axis in axes]).astype(F)
    if transposed:
        bias = np.asfortranarray(bias)
    hidden = rng.random(bias.shape) < 0.3
    query, key = heads(rng, 2, 3, queries, 9), heads(rng, 2, 3, 75, 9)
    for mask in (bias, np.where(hidden, -np.inf, bias).astype(F)):
        for causal in (False, True):
            check_attention(query, key, key, mask, causal=causal, keep_weights=queries == 30)


def test_a_bias_of_another_type_is_converted(rng):
    query = heads(rng, 1, 2, 5, 4)
    for bias in (np.tri(5), np.tri(5, dtype=bool), np.tri(5, dtype=int)):
        mix, _ = attention(query, query, query, bias, scale=1, causal=False, keep_weights=False)
        wanted, _ = reference(query, query, query, bias, scale=1, causal=False, keep_weights=False)
        assert_close(mix, wanted.astype(F), terms=9)


def test_a_bias_that_makes_the_scores_larger_is_left_to_numpy(rng):
    query, bias = heads(rng, 1, 1, 5, 4), rng.normal(size=(3, 2, 5, 5)).astype(F)
    check_attention(query, query, query, bias)
    check_attention(query[0, 0], query[0, 0], query[0, 0], bias)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (2, 2, 1, 3)])
@pytest.mark.parametrize("queries", [2, 20])
def test_any_leading_axes_are_kept(rng, lead, queries):
    query, key = (rng.normal(size=(*lead, time, 8)).astype(F) for time in (queries, 30))
    bias = rng.normal(size=(*lead[:1], *[1] * len(lead[1:]), 1, 30)).astype(F)
    check_attention(query, key, key, causal=True, keep_weights=True)
    check_attention(query, key, key, bias)


@pytest.mark.parametrize("queries", [2, 20])
def test_leading_axes_are_broadcast(rng, queries):
    query, key = heads(rng, 2, 3, queries, 8), heads(rng, 1, 1, 30, 8)
    check_attention(query, key, key, causal=True)
    check_attention(query, key[0, 0], heads(rng, 2, 1, 30, 8), keep_weights=True)


@pytest.mark.parametrize("queries", [2, 40])
def test_a_query_that_may_see_nothing_gives_zeros(rng, queries):
    query, key = heads(rng, 1, 2, queries, 8), heads(rng, 1, 2, 50, 8)
    options = {"scale": 1.0, "keep_weights": queries == 40}
    blind = np.where(np.arange(queries) == 1, -np.inf, 0).astype(F)[:, None]
    for bias in (blind, np.broadcast_to(blind, (queries, 50))):
        mix, _ = attention(query, key, key, bias, causal=False, **options)
        assert not mix[..., 1, :].any()
        assert mix[..., 0, :].all()
    mix, _ = attention(query, key[:, :, :1], key[:, :, :1], None, causal=True, **options)
    assert not mix[..., :-1, :].any()  # more queries than keys: only the last one sees the key
    np.testing.assert_array_equal(mix[..., -1:, :], key[:, :, :1])


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize(("queries", "first"), [(3, 97), (100, 41)])
def test_what_is_wrong_in_a_key_shows_only_where_it_may_be_seen(rng, number, queries, first):
    query, key = np.abs(heads(rng, 1, 2, queries, 8)), heads(rng, 1, 2, 100, 8)
    value = heads(rng, 1, 2, 100, 8)
    key[:, 1, first] = number
    mix, _ = attention(query, key, value, None, scale=1.0, causal=True, keep_weights=False)
    sees = np.arange(100 - queries, 100) >= first
    assert np.isnan(mix[0, 1, sees]).all()
    assert np.isfinite(mix[0, 1, ~sees]).all()
    assert np.isfinite(mix[0, 0]).all()


@pytest.mark.parametrize("queries", [1, 30])
def test_numbers_that_are_not_finite_come_through(rng, queries):
    clean = [heads(rng, 1, 1, time, 8) for time in (queries, 40, 40)]
    for position in range(3):
        for number in (np.nan, np.inf):
            arrays = [array.copy() for array in clean]
            arrays[position][0, 0, 0, 0] = number
            options = {"scale": 1.0, "causal": False, "keep_weights": False}
            with np.errstate(invalid="ignore"):
                wanted, _ = reference(*arrays, None, **options)
            mix, _ = attention(*arrays, None, **options)
            np.testing.assert_array_equal(np.isnan(mix), np.isnan(wanted))
            np.testing.assert_array_equal(np.isinf(mix), np.isinf(wanted))


@pytest.mark.parametrize("queries", [1, 30])
def test_large_scores_do_not_overflow(rng, queries):
    query, key = 1e4 * heads(rng, 1, 2, queries, 8), heads(rng, 1, 2, 40, 8)
    mix, _ = attention(query, key, key, None, scale=1.0, causal=False, keep_weights=False)
    nearest = (query @ key.swapaxes(-1, -2)).argmax(-1)  # takes all the weight
    np.testing.assert_array_equal(mix, np.take_along_axis(key, nearest[..., None], 2))


@pytest.mark.slow
def test_the_context_of_few_heads_is_cut_into_parts(rng, monkeypatch):
    monkeypatch.setattr(compiled, "THREADS", 5)
    query, key = heads(rng, 1, 2, 2, 16), heads(rng, 1, 2, 2_000, 16, "cache")
    assert compiled._parts(2, 2_000, 5) == 3
    bias = rng.normal(size=(1, 1, 1, 2_000)).astype(F)
    check_attention(query, key, key)
    check_attention(query, key, key, bias, causal=True)
    hidden = np.where(np.arange(2_000) < 1_500, -np.inf, 0).astype(F)  # two parts see nothing
    check_attention(query, key, key, hidden)
    key[0, 0, 3] = np.nan
    mix, _ = attention(query, key, key, None, scale=1.0, causal=False, keep_weights=False)
    assert np.isnan(mix[0, 0]).all()
    assert np.isfinite(mix[0, 1]).all()


@pytest.mark.parametrize("threads", [1, 3, 7])
def test_the_number_of_threads_does_not_change_the_result(rng, monkeypatch, threads):
    query, key = heads(rng, 1, 2, 200, 16), heads(rng, 1, 2, 260, 16)
    alone, _ = attention(query, key, key, None, scale=0.3, causal=True, keep_weights=False)
    monkeypatch.setattr(compiled, "THREADS", threads)
    together, _ = attention(query, key, key, None, scale=0.3, causal=True, keep_weights=False)
    np.testing.assert_array_equal(together, alone)


def test_strange_memory_is_accepted(rng):
    time, width = 20, 8
    clean = heads(rng, 2, 3, time, width)
    locked = clean.copy()
    locked.flags.writeable = False
    odd = np.empty(clean.nbytes + 1, np.uint8)[1:].view(F).reshape(clean.shape)
    odd[...] = clean
    assert not odd.flags.aligned
    backwards = clean[:, ::-1, ::-1].copy()[:, ::-1, ::-1]
    mirrored = clean[..., ::-1].copy()[..., ::-1]
    big_endian = clean.astype(">f4")
    wanted, _ = attention(clean, clean, clean, None, scale=1, causal=True, keep_weights=False)
    for array in (locked, odd, backwards, mirrored, big_endian):
        mix, _ = attention(array, array, array, None, scale=1, causal=True, keep_weights=False)
        assert_close(mix, wanted, terms=time + width)
    one = np.broadcast_to(F(2), clean.shape)
    mix, _ = attention(one, one, one, None, scale=1, causal=True, keep_weights=False)
    np.testing.assert_array_equal(mix, one)


def test_other_types_and_empty_arrays_are_left_to_numpy(rng):
    options = {"scale": 1.0, "causal": False, "keep_weights": False}
    double = rng.normal(size=(1, 2, 5, 4))
    assert attention(double, double, double, None, **options)[0].dtype == np.float64
    query, none = heads(rng, 1, 2, 5, 4), heads(rng, 1, 2, 0, 4)
    mix, _ = attention(query, none, none, None, **options)
    assert mix.shape == (1, 2, 5, 4)
    assert not mix.any()
    assert attention(none, query, query, None, **options)[0].shape == (1, 2, 0, 4)


@pytest.mark.parametrize("lead", [(3,), (2, 3), (2, 2, 3)])
@pytest.mark.parametrize("queries", [2, 20])
def test_heads_are_merged_without_a_copy(rng, lead, queries):
    query = rng.normal(size=(*lead, queries, 8)).astype(F)
    mix, _ = attention(query, query, query, None, scale=1.0, causal=True, keep_weights=False)
    merged = mix.swapaxes(-3, -2).reshape(*lead[:-1], queries, 8 * lead[-1])
    assert np.shares_memory(merged, mix)


@pytest.mark.parametrize("causal", [False, True])
def test_it_agrees_with_pytorch(rng, causal):
    query, key, value = (heads(rng, 2, 3, 50, 16, "layer") for _ in range(3))
    mix, _ = attention(query, key, value, None, scale=0.25, causal=causal, keep_weights=False)
    twins = [torch.from_numpy(array) for array in (query, key, value)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*twins, is_causal=causal)
    assert_close(mix, wanted, terms=66)


def test_a_layer_gives_the_same_token_by_token_and_at_once(rng):
    layer = MultiHeadAttention(24, 3, causal=True, rng=0)
    x = Tensor(rng.normal(size=(2, 30, 24)).astype(F))
    with use_backend(COMPILED), no_grad():
        whole = layer(x).data
        cache = KVCache(2, 40, 1, 3, 8)
        steps = []
        for start, stop in [(0, 17), (17, 20), *((at, at + 1) for at in range(20, 30))]:
            steps.append(layer.forward_with_cache(x[:, start:stop], cache, 0)[0].data)
            cache.advance()
    assert_close(np.concatenate(steps, 1), whole, terms=24 + 30)


@pytest.mark.parametrize("keep_weights", [False, True])
@pytest.mark.parametrize(
    ("key", "value"), [((1, 2, 7, 6), (1, 2, 7, 8)), ((1, 2, 7, 8), (1, 2, 5, 8))]
)
@pytest.mark.parametrize("queries", [1, 30])
def test_shapes_that_do_not_fit_are_refused(key, value, queries, keep_weights, rng):
    arrays = (rng.normal(size=shape).astype(F) for shape in ((1, 2, queries, 8), key, value))
    with pytest.raises(ValueError, match="mismatch"):
        attention(*arrays, None, scale=1.0, causal=False, keep_weights=keep_weights)


def test_vectors_are_refused_as_they_are_by_numpy(rng):
    vectors = [rng.normal(size=8).astype(F) for _ in range(3)]
    settings_of_call = {"scale": 1.0, "causal": False, "keep_weights": False}
    with pytest.raises((ValueError, IndexError)) as theirs:
        NUMPY.kernels["attention"](*vectors, None, **settings_of_call)
    with pytest.raises(theirs.type):
        attention(*vectors, None, **settings_of_call)
