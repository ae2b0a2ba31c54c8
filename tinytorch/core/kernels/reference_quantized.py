"""Kernels of quantized and sparse layers in short, obvious NumPy: the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tinytorch.core.kernels.backend import Array, matmul
from tinytorch.core.kernels.packing import unpack_nibbles, unpack_values
from tinytorch.core.kernels.reference_spatial import Pair, conv2d, output_size
from tinytorch.errors import DTypeError, SettingError, ShapeError

# ---------------------------------------------------------------- INT8 products of the reference
# backend, in short, obvious NumPy
#
# Weights come packed (`packing`), with one scale for each output:
# ``run(kind, x, *packed.arrays, bias)``. Activations are quantized to integers q with
# x = step (q - zero_point); they are rounded half to even.

Product = Callable[[Array, Array, Array], Array]

OFFSET = 128
"""What is added to int8 to make it uint8."""

LARGEST = np.float32(127)
"""The largest whole number of a symmetric quantization."""

SMALLEST_ROW = np.float32(1e-30)
"""A row without any larger element counts as zeros: the inverse of its step might overflow."""


def quantize_rows(x: Array) -> tuple[Array, Array]:
    """Return int8 rows in -127..127, and the step (..., 1) of each row: its largest element / 127.

    A row that holds NaN or infinity has the step NaN, so its results are NaN.
    """
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0)
    is_zero, is_finite = largest < SMALLEST_ROW, np.isfinite(largest)
    some = np.where(is_zero | ~is_finite, x.dtype.type(1), largest)
    quantized = np.rint(np.where(is_finite & ~is_zero, x, 0) * (LARGEST / some))
    step = np.where(is_zero, x.dtype.type(1), np.where(is_finite, some / LARGEST, np.nan))
    return quantized.astype(np.int8), step.astype(x.dtype)


def quantize_by(x: Array, scale: float, zero_point: int) -> tuple[Array, Array]:
    """Return int8 rows, which saturate at -128 and 127, and the step (..., 1) of each row.

    A row that holds NaN has the step NaN, so its results are NaN.
    """
    step = x.dtype.type(scale)
    whole = np.rint(x * (1 / step))
    is_nan = np.isnan(whole)
    quantized = np.clip(np.where(is_nan, 0, whole), -OFFSET - zero_point, 127 - zero_point)
    steps = np.where(is_nan.any(axis=-1, keepdims=True), x.dtype.type(np.nan), step)
    return (quantized + zero_point).astype(np.int8), steps


def dequantize(
    product: Array, steps: Array, scales: Array, bias: Array | None, activation: str | None
) -> Array:
    """Scale integers (..., outputs), add a bias of floats, and apply the activation."""
    result = product.astype(steps.dtype) * (steps * scales)
    return activate(result if bias is None else result + bias, activation)


def activate(x: Array, activation: str | None) -> Array:
    from tinytorch.core.kernels.reference import ACTIVATIONS  # that page imports this one

    return x if activation is None else ACTIVATIONS[activation](x)


def _at_least_float32(x: Array) -> Array:
    """Widen half precision, which sums of integers and small steps do not fit into."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


# ---------------------------------------------------------------- the kernels


def int8_matmul(x: Array, values: Array, sums: Array) -> Array:
    """Return the exact int32 product (..., outputs) of int8 or uint8 rows and a packed weight."""
    weight = unpack_values(values, x.shape[-1], sums.size)
    return matmul(x.astype(np.int64), weight.astype(np.int64)).astype(np.int32)


def int8_linear_weight_only(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    """Multiply floats with the weight, scale, and add the bias; the sums are not needed."""
    x = _at_least_float32(x)
    weight = unpack_values(values, x.shape[-1], scales.size).astype(x.dtype)
    product = matmul(x, weight) * scales
    return activate(product if bias is None else product + bias, activation)


def int8_linear_dynamic(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
    product: Product = int8_matmul,
) -> Array:
    """Quantize each row by its largest element, multiply integers, and scale the result."""
    rows, steps = quantize_rows(_at_least_float32(x))
    return dequantize(product(rows, values, sums), steps, scales, bias, activation)


def int8_linear_static(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    scale: float,
    zero_point: int = 0,
    activation: str | None = None,
    product: Product = int8_matmul,
) -> Array:
    """Multiply integers quantized by a given scale and zero point, and scale the result.

    Floats are quantized to int8 first, int8 and uint8 are taken as they are. The bias is of floats,
    or of int32 in steps of scale * scales, as usual for static quantization.
    """
    scale, zero_point = float(scale), int(zero_point)  # NumPy's may be too narrow to add to
    if x.dtype in (np.int8, np.uint8):
        rows, steps = x, np.full((1,), scale, np.float32)
    else:
        rows, steps = quantize_by(_at_least_float32(x), scale, zero_point)
    total = product(rows, values, sums) - np.int32(zero_point) * sums
    if bias is not None and bias.dtype == np.int32:
        total, bias = total + bias, None
    return dequantize(total, steps, scales, bias, activation)


# ---------------------------------------------------------------- products with INT4 weights of
# the reference backend, in short, obvious NumPy


def int4_linear_weight_only(
    x: Array,
    values: Array,
    scales: Array,
    bias: Array | None = None,
    *,
    group_size: int,
    activation: str | None = None,
) -> Array:
    """Multiply floats with a packed weight that has a scale for each group of inputs and output."""
    inputs, outputs = x.shape[-1], scales.shape[1]
    each = np.repeat(scales, group_size, axis=0)[:inputs]  # (inputs, outputs)
    weight = unpack_nibbles(values, inputs, outputs) * each
    product = matmul(x, weight.astype(x.dtype))
    return activate(product if bias is None else product + bias, activation)


# ---------------------------------------------------------------- INT8 convolutions of the
# reference backend, in short, obvious NumPy
#
# Weights come packed (`packing`), as the matrix (inputs of a patch, output channels) with
# one scale for each output channel. Images become integers q with x = step (q - zero_point),
# and zeros around an image are the number zero, whatever its q is. A whole image shares one step.
# If it holds NaN (or infinity, where its own largest element makes the step), the step is NaN, and
# so is all that comes from this image; the others of the batch do not notice.

Convolve = Callable[..., Array]


class Window(NamedTuple):
    """How a kernel slides over an image."""

    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int = 1

    def convolve(self, convolve: Convolve, x: Array, weight: Array, *bias: Array | None) -> Array:
        """Call a function that takes what `conv2d` takes."""
        return convolve(
            x, weight, *bias,
            stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups,
        )  # fmt: skip

    def output_size(self, x: Array) -> Pair:
        return output_size(x.shape[2:], self.kernel_size, self.stride, self.padding, self.dilation)


def convolve_integers(
    x: Array, weight: Array, *, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Array:
    """Return the exact convolution of integers from -255 to 255 with an int8 weight."""
    window = Window((weight.shape[2], weight.shape[3]), stride, padding, dilation, groups)
    return window.convolve(conv2d, x.astype(np.int64), weight.astype(np.int64))


# ---------------------------------------------------------------- the kernels


def int8_conv2d_weight_only(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    convolve: Convolve = conv2d,
    **geometry: Any,
) -> Array:
    """Make the weight floats for this call and convolve them; the sums are not needed."""
    window = Window(**geometry)
    _check(x, scales, bias, window)
    weight = _weight(x, values, scales, window) * scales.astype(x.dtype)[:, None, None, None]
    return window.convolve(convolve, x, weight, bias)


def int8_conv2d_dynamic(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    convolve: Convolve = convolve_integers,
    **geometry: Any,
) -> Array:
    """Quantize each image by its largest element, convolve integers, and scale the result."""
    window = Window(**geometry)
    _check(x, scales, bias, window)
    rows, steps = quantize_rows(_rows(x))
    weight = _weight(x, values, scales, window)
    total = window.convolve(convolve, rows.reshape(x.shape), weight)
    return _scaled(total, steps, scales, bias)


def int8_conv2d_static(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    scale: float,
    zero_point: int = 0,
    convolve: Convolve = convolve_integers,
    **geometry: Any,
) -> Array:
    """Convolve integers quantized by a given scale and zero point; they saturate at -128 and 127.

    The bias is of floats, or of int32 in steps of scale * scales. Here the zero point is taken off
    each number; a backend that leaves it in takes zero_point * sums off the result.
    """
    scale, zero_point = float(scale), int(zero_point)  # NumPy's may be too narrow to add to
    window = Window(**geometry)
    _check(x, scales, bias, window)
    if not -128 <= zero_point <= 127:
        raise SettingError(
            f"zero_point={zero_point} is not an int8, so padding could not be quantized; "
            "pass one in -128..127"
        )
    rows, steps = quantize_by(_rows(x), scale, zero_point)
    centred = rows.reshape(x.shape).astype(np.int16) - np.int16(zero_point)
    total = window.convolve(convolve, centred, _weight(x, values, scales, window))
    if bias is not None and bias.dtype == np.int32:
        total, bias = total + bias[:, None, None], None
    return _scaled(total, steps, scales, bias)


# ---------------------------------------------------------------- their parts


def _rows(x: Array) -> Array:
    """Return each image as a row."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


def _weight(x: Array, values: Array, scales: Array, window: Window) -> Array:
    """Return the int8 weight (out, in / groups, height, width)."""
    channels = x.shape[1] // window.groups
    matrix = unpack_values(values, channels * math.prod(window.kernel_size), scales.size)
    return matrix.T.reshape(scales.size, channels, *window.kernel_size)


def _scaled(total: Array, steps: Array, scales: Array, bias: Array | None) -> Array:
    """Scale integers (batch, out, rows, columns) and add a bias of floats."""
    if bias is not None:
        bias = bias[:, None, None]
    return dequantize(total, steps[:, :, None, None], scales[:, None, None], bias, None)


def _check(x: Array, scales: Array, bias: Array | None, window: Window) -> None:
    """Raise for shapes that do not match; the packed values are checked where they are unpacked."""
    kernel, stride, padding, dilation, groups = window
    if x.dtype.kind != "f":
        raise DTypeError(f"an INT8 convolution needs floating-point images, got {x.dtype}")
    if x.ndim != 4:
        raise ShapeError(f"images are (batch, channels, height, width), got shape {x.shape}")
    if scales.ndim != 1 or (bias is not None and bias.shape != scales.shape):
        raise ShapeError(
            "an INT8 convolution needs one scale, and one bias or none, for each output channel; "
            f"scales have shape {scales.shape}, the bias {None if bias is None else bias.shape}"
        )
    if min(*kernel, *stride, *dilation) < 1 or min(padding) < 0:
        raise SettingError(
            "kernel_size, stride and dilation must be at least 1 and padding at least 0, got "
            f"{kernel}, {stride}, {dilation} and {padding}"
        )
    if groups < 1 or x.shape[1] % groups or scales.size % groups:
        raise SettingError(
            f"groups={groups} must divide {x.shape[1]} input and {scales.size} output channels"
        )
    if min(window.output_size(x)) < 1:
        raise ShapeError(
            f"a kernel of {kernel} with dilation {dilation} does not fit into images of "
            f"{x.shape[2:]} with padding {padding}; pass larger images"
        )


# ---------------------------------------------------------------- looking up rows of an INT8
# table, in short, obvious NumPy
#
# The table comes packed (`packing`) as the matrix (width, tokens), so that an output
# layer can multiply with the same bytes: a row of the table is a column of the matrix.


def int8_embedding(ids: Array, values: Array, scales: Array, *, width: int) -> Array:
    """Return the rows (*ids.shape, width) of some tokens as floats: values times the token's scale.

    As with any index of NumPy, negative ids count from the end.
    """
    if ids.dtype.kind not in "iu":
        raise DTypeError(f"token ids must be integers, got {ids.dtype}")
    if scales.ndim != 1:
        raise ShapeError(f"a table needs one scale for each token, got shape {scales.shape}")
    table = unpack_values(values, width, scales.size).T  # (tokens, width)
    return table[ids].astype(np.float32) * scales[ids][..., None]


# ---------------------------------------------------------------- products with sparse weights of
# the reference backend, in short, obvious NumPy
#
# A sparse matrix (inputs, outputs) is three arrays: the inputs that matter to output j are
# ``indices[pointers[j] : pointers[j + 1]]``, in ascending order, and `values` has their weights.
# What a zero would meet is not looked at, not even if it is infinite or NaN.

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
    """Return x (..., inputs) times the sparse matrix, plus the bias, through the activation."""
    check_sparse(values, indices, pointers, inputs=x.shape[-1])
    result = np.empty((*x.shape[:-1], pointers.size - 1), np.result_type(x, values))
    for output, (first, last) in enumerate(pairwise(pointers)):
        result[..., output] = matmul(x[..., indices[first:last]], values[first:last])
    return activate(result if bias is None else result + bias, activation)


def check_sparse(values: Array, indices: Array, pointers: Array, *, inputs: int) -> None:
    """Raise unless these three are a sparse matrix with `inputs` inputs."""
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
    """Return the dtype of indices: two bytes each where the number of inputs allows it."""
    return np.dtype(np.uint16 if inputs <= MOST_SHORT_INDICES else np.int32)


def pack_sparse(weight: Array) -> tuple[Array, Array, Array]:
    """Return values, indices and pointers of a matrix (inputs, outputs), without 0.0 and -0.0."""
    columns = np.ascontiguousarray(weight.T)
    is_kept = columns != 0
    counts = np.cumsum(is_kept.sum(axis=1))
    wide = np.int64 if counts.size and counts[-1] > LARGEST_INT32 else np.int32
    pointers = np.concatenate([[0], counts]).astype(wide)
    return columns[is_kept], np.nonzero(is_kept)[1].astype(index_type(len(weight))), pointers


def unpack_sparse(values: Array, indices: Array, pointers: Array, *, inputs: int) -> Array:
    """Return the matrix (inputs, outputs) with its zeros."""
    check_sparse(values, indices, pointers, inputs=inputs)
    weight = np.zeros((inputs, pointers.size - 1), values.dtype)
    weight[indices, np.repeat(np.arange(pointers.size - 1), np.diff(pointers))] = values
    return weight
