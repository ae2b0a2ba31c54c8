"""The names and behaviours that programs already rely on."""

import numpy as np
import pytest

from tinytorch.core import kv_cache
from tinytorch.core.kv_cache import KVCache


def test_the_cache_is_that_of_the_framework():
    assert KVCache is kv_cache.KVCache


def test_the_cache_works_as_documented(rng):
    cache = KVCache(batch_size=1, max_seq_len=8, num_layers=2, num_heads=2, head_dim=4)
    for layer_idx in range(2):
        cache.update(layer_idx, *rng.standard_normal((2, 1, 2, 3, 4)))
    cache.advance()
    key, value = cache.get(1)
    assert key.shape == value.shape == (1, 2, 3, 4)
    assert cache.seq_pos == 3
    assert set(cache.get_memory_usage()) == {
        "total_mb",
        "per_layer_mb",
        "cache_tensors",
        "total_elements",
    }
    with pytest.raises(ValueError, match="the cache is full: at position 3 of 8"):
        cache.update(0, *np.zeros((2, 1, 2, 6, 4)))
    with pytest.raises(ValueError, match="layer index 2"):
        cache.get(2)
    cache.reset()
    assert cache.seq_pos == 0
