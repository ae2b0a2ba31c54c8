"""Token and position embeddings."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from tinytorch.core import operations
from tinytorch.core.kernels import Array
from tinytorch.core.layers import Seed
from tinytorch.core.module import Module
from tinytorch.core.tensor import Parameter, Tensor, apply
from tinytorch.errors import SettingError, ShapeError, TokenError

__all__ = ["CheckedIds", "Embedding", "PositionalEmbedding", "SinusoidalEncoding", "token_ids"]


class CheckedIds(np.ndarray[Any, Any]):
    """Token ids that were validated already: all lie below `limit`.

    Arrays computed from them are not validated, and have no limit.
    """

    limit: int | None = None

    @classmethod
    def of(cls, ids: Array, vocab_size: int) -> Self:
        """Mark integers that were checked, or that were chosen from the vocabulary."""
        checked = ids.view(cls)
        checked.limit = vocab_size
        return checked


def token_ids(tokens: Any, vocab_size: int) -> Array:
    """Check tokens and return them as integers; floats are accepted when integral."""
    if type(tokens) is CheckedIds and tokens.limit is not None and tokens.limit <= vocab_size:
        return tokens.view(np.ndarray)
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
            raise TokenError(f"token ids must be integers, got {wrong}")
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
        return apply(operations.Embedding(ids), self.weight)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


class PositionalEmbedding(Module):
    """A learned vector per position, added to x (..., time, embed_dim)."""

    def __init__(self, max_seq_len: int, embed_dim: int, *, rng: Seed = None) -> None:
        _check_sizes(self, max_seq_len, embed_dim)
        draw = np.random.default_rng(rng).standard_normal((max_seq_len, embed_dim))
        self.weight = Parameter((0.02 * draw).astype(np.float32))

    def forward(self, x: Tensor, start: int = 0, padding: Array | None = None) -> Tensor:
        """Add the vectors of the positions from `start` on.

        `padding` (batch,) is the number of padding tokens at the left of each row; positions
        count from the first token after them.
        """
        return x + self.weight[position_rows(self, self.weight, x, start, padding)]

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

    def forward(self, x: Tensor, start: int = 0, padding: Array | None = None) -> Tensor:
        """Add the waves of the positions from `start` on; `padding` as for learned positions."""
        return x + self.table[position_rows(self, self.table, x, start, padding)]

    def extra_repr(self) -> str:
        return "{}, {}".format(*self.table.shape)


def _check_sizes(layer: Module, rows: int, width: int) -> None:
    if rows < 1 or width < 1:
        raise SettingError(f"{type(layer).__name__} needs sizes of at least 1, got {rows, width}")


def position_rows(
    layer: Module, table: Tensor, x: Tensor, start: int, padding: Array | None
) -> slice | Array:
    """Return the rows of the table to add: the same for all, or (batch, time) of them."""
    shape = x.data.shape
    if len(shape) < 2 or shape[-1] != table.shape[1]:
        raise ShapeError(f"{layer!r} needs (..., time, {table.shape[1]}), got {x.shape}")
    stop = start + shape[-2]
    if stop > len(table):
        raise ShapeError(f"{layer!r} has {len(table)} positions, the sequence needs {stop}")
    if padding is None:
        return slice(start, stop)
    if len(shape) != 3 or len(padding) != shape[0]:
        raise ShapeError(f"padding of {len(padding)} rows does not fit x {shape}")
    return np.maximum(np.arange(start, stop) - padding[:, None], 0)  # empty ones are not seen
