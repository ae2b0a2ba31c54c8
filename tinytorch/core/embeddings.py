"""Token and position embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.layers import Seed
from tinytorch.core.module import Module
from tinytorch.core.operations import shaping
from tinytorch.core.tensor import Parameter, Tensor, apply
from tinytorch.errors import SettingError, ShapeError, TokenError

__all__ = ["Embedding", "PositionalEmbedding", "SinusoidalEncoding", "token_ids"]


def token_ids(tokens: Any, vocab_size: int) -> Array:
    """Check tokens and give them as integers; floats are accepted when they are whole numbers."""
    try:
        array = tokens.data if isinstance(tokens, Tensor) else np.asarray(tokens)
    except ValueError as error:
        raise ShapeError(f"rows of token ids must have equal lengths: {error}") from error
    if array.dtype.kind not in "iu":
        if array.dtype.kind not in "fb":
            raise TokenError(f"token ids must be integers, got {array.dtype}")
        with np.errstate(invalid="ignore"):
            whole = array.astype(np.int64)
        if not np.array_equal(whole, array):
            wrong = array[whole != array].flat[0]
            raise TokenError(f"token ids must be whole numbers, got {wrong}")
        array = whole
    if array.size and (array.min() < 0 or array.max() >= vocab_size):
        wrong = array[(array < 0) | (array >= vocab_size)].flat[0]
        raise TokenError(f"token id {wrong} is outside of the vocabulary 0..{vocab_size - 1}")
    return array


class Embedding(Module):
    """A table of vectors, looked up by token id."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *, rng: Seed = None) -> None:
        _check_sizes(self, num_embeddings, embedding_dim)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        draw = np.random.default_rng(rng).standard_normal((num_embeddings, embedding_dim))
        self.weight = Parameter((0.02 * draw).astype(np.float32))

    def forward(self, tokens: Any) -> Tensor:
        ids = token_ids(tokens, self.num_embeddings)
        return apply(shaping.Embedding(ids), self.weight)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


class PositionalEmbedding(Module):
    """A learned vector per position, added to x (..., time, embed_dim)."""

    def __init__(self, max_seq_len: int, embed_dim: int, *, rng: Seed = None) -> None:
        _check_sizes(self, max_seq_len, embed_dim)
        draw = np.random.default_rng(rng).standard_normal((max_seq_len, embed_dim))
        self.weight = Parameter((0.02 * draw).astype(np.float32))

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Add the vectors of the positions from `start` on."""
        return x + self.weight[_positions(self, self.weight, x, start)]

    def extra_repr(self) -> str:
        return "{}, {}".format(*self.weight.shape)


class SinusoidalEncoding(Module):
    """Fixed sines and cosines of falling frequency per position (Vaswani et al., 2017)."""

    def __init__(self, max_seq_len: int, embed_dim: int) -> None:
        _check_sizes(self, max_seq_len, embed_dim)
        position = np.arange(max_seq_len)[:, None]
        pair = np.arange(embed_dim) // 2
        angle = position / 10000.0 ** (2 * pair / embed_dim)  # (time, embed_dim)
        waves = np.where(np.arange(embed_dim) % 2 == 0, np.sin(angle), np.cos(angle))
        self.table = Tensor(waves.astype(np.float32))

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Add the waves of the positions from `start` on."""
        return x + self.table[_positions(self, self.table, x, start)]

    def extra_repr(self) -> str:
        return "{}, {}".format(*self.table.shape)


def _check_sizes(layer: Module, rows: int, width: int) -> None:
    if rows < 1 or width < 1:
        raise SettingError(f"{type(layer).__name__} needs sizes of at least 1, got {rows, width}")


def _positions(layer: Module, table: Tensor, x: Tensor, start: int) -> slice:
    if x.ndim < 2 or x.shape[-1] != table.shape[1]:
        raise ShapeError(f"{layer!r} needs (..., time, {table.shape[1]}), got {x.shape}")
    stop = start + x.shape[-2]
    if stop > len(table):
        raise ShapeError(f"{layer!r} has {len(table)} positions, the sequence needs {stop}")
    return slice(start, stop)
