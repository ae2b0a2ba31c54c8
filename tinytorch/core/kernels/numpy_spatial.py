"""Convolutions, pooling and sparse products with NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tinytorch.core.kernels.backend import Array, Kernel, matmul
from tinytorch.core.kernels.reference_quantized import activate, check_sparse
from tinytorch.core.kernels.reference_spatial import Pair, output_size, pad_image, unpad_image

# ---------------------------------------------------------------- convolution, pooling and batch
# normalisation of the NumPy backend
#
# Convolution is a matrix product over *columns*: for each image, the taps that each output position
# looks at, (channels x kh x kw, rows x columns). Columns are made for a few images at a time, so
# that they stay in the cache and take little memory.

COLUMN_BYTES = 1 << 20
"""Memory for the columns of one piece of a batch: about the size of an L2 cache."""


def _taps(x: Array, kernel: Pair, stride: Pair, dilation: Pair) -> Array:
    """View padded images as (batch, channels, kh, kw, rows, columns), without a copy."""
    batch, channels, *size = x.shape
    rows, columns = output_size((size[0], size[1]), kernel, stride, (0, 0), dilation)
    by_image, by_channel, by_row, by_column = x.strides
    return as_strided(
        x,
        (batch, channels, *kernel, rows, columns),
        (
            by_image,
            by_channel,
            by_row * dilation[0],
            by_column * dilation[1],
            by_row * stride[0],
            by_column * stride[1],
        ),
        writeable=False,
    )


def _column_pieces(
    x: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Iterator[tuple[slice, Array]]:
    """Yield parts of the batch with their columns (part, groups, taps, positions)."""
    taps = _taps(pad_image(x, padding), kernel, stride, dilation)
    batch, channels, kh, kw, rows, columns = taps.shape
    shape = (groups, channels // groups * kh * kw, rows * columns)
    bytes_per_image = channels * kh * kw * rows * columns * x.itemsize
    part = max(1, min(batch, COLUMN_BYTES // max(1, bytes_per_image)))
    buffer = np.empty((part, *taps.shape[1:]), x.dtype)
    for start in range(0, batch, part):
        images = slice(start, min(start + part, batch))
        piece = buffer[: images.stop - start]
        np.copyto(piece, taps[images])
        yield images, piece.reshape(len(piece), *shape)


def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Array:
    out_channels, _, kh, kw = weight.shape
    rows, columns = output_size(x.shape[2:], (kh, kw), stride, padding, dilation)
    matrix = weight.reshape(groups, out_channels // groups, -1)
    dtype = np.result_type(x, weight)
    result = np.empty((len(x), groups, out_channels // groups, rows * columns), dtype)
    for images, piece in _column_pieces(x, (kh, kw), stride, padding, dilation, groups):
        matmul(matrix, piece, out=result[images])
    result = result.reshape(len(x), out_channels, rows, columns)
    if bias is not None:
        result += bias[:, None, None]
    return result


def conv2d_backward_input(
    grad: Array,
    weight: Array,
    *,
    input_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Array:
    batch, channels, height, width = input_shape
    out_channels, _, kh, kw = weight.shape
    rows, columns = grad.shape[2:]
    matrix = weight.reshape(groups, out_channels // groups, -1).swapaxes(1, 2)
    flat_grad = grad.reshape(batch, groups, out_channels // groups, rows * columns)
    result = np.zeros(
        (batch, channels, height + 2 * padding[0], width + 2 * padding[1]), grad.dtype
    )
    bytes_per_image = channels * kh * kw * rows * columns * grad.itemsize
    part = max(1, COLUMN_BYTES // max(1, bytes_per_image))
    for start in range(0, batch, part):
        images = slice(start, start + part)
        taps = matmul(matrix, flat_grad[images]).reshape(-1, channels, kh, kw, rows, columns)
        for row in range(kh):
            for column in range(kw):
                top, left = row * dilation[0], column * dilation[1]
                result[
                    images,
                    :,
                    top : top + stride[0] * (rows - 1) + 1 : stride[0],
                    left : left + stride[1] * (columns - 1) + 1 : stride[1],
                ] += taps[:, :, row, column]
    return unpad_image(result, padding)


def conv2d_backward_weight(
    grad: Array,
    x: Array,
    *,
    weight_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Array:
    out_channels, _, kh, kw = weight_shape
    flat_grad = grad.reshape(
        len(grad), groups, out_channels // groups, grad.shape[2] * grad.shape[3]
    )
    result = np.zeros(weight_shape, grad.dtype)
    flat = result.reshape(groups, out_channels // groups, weight_shape[1] * kh * kw)
    for images, piece in _column_pieces(x, (kh, kw), stride, padding, dilation, groups):
        flat += matmul(flat_grad[images], piece.swapaxes(2, 3)).sum(axis=0)
    return result


def _window(start: int, stride: int, count: int) -> slice:
    """Return the positions that tap `start` of `count` windows reads."""
    return slice(start, start + stride * (count - 1) + 1, stride)


def max_pool2d(x: Array, *, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    """Take the largest over rows first: whole rows are contiguous, and half is then done."""
    rows, columns = output_size(x.shape[2:], kernel, stride, padding, (1, 1))
    padded = pad_image(x, padding, -np.inf)
    tall = padded[:, :, _window(0, stride[0], rows)]
    for row in range(1, kernel[0]):
        tall = np.maximum(tall, padded[:, :, _window(row, stride[0], rows)])
    result: Array = tall[..., _window(0, stride[1], columns)]
    for column in range(1, kernel[1]):
        result = np.maximum(result, tall[..., _window(column, stride[1], columns)])
    return np.ascontiguousarray(result)


def max_pool2d_backward(
    grad: Array, x: Array, output: Array, *, kernel: Pair, stride: Pair, padding: Pair
) -> Array:
    """Find the row of each maximum first and then its column, so that ties go to the first."""
    rows, columns = output.shape[2:]
    padded = pad_image(x, padding, -np.inf)
    down = [(..., _window(row, stride[0], rows), slice(None)) for row in range(kernel[0])]
    right = [(..., _window(column, stride[1], columns)) for column in range(kernel[1])]
    wide = padded[right[0]]  # the largest of each window within one row
    for window in right[1:]:
        wide = np.maximum(wide, padded[window])
    grad_wide = _send_to_first(grad, output, wide, down, overlap=stride[0] < kernel[0])
    result = _send_to_first(grad_wide, wide, padded, right, overlap=stride[1] < kernel[1])
    return unpad_image(result, padding)


def _send_to_first(
    grad: Array, largest: Array, source: Array, windows: list[Any], *, overlap: bool
) -> Array:
    """Route each gradient to the first window of `source` that holds the largest element."""
    result = np.zeros(source.shape, grad.dtype)
    left = grad
    for window in windows[:-1]:
        is_here = source[window] == largest
        share = np.multiply(left, is_here, out=None if overlap else result[window])
        if overlap:
            result[window] += share
        left = left - share
    if overlap:
        result[windows[-1]] += left
    else:
        result[windows[-1]] = left
    return result


def avg_pool2d(x: Array, *, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    rows, columns = output_size(x.shape[2:], kernel, stride, padding, (1, 1))
    padded = pad_image(x, padding)
    tall = padded[:, :, _window(0, stride[0], rows)].copy()
    for row in range(1, kernel[0]):
        tall += padded[:, :, _window(row, stride[0], rows)]
    result: Array = tall[..., _window(0, stride[1], columns)].copy()
    for column in range(1, kernel[1]):
        result += tall[..., _window(column, stride[1], columns)]
    result /= kernel[0] * kernel[1]
    return result


def avg_pool2d_backward(
    grad: Array, *, input_shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair
) -> Array:
    batch, channels, height, width = input_shape
    rows, columns = grad.shape[2:]
    result = np.zeros(
        (batch, channels, height + 2 * padding[0], width + 2 * padding[1]), grad.dtype
    )
    share = grad / (kernel[0] * kernel[1])
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            result[..., _window(row, stride[0], rows), _window(column, stride[1], columns)] += share
    return unpad_image(result, padding)


def batch_norm(
    x: Array, weight: Array, bias: Array, *, eps: float
) -> tuple[Array, Array, Array, Array, Array]:
    count = x.size // x.shape[1]
    mean: Array = x.mean(axis=(0, 2, 3))
    normalised: Array = x - mean[:, None, None]
    variance = np.einsum("bchw,bchw->c", normalised, normalised) / count
    inverse: Array = 1 / np.sqrt(variance + eps)
    normalised *= inverse[:, None, None]
    output: Array = normalised * weight[:, None, None]
    output += bias[:, None, None]
    return output, normalised, inverse, mean, variance


def batch_norm_backward(
    grad: Array, weight: Array, normalised: Array, inverse: Array
) -> tuple[Array, Array, Array]:
    count = grad.size // grad.shape[1]
    grad_bias: Array = grad.sum(axis=(0, 2, 3))
    grad_weight: Array = np.einsum("bchw,bchw->c", grad, normalised)
    result: Array = normalised * (grad_weight / -count)[:, None, None]
    result += grad
    result -= (grad_bias / count)[:, None, None]
    result *= (weight * inverse)[:, None, None]
    return result, grad_weight, grad_bias


# ---------------------------------------------------------------- products with sparse weights
# with NumPy, which has nothing for them: two ways around that
#
# For a few rows the inputs that matter are picked and their products added up by segments. That is
# done again for each row, so that for more of them it is faster to fill in the zeros, some columns
# at a time, and leave the product to BLAS.

FEW_ROWS = 3
FILLED = 1 << 20
"""Numbers of a weight that are filled in at once, so that the whole never is."""


def sparse_linear(
    x: Array,
    values: Array,
    indices: Array,
    pointers: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    inputs, outputs = x.shape[-1], pointers.size - 1
    check_sparse(values, indices, pointers, inputs=inputs)
    rows = x.reshape(-1, inputs)
    # filled-in zeros would turn what is not finite into NaN
    if len(rows) <= FEW_ROWS or not np.isfinite(rows).all():
        result = _by_segments(rows, values, indices, pointers)
    else:
        result = _by_columns(rows, values, indices, pointers)
    if bias is not None:
        result = result + bias
    return activate(result, activation).reshape(*x.shape[:-1], outputs)


def _by_segments(rows: Array, values: Array, indices: Array, pointers: Array) -> Array:
    """Add up the products of each output, row by row, so that little memory is needed."""
    result = np.zeros((len(rows), pointers.size - 1), np.result_type(rows, values))
    is_used = pointers[1:] > pointers[:-1]  # an empty segment would be taken for its first element
    starts = pointers[:-1][is_used]
    if starts.size:
        for row, totals in zip(rows, result, strict=True):
            totals[is_used] = np.add.reduceat(row[indices] * values, starts)
    return result


def _by_columns(rows: Array, values: Array, indices: Array, pointers: Array) -> Array:
    """Multiply with some columns at a time, in which the zeros are filled in."""
    inputs, outputs = rows.shape[1], pointers.size - 1
    result = np.empty((len(rows), outputs), np.result_type(rows, values))
    width = max(1, FILLED // max(1, inputs))
    for first in range(0, outputs, width):
        ends = pointers[first : first + width + 1]
        block = slice(ends[0], ends[-1])
        lines = np.zeros((ends.size - 1, inputs), values.dtype)
        lines[np.repeat(np.arange(ends.size - 1), np.diff(ends)), indices[block]] = values[block]
        matmul(rows, lines.T, out=result[:, first : first + width])
    return result


KERNELS: dict[str, Kernel] = {"sparse_linear": sparse_linear}
