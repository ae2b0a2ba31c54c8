"""Products with sparse weights of the reference backend, in short, obvious NumPy.

A sparse matrix (inputs, outputs) is three arrays: the inputs that matter to output j are
``indices[pointers[j] : pointers[j + 1]]``, in ascending order, and `values` has their weights. What
a zero would meet is not looked at, not even if it is infinite or NaN.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.core.backends.products import matmul
from tinytorch.core.backends.reference_int8 import activate
from tinytorch.errors import ShapeError

__all__ = ["check_sparse", "index_type", "pack_sparse", "sparse_linear", "unpack_sparse"]

MOST_SHORT_INDICES = 1 << 16
LARGEST_INT32 = 2**31 - 1


def sparse_linear(
    x: Array,
    values: Array,
    indices: Array,
    pointers: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    """Give x (..., inputs) times the sparse matrix, plus the bias, through the activation."""
    check_sparse(values, indices, pointers, inputs=x.shape[-1])
    result = np.empty((*x.shape[:-1], pointers.size - 1), np.result_type(x, values))
    for output, (first, last) in enumerate(pairwise(pointers)):
        result[..., output] = matmul(x[..., indices[first:last]], values[first:last])
    return activate(result if bias is None else result + bias, activation)


def check_sparse(values: Array, indices: Array, pointers: Array, *, inputs: int) -> None:
    """Raise unless these three are a sparse matrix with so many inputs."""
    if values.ndim != 1 or values.shape != indices.shape:
        raise ShapeError(
            f"a sparse matrix has one index for each value, got {indices.shape} and {values.shape}"
        )
    if (
        pointers.ndim != 1
        or not pointers.size
        or (pointers[0], pointers[-1]) != (0, values.size)
        or (np.diff(pointers) < 0).any()
    ):
        raise ShapeError(
            f"the pointers of a sparse matrix ascend from 0 to its {values.size} values, got "
            f"{np.array2string(pointers, threshold=8)}"
        )
    if indices.size and not 0 <= indices.min() <= indices.max() < inputs:
        raise ShapeError(
            f"the sparse matrix takes input {indices.max()}, and x has {inputs} inputs"
        )


def index_type(inputs: int) -> np.dtype[Any]:
    """Give the type that counts so many inputs: two bytes where they will do."""
    return np.dtype(np.uint16 if inputs <= MOST_SHORT_INDICES else np.int32)


def pack_sparse(weight: Array) -> tuple[Array, Array, Array]:
    """Give values, indices and pointers of a matrix (inputs, outputs); both zeros are left out."""
    columns = np.ascontiguousarray(weight.T)
    is_kept = columns != 0
    counts = np.cumsum(is_kept.sum(axis=1))
    wide = np.int64 if counts.size and counts[-1] > LARGEST_INT32 else np.int32
    pointers = np.concatenate([[0], counts]).astype(wide)
    return columns[is_kept], np.nonzero(is_kept)[1].astype(index_type(len(weight))), pointers


def unpack_sparse(values: Array, indices: Array, pointers: Array, *, inputs: int) -> Array:
    """Give the matrix (inputs, outputs) with its zeros."""
    check_sparse(values, indices, pointers, inputs=inputs)
    weight = np.zeros((inputs, pointers.size - 1), values.dtype)
    weight[indices, np.repeat(np.arange(pointers.size - 1), np.diff(pointers))] = values
    return weight
