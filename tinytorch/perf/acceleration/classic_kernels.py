"""The classic demonstrations on tensors, with gradients: vectorised, tiled, fused, not fused."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.dispatch import run
from tinytorch.core.operations import activations, products
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import SettingError, ShapeError

__all__ = ["fused_gelu", "tiled_matmul", "unfused_gelu", "vectorized_matmul"]

GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715


def vectorized_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Give a @ b in one call of the active backend's matrix product.

    >>> vectorized_matmul(Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]]))
    Tensor([[11.]])
    """
    return apply(products.Matmul(), _tensor(a), _tensor(b))


def tiled_matmul(a: Tensor, b: Tensor, tile_size: int = 64) -> Tensor:
    """Give a @ b as a sum of products of tiles, `tile_size` rows and columns each.

    Three loops over rows, columns and the axis that is summed; tiles at the edges are smaller.
    Vectors, matrices and stacks of matrices that broadcast are all fine. A tile is meant to fit
    into a cache. NumPy's own product is tiled already, and better, so this shows how it is done
    rather than being faster.
    """
    try:
        size = operator.index(tile_size)
    except TypeError:
        size = 0
    if size < 1 or isinstance(tile_size, bool):
        raise SettingError(f"tile_size must be a whole number of at least 1, got {tile_size!r}")
    return apply(_TiledMatmul(size), _tensor(a), _tensor(b))


def fused_gelu(x: Tensor) -> Tensor:
    """Give GELU (tanh form) in one kernel: x is read once and the result written once."""
    return apply(activations.GELU("tanh"), _tensor(x))


def unfused_gelu(x: Tensor) -> Tensor:
    """Give the same as a chain of eight elementwise operations.

    Each of them reads and writes a whole array, which is what fusing saves.
    """
    x = _tensor(x)
    inner = (x + x**3 * GELU_CUBIC) * GELU_SCALE
    return x * 0.5 * (apply(activations.Tanh(), inner) + 1)


class _TiledMatmul(products.Matmul):
    """A matrix product by tiles; its derivative is that of every matrix product."""

    def __init__(self, tile_size: int) -> None:
        self.tile_size = tile_size

    def forward(self, a: Array, b: Array) -> Array:
        self.saved = a, b
        rows = a[None, :] if a.ndim == 1 else a
        columns = b[:, None] if b.ndim == 1 else b
        stack = _common_stack(a, b)
        result = self._product(rows, columns, stack)
        if a.ndim == 1:
            result = result[..., 0, :]
        return result[..., 0] if b.ndim == 1 else result

    def _product(self, a: Array, b: Array, stack: tuple[int, ...]) -> Array:
        """(..., rows, inner) times (..., inner, columns)"""
        shape = (*stack, a.shape[-2], b.shape[-1])
        result = np.zeros(shape, np.result_type(a.dtype, b.dtype))
        for row in self._tiles(shape[-2]):
            for column in self._tiles(shape[-1]):
                total = result[..., row, column]
                for inner in self._tiles(a.shape[-1]):
                    total += run("matmul", a[..., row, inner], b[..., inner, column])
        return result

    def _tiles(self, length: int) -> Iterator[slice]:
        for start in range(0, length, self.tile_size):
            yield slice(start, min(start + self.tile_size, length))


def _common_stack(a: Array, b: Array) -> tuple[int, ...]:
    """Check the shapes as a matrix product does, and give the axes before the last two."""
    problem = None
    inner = b.shape[0 if b.ndim == 1 else -2] if b.ndim else None
    if not a.ndim or not b.ndim:
        problem = "numbers have no matrix product; use *"
    elif a.shape[-1] != inner:
        problem = "the last axis of the first must be as long as the last but one of the second"
    else:
        try:
            return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            problem = "the axes before the last two must broadcast"
    raise ShapeError(f"tiled_matmul cannot use shapes {a.shape} and {b.shape}: {problem}")


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(value)
