"""The key-value cache: what goes in comes out, and nothing more fits than fits."""

import numpy as np
import pytest

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
