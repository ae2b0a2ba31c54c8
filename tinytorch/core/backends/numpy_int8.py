"""INT8 products with NumPy: BLAS has no whole numbers, but its floats can be exact.

Products of uint8 and int8 and sums of 514 of them are whole numbers below 2**24, and float32 has
all of these. So blocks of that depth are multiplied as floats, and added up as integers.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tinytorch.core.backends import reference_int8 as reference
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.int8_packing import unpack_values
from tinytorch.core.backends.products import matmul

__all__ = ["KERNELS"]

EXACT_DEPTH = 2**24 // (255 * 128)
COLUMN_BLOCK = 256
"""Columns of a weight that are turned into floats at once, so that the whole never is."""


def int8_matmul(x: Array, values: Array, sums: Array) -> Array:
    weight = unpack_values(values, x.shape[-1], sums.size)
    floats = x.astype(np.float32)
    total = np.zeros((*x.shape[:-1], sums.size), np.int32)
    for first in range(0, len(weight), EXACT_DEPTH):
        block = slice(first, first + EXACT_DEPTH)
        total += matmul(floats[..., block], weight[block].astype(np.float32)).astype(np.int32)
    return total


def int8_linear_weight_only(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    weight = unpack_values(values, x.shape[-1], scales.size)
    result = np.empty((*x.shape[:-1], scales.size), np.result_type(x, scales))
    for first in range(0, scales.size, COLUMN_BLOCK):
        block = slice(first, first + COLUMN_BLOCK)
        result[..., block] = matmul(x, weight[:, block].astype(x.dtype))
    result *= scales
    if bias is not None:
        result += bias
    return reference.activate(result, activation)


int8_linear_dynamic = partial(reference.int8_linear_dynamic, product=int8_matmul)
int8_linear_static = partial(reference.int8_linear_static, product=int8_matmul)

KERNELS: dict[str, Kernel] = {
    "int8_matmul": int8_matmul,
    "int8_linear_weight_only": int8_linear_weight_only,
    "int8_linear_dynamic": int8_linear_dynamic,
    "int8_linear_static": int8_linear_static,
}
