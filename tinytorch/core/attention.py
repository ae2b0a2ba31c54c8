"""Attention: every position mixes the values of the positions that it may see."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from tinytorch.core import operations
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import run, state
from tinytorch.core.kernels import Array
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.layers import Linear, Seed
from tinytorch.core.module import Module, entry_point
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import SettingError, ShapeError

__all__ = ["KVCache", "MultiHeadAttention", "scaled_dot_product_attention"]

KEPT_BANDS = 2
"""Masks of windows that are kept: the layers of a model have one or two, and they may be large."""


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any = None,
    *,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Return softmax(query key^T / sqrt(d) + mask) value for (..., time, d) tensors.

    A mask broadcasts to (..., queries, keys). True, or 1, means *may look*, False, or 0, *may not*.
    Other numbers, and floats that are all 0, are added to the scores. With `causal`, the last query
    sees every key, the one before it all but the last, and so on; with a `window` beside it, none
    but the last `window` of these. A query that may see nothing returns zeros.
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
    if window is not None:
        _check_window(window, causal)
        if key.shape[-2] > window:
            band = _window_bias(query.shape[-2], key.shape[-2], window, query.dtype)
            bias = band if bias is None else bias + band
    scale = 1 / math.sqrt(query.shape[-1])
    return apply(operations.Attention(bias, scale, causal), query, key, value)


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


@lru_cache(KEPT_BANDS)
def _window_bias(queries: int, keys: int, window: int, dtype: np.dtype[Any]) -> Array:
    """Return -inf for the keys (queries, keys) that lie before the window of a causal query."""
    hidden = np.tri(queries, keys, keys - queries - window, dtype=bool)
    band = np.where(hidden, -np.inf, 0).astype(dtype)
    band.flags.writeable = False  # the layers of a model share it
    return band


def _check_window(window: int | None, causal: bool) -> None:
    if window is None:
        return
    if window < 1:
        raise SettingError(f"a window must be at least 1 token, got {window}")
    if not causal:
        raise SettingError(
            f"window={window} is of the tokens before each one, so it needs causal=True"
        )


def _check_mask(bias: Array, scores: tuple[int, ...]) -> None:
    """Raise unless a mask broadcasts to the scores without making them larger."""
    pairs = zip(reversed(bias.shape), reversed(scores), strict=False)
    if bias.ndim > len(scores) or any(size not in (1, wanted) for size, wanted in pairs):
        raise ShapeError(f"a mask {bias.shape} does not fit scores (..., queries, keys) {scores}")


class MultiHeadAttention(Module):
    """Self-attention with several heads over x (batch, time, embed_dim) or (time, embed_dim).

    With a `window` (and `causal`), a token sees itself and the `window` - 1 tokens before it. Heads
    may be removed later: then `num_heads` times `head_dim` is less than `embed_dim`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        causal: bool = False,
        window: int | None = None,
        bias: bool = True,
        rng: Seed = None,
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise SettingError(f"embed_dim={embed_dim} must be a multiple of num_heads={num_heads}")
        _check_window(window, causal)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.causal = causal
        self.window = window
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
        mixed = scaled_dot_product_attention(
            query, key, value, mask, causal=self.causal, window=self.window
        )
        return self.out_proj(self._merge(mixed))

    @entry_point
    def forward_with_cache(
        self, x: Tensor, cache: KVCache | None = None, layer_idx: int | None = None
    ) -> tuple[Tensor, KVCache]:
        """Attend from new tokens to themselves and the past, causally and without a graph.

        On its own (no `layer_idx`) the layer uses a cache of one layer, makes one if there is
        none, lets it grow, and advances it. Inside a model, the model advances the cache.
        """
        is_prepared = not state.grad_enabled and x.data.ndim == 3
        if is_prepared and cache is not None and layer_idx is not None:  # by the model
            return self._attend_to_past(x, cache, layer_idx), cache
        self._check_input(x)
        batched = x if x.ndim == 3 else x.reshape(1, *x.shape)
        if cache is None:
            cache = self._own_cache(*batched.shape[:2], dtype=x.dtype)
        needed = cache.seq_pos + batched.shape[1]
        if layer_idx is None and needed > cache.max_seq_len:
            cache = cache.grown(2 * needed)
        with no_grad():
            result = self._attend_to_past(batched, cache, layer_idx or 0)
        if layer_idx is None:
            cache.advance()
        return result.reshape(*x.shape), cache

    def _own_cache(self, batch: int, time: int, *, dtype: Any) -> KVCache:
        length = max(64, 2 * time)
        return KVCache(
            batch, length, 1, self.num_heads, self.head_dim, dtype=dtype, window=self.window
        )

    def _attend_to_past(self, x: Tensor, cache: KVCache, layer_idx: int) -> Tensor:
        """Attend from (batch, time, embed_dim), on arrays: this runs for every generated token."""
        shape = x.data.shape
        if shape[2] != self.embed_dim:
            self._check_input(x)
        if cache.window != self.window:
            raise SettingError(
                f"the cache has window={cache.window}, the layer window={self.window}; "
                "make the cache with the same window"
            )
        split = (shape[0], shape[1], self.num_heads, self.head_dim)
        query = self.q_proj(x).data.reshape(split).swapaxes(1, 2)  # (batch, heads, time, head_dim)
        key = self.k_proj(x).data.reshape(split).swapaxes(1, 2)
        value = self.v_proj(x).data.reshape(split).swapaxes(1, 2)
        is_single = shape[1] == 1  # which sees all that there is
        bias = None if is_single and cache.padding is None else cache.mask(shape[1])
        keys, values = cache.extend(layer_idx, key, value)
        mixed, _ = run(
            "attention",
            query,
            keys,
            values,
            bias,
            scale=1 / math.sqrt(self.head_dim),
            causal=not is_single,
            keep_weights=False,
        )
        width = self.num_heads * self.head_dim
        merged = Tensor(run("reshape", mixed.swapaxes(1, 2), shape=(*shape[:2], width)))
        return self.out_proj(merged)

    def _check_input(self, x: Tensor) -> None:
        if x.ndim not in (2, 3) or x.shape[-1] != self.embed_dim:
            raise ShapeError(
                f"MultiHeadAttention({self.extra_repr()}) needs (batch, time, {self.embed_dim}), "
                f"got {x.shape}"
            )

    def _split(self, x: Tensor) -> Tensor:
        """(..., time, heads * head_dim) -> (..., heads, time, head_dim)"""
        parts = x.reshape(*x.shape[:-1], self.num_heads, self.head_dim)
        return parts.transpose(-3, -2)

    def _merge(self, x: Tensor) -> Tensor:
        """(..., heads, time, head_dim) -> (..., time, heads * head_dim)"""
        parts = x.transpose(-3, -2)
        return parts.reshape(*parts.shape[:-2], self.num_heads * self.head_dim)

    def extra_repr(self) -> str:
        causal = ", causal=True" if self.causal else ""
        window = "" if self.window is None else f", window={self.window}"
        return f"{self.embed_dim}, {self.num_heads}{causal}{window}"


def _raw(mask: Any) -> Array:
    return mask.data if isinstance(mask, Tensor) else np.asarray(mask)
