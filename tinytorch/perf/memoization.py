"""Caching: the key-value cache of attention, and results of pure functions."""

from tinytorch.core.kv_cache import KVCache
from tinytorch.transforms.kv_cache import (
    CachedMultiHeadAttention,
    CachePoint,
    CacheTradeoff,
    disable_kv_cache,
    enable_kv_cache,
    measure_cache_tradeoff,
)
from tinytorch.transforms.memoize import MemoStatistics, memoize
from tinytorch.transforms.static_generation import (
    Divergence,
    StaticGeneration,
    generation_call,
    static_generator,
)

__all__ = [
    "CachePoint",
    "CacheTradeoff",
    "CachedMultiHeadAttention",
    "Divergence",
    "KVCache",
    "MemoStatistics",
    "StaticGeneration",
    "disable_kv_cache",
    "enable_kv_cache",
    "generation_call",
    "measure_cache_tradeoff",
    "memoize",
    "static_generator",
]
