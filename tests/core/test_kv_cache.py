"""The key-value cache: what goes in comes out, and nothing more fits than fits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.kv_cache import KVCache
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CacheFullError, SettingError, ShapeError

BATCH, HEADS, WIDTH = 2, 3, 4


def drawn(rng, time):
    return rng.standard_normal((2, BATCH, HEADS, time, WIDTH)).astype(np.float32)


def test_a_layer_gets_its_past_and_its_new_tokens(rng):
    cache = KVCache(BATCH, 10, 2, HEADS, WIDTH)
    past = {layer: drawn(rng, 0) for layer in range(2)}
    for time in (3, 1, 2):
        for layer in range(2):
            key, value = drawn(rng, time)
            past[layer] = np.concatenate([past[layer], [key, value]], axis=3)
            found = cache.update(layer, Tensor(key), value)  # tensors and arrays
            np.testing.assert_array_equal([part.data for part in found], past[layer])
        cache.advance()
        for layer in range(2):
            found = cache.get(layer)
            np.testing.assert_array_equal([part.data for part in found], past[layer])
    assert cache.seq_pos == 6


def test_tokens_are_no_past_before_advance(rng):
    cache = KVCache(BATCH, 10, 1, HEADS, WIDTH)
    cache.update(0, *drawn(rng, 4))
    assert cache.seq_pos == 0
    assert cache.get(0)[0].shape == (BATCH, HEADS, 0, WIDTH)
    cache.advance()
    cache.advance()  # once is enough
    assert cache.seq_pos == 4


def test_reset_forgets_and_keeps_the_memory(rng):
    cache = KVCache(BATCH, 4, 1, HEADS, WIDTH)
    cache.update(0, *drawn(rng, 4))
    cache.advance()
    memory = cache.get(0)[0].data.base
    cache.reset()
    assert cache.seq_pos == 0
    key, value = drawn(rng, 2)
    np.testing.assert_array_equal(cache.update(0, key, value)[0].data, key)
    assert cache.get(0)[0].data.base is memory


def test_a_grown_cache_holds_the_same_past_and_more_room(rng):
    cache = KVCache(BATCH, 4, 2, HEADS, WIDTH, dtype=np.float64)
    for layer in range(2):
        cache.update(layer, *drawn(rng, 3))
    cache.advance()
    twin = cache.grown(9)
    assert (twin.max_seq_len, twin.seq_pos) == (9, 3)
    for layer in range(2):
        for mine, other in zip(cache.get(layer), twin.get(layer), strict=True):
            np.testing.assert_array_equal(mine.data, other.data)
            assert other.dtype == np.float64
    twin.update(0, *drawn(rng, 6))
    with pytest.raises(CacheFullError):
        cache.update(0, *drawn(rng, 6))


def test_a_full_cache_says_so_and_at_which_position(rng):
    cache = KVCache(BATCH, 4, 1, HEADS, WIDTH)
    cache.update(0, *drawn(rng, 3))
    cache.advance()
    message = "the cache is full: at position 3 of 4, no room for 2 more; reset"
    with pytest.raises(ValueError, match=message):
        cache.update(0, *drawn(rng, 2))
    cache.update(0, *drawn(rng, 1))
    cache.advance()
    with pytest.raises(CacheFullError, match="at position 4 of 4, no room for 1 more"):
        cache.update(0, *drawn(rng, 1))


@pytest.mark.parametrize("layer", [-1, 2, 7])
def test_a_layer_that_does_not_exist_is_an_error_that_names_it(layer, rng):
    cache = KVCache(BATCH, 4, 2, HEADS, WIDTH)
    message = rf"layer index {layer} is outside of 0\.\.1"
    with pytest.raises(ValueError, match=message):
        cache.get(layer)
    with pytest.raises(ValueError, match=message):
        cache.update(layer, *drawn(rng, 1))


@pytest.mark.parametrize(
    ("key_shape", "value_shape"),
    [
        ((1, HEADS, 2, WIDTH), (BATCH, HEADS, 2, WIDTH)),
        ((BATCH, HEADS, 2, WIDTH), (BATCH, HEADS, 1, WIDTH)),
        ((BATCH, 1, 2, WIDTH), (BATCH, 1, 2, WIDTH)),
        ((BATCH, HEADS, WIDTH), (BATCH, HEADS, WIDTH)),
    ],
)
def test_a_shape_that_does_not_fit_is_shown_and_nothing_is_written(key_shape, value_shape):
    cache = KVCache(BATCH, 4, 1, HEADS, WIDTH)
    with pytest.raises(ShapeError) as caught:
        cache.update(0, np.ones(key_shape), np.ones(value_shape))
    assert f"got key {key_shape} and value {value_shape}" in str(caught.value)
    cache.advance()
    assert cache.seq_pos == 0


@pytest.mark.parametrize("position", range(5))
def test_every_size_must_be_at_least_one(position):
    sizes = [1] * 5
    sizes[position] = 0
    with pytest.raises(SettingError, match="every size of a cache must be at least 1, got"):
        KVCache(*sizes)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_memory_usage_is_what_is_held(dtype):
    usage = KVCache(BATCH, 16, 5, HEADS, WIDTH, dtype=dtype).get_memory_usage()
    elements = 2 * 5 * BATCH * HEADS * 16 * WIDTH
    assert usage["total_elements"] == elements
    assert usage["cache_tensors"] == 10
    assert usage["total_mb"] == elements * np.dtype(dtype).itemsize / 2**20
    assert usage["per_layer_mb"] * 5 == pytest.approx(usage["total_mb"])


def test_a_grown_cache_cannot_lose_tokens(rng):
    cache = KVCache(BATCH, 4, 1, HEADS, WIDTH)
    cache.update(0, *drawn(rng, 3))
    cache.advance()
    with pytest.raises(SettingError, match="holds 3 tokens; it cannot shrink to 2"):
        cache.grown(2)


def test_it_says_what_it_is():
    cache = KVCache(1, 9, 2, 3, 4, window=5)
    assert repr(cache) == (
        "KVCache(batch_size=1, max_seq_len=9, num_layers=2, num_heads=3, head_dim=4, window=5) "
        "at position 0"
    )


# ---------------------------------------------------------------- window


def visible_to(cache, layer, key, value):
    """Write tokens, and give for each what it may see: {position: key}, from keys that tell."""
    time = key.shape[2]
    keys, _ = cache.update(layer, key, value)
    mask = cache.mask(time)
    seen = []
    for query in range(time):
        hidden = (
            np.zeros(keys.shape[2]) if mask is None else mask[0, 0, min(query, len(mask[0, 0]) - 1)]
        )
        shown = np.arange(keys.shape[2]) <= keys.shape[2] - time + query  # causal
        if time == 1:
            shown[:] = True
        seen.append(sorted(keys.data[0, 0, shown & (hidden == 0), 0].astype(int).tolist()))
    return seen


def numbered(start, time):
    """Give keys that hold their position."""
    positions = np.arange(start, start + time, dtype=np.float32)
    return np.broadcast_to(positions[None, None, :, None], (1, 1, time, 2))


@given(
    st.integers(1, 6),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(0, 12),
)
def test_a_token_sees_its_window_and_nothing_else(window, chunks, padding):
    cache = KVCache(1, 80, 1, 1, 2, window=window)
    cache.reset([padding])
    start = 0
    for time in chunks:
        found = visible_to(cache, 0, numbered(start, time), numbered(start, time))
        wanted = [
            list(range(max(0, padding, position - window + 1), position + 1))
            for position in range(start, start + time)
        ]
        assert found == wanted
        cache.advance()
        start += time
        held = cache.get(0)[0].data[0, 0, :, 0]
        assert held.tolist() == list(range(max(0, start - window), start))


def test_a_window_bounds_the_memory(rng):
    cache = KVCache(BATCH, 1000, 1, HEADS, WIDTH, window=4)
    assert cache.get_memory_usage()["total_elements"] == 2 * BATCH * HEADS * 4 * WIDTH
    for _ in range(50):
        keys, _ = cache.update(0, *drawn(rng, 1))
        assert keys.shape[2] <= 4
        cache.advance()
    assert cache.seq_pos == 50


def test_a_window_is_full_at_the_longest_sequence(rng):
    cache = KVCache(BATCH, 6, 1, HEADS, WIDTH, window=2)
    cache.update(0, *drawn(rng, 6))
    cache.advance()
    with pytest.raises(CacheFullError, match="at position 6 of 6, no room for 1 more"):
        cache.update(0, *drawn(rng, 1))


def test_a_grown_window_goes_on_where_it_was():
    cache = KVCache(1, 7, 1, 1, 2, window=3)
    cache.update(0, numbered(0, 5), numbered(0, 5))
    cache.advance()
    twin = cache.grown(20)
    assert visible_to(twin, 0, numbered(5, 3), numbered(5, 3)) == [[3, 4, 5], [4, 5, 6], [5, 6, 7]]


def test_a_window_that_was_cut_by_a_short_cache_grows_to_its_size():
    cache = KVCache(1, 2, 1, 1, 2, window=4)
    cache.update(0, numbered(0, 2), numbered(0, 2))
    cache.advance()
    twin = cache.grown(9)
    assert twin.slots == 4
    assert visible_to(twin, 0, numbered(2, 3), numbered(2, 3)) == [
        [0, 1, 2],
        [0, 1, 2, 3],
        [1, 2, 3, 4],
    ]


def test_a_pass_that_was_interrupted_gives_no_wrong_past():
    cache = KVCache(1, 20, 2, 1, 2, window=3)
    for layer in range(2):
        cache.update(layer, numbered(0, 3), numbered(0, 3))
    cache.advance()
    cache.update(0, numbered(3, 2), numbered(3, 2))  # and then something raises
    for time in (1, 2):
        with pytest.raises(SettingError, match=r"after an interrupted pass reset\(\) the cache"):
            cache.update(0, numbered(3, time), numbered(3, time))
    cache.reset()
    assert visible_to(cache, 0, numbered(0, 2), numbered(0, 2)) == [[0], [0, 1]]


def test_one_token_may_be_written_again_before_advance():
    cache = KVCache(1, 20, 1, 1, 2, window=3)
    cache.update(0, numbered(0, 4), numbered(0, 4))
    cache.advance()
    for _ in range(2):
        assert visible_to(cache, 0, numbered(4, 1), numbered(4, 1)) == [[2, 3, 4]]


def test_a_window_of_no_token_is_an_error():
    with pytest.raises(SettingError, match="a window must be at least 1 token, got 0"):
        KVCache(1, 4, 1, 1, 2, window=0)


# ---------------------------------------------------------------- padding


def test_without_padding_and_window_there_is_no_mask(rng):
    cache = KVCache(BATCH, 10, 1, HEADS, WIDTH)
    cache.reset([0, 0])
    assert cache.padding is None
    for time in (3, 1, 2):
        assert cache.mask(time) is None
        cache.update(0, *drawn(rng, time))
        cache.advance()


def test_padding_is_hidden_per_row_from_every_token(rng):
    cache = KVCache(BATCH, 10, 1, HEADS, WIDTH)
    cache.reset([2, 0])
    for time in (4, 1, 3):
        mask = cache.mask(time)
        stop = cache.seq_pos + time
        assert mask.dtype == np.float32
        wanted = np.zeros((BATCH, 1, 1, stop))
        wanted[0, ..., :2] = -np.inf
        np.testing.assert_array_equal(np.broadcast_to(mask, wanted.shape), wanted)
        assert cache.mask(time) is mask  # made once for all layers
        cache.update(0, *drawn(rng, time))
        cache.advance()
    cache.reset()
    assert cache.mask(3) is None


def test_padding_that_has_left_the_window_needs_no_mask():
    cache = KVCache(1, 20, 1, 1, 2, window=3)
    cache.reset([2])
    cache.update(0, numbered(0, 4), numbered(0, 4))
    cache.advance()
    assert cache.mask(1) is None  # sees 2, 3 and 4


@pytest.mark.parametrize("padding", [[1], [1, 2, 3], [-1, 0], [0.5, 1.0], 3])
def test_padding_that_does_not_fit_the_batch_is_an_error_that_shows_it(padding):
    with pytest.raises(SettingError, match="one number of empty positions for each of the 2 rows"):
        KVCache(BATCH, 10, 1, HEADS, WIDTH).reset(padding)


def test_a_grown_cache_keeps_its_padding():
    cache = KVCache(2, 4, 1, 1, 2)
    cache.reset([1, 0])
    twin = cache.grown(8)
    np.testing.assert_array_equal(twin.padding, [1, 0])
