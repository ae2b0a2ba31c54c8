"""Compute once, look up later: the key-value cache of attention, and results of pure functions."""

from tinytorch.core.kv_cache import KVCache
from tinytorch.perf.memoization.attached_cache import disable_kv_cache, enable_kv_cache
from tinytorch.perf.memoization.cached_attention import CachedMultiHeadAttention
from tinytorch.perf.memoization.divergence import Divergence
from tinytorch.perf.memoization.measuring import measure_cache_tradeoff
from tinytorch.perf.memoization.memoized import MemoStatistics, memoize
from tinytorch.perf.memoization.static_generation import (
    StaticGeneration,
    generation_call,
    static_generator,
)
from tinytorch.perf.memoization.tradeoff import CachePoint, CacheTradeoff

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
