"""Attention: every position mixes the values of the positions that it may see."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinytorch.core.autograd import no_grad
from tinytorch.core.backends import Array
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.layers import Linear, Seed
from tinytorch.core.module import Module, entry_point
from tinytorch.core.operations import products
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import SettingError, ShapeError

__all__ = ["KVCache", "MultiHeadAttention", "scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Any = None, *, causal: bool = False
) -> Tensor:
    """Give softmax(query key^T / sqrt(d) + mask) value for (..., time, d) tensors.

    A mask broadcasts to (..., queries, keys). True, or 1, means *may look*, False, or 0, *may not*.
    Other numbers, and floats that are all 0, are added to the scores. With `causal`, the last query
    sees every key, the one before it all but the last, and so on. A query that may see nothing
    gives zeros.
    """
    if (
        min(query.ndim, key.ndim, value.ndim) < 2
        or query.shape[-1] != key.shape[-1]
        or key.shape[-2] != value.shape[-2]
    ):
        raise ShapeError(
            f"attention needs query (..., queries, d), key (..., keys, d), value (..., keys, e); "
            f"got {query.shape}, {key.shape}, {value.shape}"
        )
    bias = None
    if mask is not None:
        bias = _additive(mask, query.dtype)
        _check_mask(bias, (*query.shape[:-1], key.shape[-2]))
    scale = 1 / math.sqrt(query.shape[-1])
    return apply(products.Attention(bias, scale, causal), query, key, value)


def _additive(mask: Any, dtype: np.dtype[Any]) -> Array:
    """Turn a mask into numbers (..., queries, keys) to add to the scores."""
    if isinstance(mask, Tensor) and mask.requires_grad:
        raise SettingError("a mask has no gradient here; add a learned bias to the scores yourself")
    array = np.atleast_2d(_raw(mask))
    is_binary = bool(((array == 0) | (array == 1)).all())
    # floats that are all 0 add nothing; as a mask they would hide everything
    if not is_binary or (array.dtype.kind == "f" and not array.any()):
        return array.astype(dtype, copy=False)
    return np.where(array.astype(bool), 0, -np.inf).astype(dtype)


def _check_mask(bias: Array, scores: tuple[int, ...]) -> None:
    """Raise unless a mask broadcasts to the scores without making them larger."""
    pairs = zip(reversed(bias.shape), reversed(scores), strict=False)
    if bias.ndim > len(scores) or any(size not in (1, wanted) for size, wanted in pairs):
        raise ShapeError(f"a mask {bias.shape} does not fit scores (..., queries, keys) {scores}")


class MultiHeadAttention(Module):
    """Self-attention with several heads over x (batch, time, embed_dim) or (time, embed_dim)."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        causal: bool = False,
        bias: bool = True,
        rng: Seed = None,
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise SettingError(f"embed_dim={embed_dim} must be a multiple of num_heads={num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.causal = causal
        rng = np.random.default_rng(rng)
        self.q_proj = Linear(embed_dim, embed_dim, bias, rng=rng)
        self.k_proj = Linear(embed_dim, embed_dim, bias, rng=rng)
        self.v_proj = Linear(embed_dim, embed_dim, bias, rng=rng)
        self.out_proj = Linear(embed_dim, embed_dim, bias, rng=rng)

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        """Attend; a mask is (time, time), (batch, time, time) or (batch, heads, time, time)."""
        self._check_input(x)
        if mask is not None and np.ndim(_raw(mask)) == 3:
            mask = _raw(mask)[:, None]  # the same for every head
        query, key, value = (
            self._split(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = scaled_dot_product_attention(query, key, value, mask, causal=self.causal)
        return self.out_proj(self._merge(mixed))

    @entry_point
    def forward_with_cache(
        self, x: Tensor, cache: KVCache | None = None, layer_idx: int | None = None
    ) -> tuple[Tensor, KVCache]:
        """Attend from new tokens to themselves and the past, causally and without a graph.

        On its own (no `layer_idx`) the layer uses a cache of one layer, makes one if there is
        none, lets it grow, and advances it. Inside a model, the model advances the cache.
        """
        self._check_input(x)
        batched = x if x.ndim == 3 else x.reshape(1, *x.shape)
        batch, time = batched.shape[:2]
        if cache is None:
            cache = KVCache(
                batch, max(64, 2 * time), 1, self.num_heads, self.head_dim, dtype=x.dtype
            )
        if layer_idx is None and cache.seq_pos + time > cache.max_seq_len:
            cache = cache.grown(2 * (cache.seq_pos + time))
        with no_grad():
            query = self._split(self.q_proj(batched))
            key, value = cache.update(
                layer_idx or 0,
                self._split(self.k_proj(batched)),
                self._split(self.v_proj(batched)),
            )
            mixed = scaled_dot_product_attention(query, key, value, causal=True)
            result = self.out_proj(self._merge(mixed))
        if layer_idx is None:
            cache.advance()
        return result.reshape(*x.shape), cache

    def _check_input(self, x: Tensor) -> None:
        if x.ndim not in (2, 3) or x.shape[-1] != self.embed_dim:
            raise ShapeError(
                f"MultiHeadAttention({self.extra_repr()}) needs (batch, time, {self.embed_dim}), "
                f"got {x.shape}"
            )

    def _split(self, x: Tensor) -> Tensor:
        """(..., time, embed_dim) -> (..., heads, time, head_dim)"""
        parts = x.reshape(*x.shape[:-1], self.num_heads, self.head_dim)
        return parts.transpose(-3, -2)

    def _merge(self, x: Tensor) -> Tensor:
        """(..., heads, time, head_dim) -> (..., time, embed_dim)"""
        parts = x.transpose(-3, -2)
        return parts.reshape(*parts.shape[:-2], self.embed_dim)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}" + (", causal=True" if self.causal else "")


def _raw(mask: Any) -> Array:
    return mask.data if isinstance(mask, Tensor) else np.asarray(mask)
