"""Llama and its kin: rotary positions, RMS norm, grouped queries and a gated MLP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from tinytorch.core import operations
from tinytorch.core.activations import SiLU
from tinytorch.core.attention import scaled_dot_product_attention
from tinytorch.core.decoding import BlockParts
from tinytorch.core.dispatch import run
from tinytorch.core.embeddings import Embedding
from tinytorch.core.kernels import Array
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.language_model import LanguageModel, TiedHead
from tinytorch.core.layers import Linear, Seed
from tinytorch.core.llama_checkpoints import read_llama
from tinytorch.core.module import Module, check_floating_point, entry_point
from tinytorch.core.tensor import Parameter, Tensor, apply
from tinytorch.errors import CheckpointError, SettingError, ShapeError

__all__ = [
    "GatedMLP",
    "GroupedQueryAttention",
    "Llama",
    "LlamaBlock",
    "RMSNorm",
    "RotaryEmbedding",
]


class RMSNorm(Module):
    """Divide the last axis by its root mean square, then scale (Zhang and Sennrich, 2019)."""

    def __init__(self, normalized_shape: int, eps: float = 1e-6) -> None:
        if normalized_shape < 1:
            raise SettingError(f"RMSNorm needs a width of at least 1, got {normalized_shape}")
        self.normalized_shape = normalized_shape
        self.eps = eps
        self.weight = Parameter(np.ones(normalized_shape, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        if x.data.ndim == 0 or x.data.shape[-1] != self.normalized_shape:
            raise ShapeError(f"{self!r} needs input (..., {self.normalized_shape}), got {x.shape}")
        return apply(operations.RMSNorm(self.eps), x, self.weight)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class RotaryEmbedding(Module):
    """Rotate pairs of elements by angles that grow with the position (Su et al., 2021).

    Element j of a head is paired with element j + `head_dim` / 2, as in `transformers`. `scaling`
    stretches positions beyond those of training: its `rope_type` is `linear` (with `factor`) or
    `llama3` (with `factor`, `low_freq_factor`, `high_freq_factor` and
    `original_max_position_embeddings`).
    """

    def __init__(
        self,
        head_dim: int,
        max_seq_len: int,
        theta: float = 10000.0,
        scaling: Mapping[str, Any] | None = None,
    ) -> None:
        if head_dim < 2 or head_dim % 2 or max_seq_len < 1:
            raise SettingError(
                f"RotaryEmbedding needs an even width of heads and at least one position, "
                f"got {head_dim=}, {max_seq_len=}"
            )
        self.head_dim = head_dim
        self.max_seq_len = max_seq_len
        self.theta = theta
        frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
        self.frequencies = _scaled(frequencies, {} if scaling is None else scaling)
        self._waves = self._make_waves(1)  # of as many positions as were seen

    def forward(self, x: Tensor, start: int = 0, padding: Array | None = None) -> Tensor:
        """Rotate x (..., time, head_dim) at the positions from `start` on.

        `padding` (batch,) is the number of padding tokens at the left of each row.
        """
        return apply(operations.Rotary(*self.tables(x.data, start, padding)), x)

    def tables(self, x: Array, start: int, padding: Array | None) -> tuple[Array, Array]:
        """Return the cosines and sines for x, in its dtype, such that they broadcast."""
        if x.ndim < 2 or x.shape[-1] != self.head_dim:
            raise ShapeError(f"{self!r} needs (..., time, {self.head_dim}), got {x.shape}")
        stop = start + x.shape[-2]
        if stop > self.max_seq_len:
            raise ShapeError(
                f"{self!r} has {self.max_seq_len} positions, the sequence needs {stop}"
            )
        waves = self._waves  # another thread may exchange them for fewer
        if len(waves[0]) < stop:
            waves = self._waves = self._make_waves(min(self.max_seq_len, 2 * stop))
        rows: slice | Array = slice(start, stop)
        if padding is not None:
            places = np.maximum(np.arange(start, stop) - padding[:, None], 0)  # (batch, time)
            rows = places.reshape(len(places), *(1,) * (x.ndim - 3), -1)
        cosines, sines = waves
        return cosines[rows].astype(x.dtype), sines[rows].astype(x.dtype)

    def _make_waves(self, count: int) -> tuple[Array, Array]:
        angles = np.arange(count)[:, None] * self.frequencies  # (time, head_dim / 2)
        return np.cos(angles), np.sin(angles)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, {self.max_seq_len}, theta={self.theta:g}"


SCALES = (
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
)  # fmt: skip


def _scaled(frequencies: Array, scaling: Mapping[str, Any]) -> Array:
    """Return frequencies for positions beyond those of training."""
    kind = scaling.get("rope_type", "default")
    if kind == "default":
        return frequencies
    if kind not in ("linear", "llama3"):
        raise SettingError(f"rope_type {kind!r} is not one of 'default', 'linear', 'llama3'")
    names = ("factor",) if kind == "linear" else SCALES
    for name in names:
        given = scaling.get(name)
        if not isinstance(given, (int, float)) or not 0 < given < math.inf:
            raise SettingError(f"rope_type {kind!r} needs a {name} above 0, got {given!r}")
    if kind == "linear":
        return frequencies / scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)  # of what is left as it is
    return share * frequencies + (1 - share) * frequencies / scaling["factor"]


class GroupedQueryAttention(Module):
    """Causal self-attention in which groups of query heads share a head of keys and values.

    With `qk_norm`, queries and keys pass through an RMS norm of their own, as in Qwen3.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        rotary: RotaryEmbedding,
        *,
        bias: bool = False,
        out_bias: bool | None = None,
        qk_norm: float | None = None,
        rng: Seed = None,
    ) -> None:
        if min(num_heads, num_kv_heads) < 1 or num_heads % num_kv_heads:
            raise SettingError(f"{num_heads=} must be a multiple of {num_kv_heads=}")
        rng = np.random.default_rng(rng)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = rotary.head_dim
        self.rotary = rotary
        width, kv_width = num_heads * self.head_dim, num_kv_heads * self.head_dim
        self.q_proj = Linear(embed_dim, width, bias, rng=rng)
        self.k_proj = Linear(embed_dim, kv_width, bias, rng=rng)
        self.v_proj = Linear(embed_dim, kv_width, bias, rng=rng)
        self.out_proj = Linear(width, embed_dim, bias if out_bias is None else out_bias, rng=rng)
        self.q_norm = None if qk_norm is None else RMSNorm(self.head_dim, qk_norm)
        self.k_norm = None if qk_norm is None else RMSNorm(self.head_dim, qk_norm)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._project(x)
        query = query.reshape(*self._grouped(query.shape))
        key, value = (each.reshape(*_with_group(each.shape)) for each in (key, value))
        mixed = scaled_dot_product_attention(query, key, value, causal=True)
        return self.out_proj(_merged(mixed.reshape(len(x), self.num_heads, *mixed.shape[-2:])))

    @entry_point
    def forward_with_cache(self, x: Tensor, cache: KVCache, layer_idx: int) -> Tensor:
        """Attend from new tokens (batch, time, embed_dim) to themselves and the past."""
        query, key, value = self._project(x, cache.seq_pos, cache.padding)
        time = x.shape[1]
        bias = None if time == 1 and cache.padding is None else cache.mask(time)
        keys, values = cache.extend(layer_idx, key.data, value.data)
        if time == 1:  # the queries of a group see the same keys
            grouped = query.data.reshape(len(x), self.num_kv_heads, -1, self.head_dim)
        else:
            grouped = query.data.reshape(self._grouped(query.shape))
            keys, values = keys[:, :, None], values[:, :, None]
            bias = None if bias is None else bias[:, :, None]
        mixed, _ = run(
            "attention",
            grouped,
            keys,
            values,
            bias,
            scale=1 / math.sqrt(self.head_dim),
            causal=time > 1,
            keep_weights=False,
        )
        heads = run("reshape", mixed, shape=(len(x), self.num_heads, time, self.head_dim))
        return self.out_proj(_merged(Tensor(heads)))

    def _project(
        self, x: Tensor, start: int = 0, padding: Array | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (batch, heads, time, head_dim), the first two rotated."""
        if x.ndim != 3 or x.shape[-1] != self.embed_dim:
            raise ShapeError(f"{self!r} needs (batch, time, {self.embed_dim}), got {x.shape}")
        query, key, value = (
            each.reshape(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
            for each in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        return self.rotary(query, start, padding), self.rotary(key, start, padding), value

    def _grouped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(batch, heads, time, head_dim) -> (batch, kv_heads, group, time, head_dim)"""
        return (shape[0], self.num_kv_heads, self.num_heads // self.num_kv_heads, *shape[2:])

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, {self.num_kv_heads}"


def _with_group(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], 1, *shape[2:])


def _merged(x: Tensor) -> Tensor:
    """(batch, heads, time, head_dim) -> (batch, time, heads * head_dim)"""
    parts = x.transpose(1, 2)
    return parts.reshape(*parts.shape[:2], -1)


class GatedMLP(Module):
    """down(silu(gate(x)) * up(x)), also called SwiGLU (Shazeer, 2020)."""

    def __init__(
        self, embed_dim: int, hidden_dim: int, *, bias: bool = False, rng: Seed = None
    ) -> None:
        rng = np.random.default_rng(rng)
        self.gate_proj = Linear(embed_dim, hidden_dim, bias, rng=rng)
        self.up_proj = Linear(embed_dim, hidden_dim, bias, rng=rng)
        self.down_proj = Linear(hidden_dim, embed_dim, bias, rng=rng)
        self.activation = SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(Module):
    """Pre-norm block: attention, then a gated feed-forward network, each with a residual."""

    def __init__(
        self, attention: GroupedQueryAttention, mlp: GatedMLP, *, eps: float = 1e-6
    ) -> None:
        self.norm1 = RMSNorm(attention.embed_dim, eps)
        self.attention = attention
        self.norm2 = RMSNorm(attention.embed_dim, eps)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    @entry_point
    def forward_with_cache(self, x: Tensor, cache: KVCache, layer_idx: int) -> Tensor:
        x = x + self.attention.forward_with_cache(self.norm1(x), cache, layer_idx)
        return x + self.mlp(self.norm2(x))

    def parts(self) -> BlockParts | None:
        """Return what one new token passes through, or None if it is not of the usual layers."""
        attention, mlp = self.attention, self.mlp
        head_norms = (attention.q_norm, attention.k_norm)
        norms = (self.norm1, self.norm2)
        others = (attention, attention.rotary, mlp, mlp.activation)
        products = (
            attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj,
            mlp.up_proj, mlp.gate_proj, mlp.down_proj,
        )  # fmt: skip
        if tuple(map(type, others)) != (GroupedQueryAttention, RotaryEmbedding, GatedMLP, SiLU):
            return None
        if any(type(norm) not in (RMSNorm, type(None)) for norm in (*norms, *head_norms)):
            return None
        return BlockParts(
            norms=norms,
            products=products,
            activation=None,
            heads=attention.num_heads,
            kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            head_norms=head_norms,
            rotary=attention.rotary,
            others=others,
        )


class Llama(LanguageModel):
    """A Llama-style language model: token ids (batch, time) -> logits (batch, time, vocabulary).

    `num_kv_heads` heads of keys and values serve `num_heads` of queries. With `tied`, the token
    embedding is also the output matrix. `bias` is of queries, keys and values.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        num_layers: int,
        num_heads: int,
        max_seq_len: int = 2048,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        hidden_dim: int | None = None,
        eps: float = 1e-6,
        theta: float = 10000.0,
        scaling: Mapping[str, Any] | None = None,
        tied: bool = False,
        bias: bool = False,
        out_bias: bool | None = None,
        mlp_bias: bool = False,
        qk_norm: bool = False,
        rng: Seed = None,
    ) -> None:
        sizes = (vocab_size, embed_dim, num_layers, num_heads, max_seq_len)
        if min(sizes) < 1:
            raise SettingError(f"every size of a Llama must be at least 1, got {sizes}")
        if head_dim is None and embed_dim % num_heads:
            raise SettingError(f"{embed_dim=} must be a multiple of {num_heads=}; or give head_dim")
        rng = np.random.default_rng(rng)
        self.vocab_size = vocab_size
        self.embed_dim = embed_dim
        self.max_seq_len = max_seq_len
        self.rotary = RotaryEmbedding(
            head_dim or embed_dim // num_heads, max_seq_len, theta, scaling
        )
        self.token_embedding = Embedding(vocab_size, embed_dim, rng=rng)
        self.blocks = [
            LlamaBlock(
                GroupedQueryAttention(
                    embed_dim,
                    num_heads,
                    num_heads if num_kv_heads is None else num_kv_heads,
                    self.rotary,
                    bias=bias,
                    out_bias=out_bias,
                    qk_norm=eps if qk_norm else None,
                    rng=rng,
                ),
                GatedMLP(embed_dim, hidden_dim or 4 * embed_dim, bias=mlp_bias, rng=rng),
                eps=eps,
            )
            for _ in range(num_layers)
        ]
        self.norm = RMSNorm(embed_dim, eps)
        self.head = (
            TiedHead(self.token_embedding)
            if tied
            else Linear(embed_dim, vocab_size, False, rng=rng)
        )

    @property
    def num_kv_heads(self) -> int:
        return int(self.blocks[0].attention.num_kv_heads)

    def embed(self, ids: Array, start: int = 0, padding: Array | None = None) -> Tensor:
        return self.token_embedding(ids)

    @classmethod
    def from_transformers(cls, folder: str | Path) -> Self:
        """Load a checkpoint of Llama, Qwen2 or Qwen3 in the layout that `transformers` writes."""
        settings, state = read_llama(Path(folder))
        model = cls.__new__(cls)
        try:
            Llama.__init__(model, **settings)
            model.load_state_dict(state)
        except (CheckpointError, SettingError) as error:
            raise CheckpointError(f"{folder}: {error}") from error
        return model.eval()

    def extra_repr(self) -> str:
        return f"vocab_size={self.vocab_size}, max_seq_len={self.max_seq_len}"
