"""Kernels of quantized layers with NumPy."""

from __future__ import annotations

from functools import partial

import numpy as np

from tinytorch.core.kernels import reference_quantized as reference
from tinytorch.core.kernels.backend import Array, Kernel, matmul
from tinytorch.core.kernels.numpy_spatial import conv2d
from tinytorch.core.kernels.packing import PANEL_COLUMNS, STEP, packed_length, unpack_values
from tinytorch.core.kernels.reference_spatial import Pair

# ---------------------------------------------------------------- INT8 products with NumPy: BLAS
# has no integers, but its floats can be exact
#
# Products of uint8 and int8 and sums of 514 of them are integers below 2**24, and float32 has
# all of these. So blocks of that depth are multiplied as floats, and added up as integers.

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


# ---------------------------------------------------------------- INT8 convolutions with NumPy:
# integers by way of floats that have all of them
#
# The sums over some channels are integers below 2**24, which float32 has all of. So that many
# channels at a time are convolved as floats, and the results added up as integers.


def convolve_integers(
    x: Array, weight: Array, *, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Array:
    outputs, channels, *kernel = weight.shape
    window = reference.Window((kernel[0], kernel[1]), stride, padding, dilation, groups)
    at_once = EXACT_DEPTH // (kernel[0] * kernel[1])
    if at_once == 0:  # a huge kernel: float64 has its sums over all channels
        total = window.convolve(conv2d, x.astype(np.float64), weight.astype(np.float64))
        return total.astype(np.int32)
    batch, _, *size = x.shape
    grouped = x.reshape(batch, groups, channels, *size)
    result = np.zeros((batch, outputs, *window.output_size(x)), np.int32)
    for first in range(0, channels, at_once):
        part = slice(first, first + at_once)
        some = grouped[:, :, part].astype(np.float32)
        images = some.reshape(batch, groups * some.shape[2], *size)
        total = window.convolve(conv2d, images, weight[:, part].astype(np.float32))
        result += total.astype(np.int32)
    return result


CONVOLUTION_KERNELS: dict[str, Kernel] = {
    "int8_conv2d_weight_only": partial(reference.int8_conv2d_weight_only, convolve=conv2d),
    "int8_conv2d_dynamic": partial(reference.int8_conv2d_dynamic, convolve=convolve_integers),
    "int8_conv2d_static": partial(reference.int8_conv2d_static, convolve=convolve_integers),
}


# ---------------------------------------------------------------- looking up rows of an INT8 table
# with NumPy, without unpacking all of it


def int8_embedding(ids: Array, values: Array, scales: Array, *, width: int) -> Array:
    tokens = scales.size
    if not (
        ids.dtype.kind in "iu"
        and ids.size > 0
        and scales.shape == (tokens,)
        and values.dtype == np.int8
        and width > 0
        and values.shape == (packed_length(width, tokens),)
        and ids.min() >= 0
        and ids.max() < tokens
    ):
        return reference.int8_embedding(ids, values, scales, width=width)
    lines = -(-width // STEP)
    number = ids.reshape(-1, 1).astype(np.int64, copy=False)
    first = number // PANEL_COLUMNS * PANEL_COLUMNS  # of the token's panel
    columns = np.minimum(PANEL_COLUMNS, tokens - first)
    # what lies in a line for one token is one word of four bytes
    words = np.ascontiguousarray(values)[: lines * tokens * STEP].view(np.int32)
    at = first * lines + (number - first) + np.arange(lines) * columns  # (ids, lines)
    rows = words[at].view(np.int8)[:, :width].astype(np.float32)
    return (rows * scales[number]).reshape(*ids.shape, width)


EMBEDDING_KERNELS: dict[str, Kernel] = {"int8_embedding": int8_embedding}
