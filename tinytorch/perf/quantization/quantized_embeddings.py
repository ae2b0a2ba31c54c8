"""Quantized tables of tokens and positions: a byte for each number, and a scale for each row."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.dispatch import run
from tinytorch.core.embeddings import Embedding, PositionalEmbedding, position_rows, token_ids
from tinytorch.core.tensor import Tensor
from tinytorch.formats.affine import QuantizedArray, Scheme, quantize_array
from tinytorch.perf.quantization.packed_weight import PackedWeight, pack_weight, quantize_weight
from tinytorch.perf.quantization.quantized_layer import QuantizedLayer, check_kind

__all__ = ["QuantizedEmbedding", "QuantizedPositionalEmbedding"]


class QuantizedEmbedding(QuantizedLayer):
    """A table of INT8 vectors, looked up by token id.

    The table is held as the matrix (embedding_dim, tokens), so that the output layer of a language
    model can multiply with the same bytes.
    """

    def __init__(self, embedding: Embedding) -> None:
        check_kind(self, embedding, Embedding)
        table = embedding.weight.data
        self._fill(pack_weight(quantize_weight(table.T)), original_bytes=table.nbytes)
        self.training = embedding.training

    @classmethod
    def of(cls, packed: PackedWeight, *, original_bytes: int) -> Self:
        """Make one of a packed table, which the output layer may hold as well."""
        layer = cls.__new__(cls)
        layer._fill(packed, original_bytes=original_bytes)
        return layer

    def _fill(self, packed: PackedWeight, *, original_bytes: int) -> None:
        self.embedding_dim, self.num_embeddings = packed.shape
        self.values, self.scales = packed.values, packed.scales
        self.weight_size = self.embedding_dim * self.num_embeddings
        self.original_bytes = original_bytes

    @property
    def packed(self) -> PackedWeight:
        """The table, in tensors that another layer can share."""
        shape = (self.embedding_dim, self.num_embeddings)
        return PackedWeight(self.values, self.scales, shape, bits=8, group_size=None)

    def forward(self, tokens: Any) -> Tensor:
        ids = token_ids(tokens, self.num_embeddings)
        rows = run(
            "int8_embedding", ids, self.values.data, self.scales.data, width=self.embedding_dim
        )
        return Tensor(rows)

    @property
    def weight(self) -> Tensor:
        """The table (tokens, embedding_dim) as floats, made anew each time: nobody holds it."""
        return Tensor(self.packed.unpacked().dequantize().T)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, bits=8"


class QuantizedPositionalEmbedding(QuantizedLayer):
    """An INT8 vector per position, added to x (..., time, embed_dim)."""

    def __init__(self, embedding: PositionalEmbedding) -> None:
        check_kind(self, embedding, PositionalEmbedding)
        table = embedding.weight.data
        self._fill(quantize_array(table, POSITION_SCHEME), original_bytes=table.nbytes)
        self.training = embedding.training

    @classmethod
    def of(cls, quantized: QuantizedArray, *, original_bytes: int) -> Self:
        """Make one of a quantized table (positions, embed_dim)."""
        layer = cls.__new__(cls)
        layer._fill(quantized, original_bytes=original_bytes)
        return layer

    def _fill(self, quantized: QuantizedArray, *, original_bytes: int) -> None:
        self.values, self.scales = Tensor(quantized.values), Tensor(quantized.scale)
        self.weight_size = quantized.values.size
        self.original_bytes = original_bytes

    def forward(self, x: Tensor, start: int = 0, padding: Array | None = None) -> Tensor:
        """Add the vectors of the positions from `start` on; `padding` as for float positions."""
        rows = position_rows(self, self.values, x, start, padding)
        return x + Tensor(self.values.data[rows] * self.scales.data[rows][..., None])

    def unpacked(self) -> QuantizedArray:
        """Give the table as it is written to a file."""
        zero_point = np.zeros(self.scales.shape, np.int32)
        return QuantizedArray(self.values.data, self.scales.data, zero_point, POSITION_SCHEME)

    @property
    def weight(self) -> Tensor:
        """The table (positions, embed_dim) as floats, made anew each time: nobody holds it."""
        return Tensor(self.unpacked().dequantize())

    def extra_repr(self) -> str:
        return "{}, {}, bits=8".format(*self.values.shape)


POSITION_SCHEME = Scheme(bits=8, symmetric=True, axis=0)
