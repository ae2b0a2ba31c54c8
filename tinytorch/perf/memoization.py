"""Caching: the key-value cache of attention, and results of pure functions."""

from tinytorch.core.kv_cache import KVCache as KVCache
from tinytorch.transforms.kv_cache import CachedMultiHeadAttention as CachedMultiHeadAttention
from tinytorch.transforms.kv_cache import disable_kv_cache as disable_kv_cache
from tinytorch.transforms.kv_cache import enable_kv_cache as enable_kv_cache
from tinytorch.transforms.memoize import MemoStatistics as MemoStatistics
from tinytorch.transforms.memoize import memoize as memoize
from tinytorch.transforms.static_generation import Divergence as Divergence
from tinytorch.transforms.static_generation import StaticGeneration as StaticGeneration
from tinytorch.transforms.static_generation import generation_call as generation_call
from tinytorch.transforms.static_generation import static_generator as static_generator
