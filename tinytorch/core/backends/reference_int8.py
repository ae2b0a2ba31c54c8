"""INT8 products of the reference backend, in short, obvious NumPy.

Weights come packed (:mod:`int8_packing`), with one scale for each output:
``run(kind, x, *packed.arrays, bias)``. Activations are quantized to whole numbers q with
x = step (q - zero_point); they are rounded half to even.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.core.backends.int8_packing import unpack_values
from tinytorch.core.backends.products import matmul

__all__ = [
    "LARGEST",
    "OFFSET",
    "SMALLEST_ROW",
    "activate",
    "dequantize",
    "int8_linear_dynamic",
    "int8_linear_static",
    "int8_linear_weight_only",
    "int8_matmul",
    "quantize_by",
    "quantize_rows",
]

Product = Callable[[Array, Array, Array], Array]

OFFSET = 128
"""What is added to int8 to make it uint8."""

LARGEST = np.float32(127)
"""The largest whole number of a symmetric quantization."""

SMALLEST_ROW = np.float32(1e-30)
"""A row without any larger element counts as zeros: the inverse of its step might overflow."""


def quantize_rows(x: Array) -> tuple[Array, Array]:
    """Give int8 rows in -127..127, and the step (..., 1) of each row: its largest element / 127.

    A row that holds NaN or infinity has the step NaN, and so gives NaN.
    """
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0)
    is_zero, is_finite = largest < SMALLEST_ROW, np.isfinite(largest)
    some = np.where(is_zero | ~is_finite, x.dtype.type(1), largest)
    quantized = np.rint(np.where(is_finite & ~is_zero, x, 0) * (LARGEST / some))
    step = np.where(is_zero, x.dtype.type(1), np.where(is_finite, some / LARGEST, np.nan))
    return quantized.astype(np.int8), step.astype(x.dtype)


def quantize_by(x: Array, scale: float, zero_point: int) -> tuple[Array, Array]:
    """Give int8 rows, which saturate at -128 and 127, and the step (..., 1) of each row.

    A row that holds NaN has the step NaN, and so gives NaN.
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
    """Scale whole numbers (..., outputs), add a bias of floats, and apply the activation."""
    result = product.astype(steps.dtype) * (steps * scales)
    return activate(result if bias is None else result + bias, activation)


def activate(x: Array, activation: str | None) -> Array:
    from tinytorch.core.backends.reference import ACTIVATIONS  # that page imports this one

    return x if activation is None else ACTIVATIONS[activation](x)


def _at_least_float32(x: Array) -> Array:
    """Widen half precision, which sums of whole numbers and small steps do not fit into."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


# ---------------------------------------------------------------- the kernels


def int8_matmul(x: Array, values: Array, sums: Array) -> Array:
    """Give the exact product (..., outputs) in int32 of int8 or uint8 rows and a packed weight."""
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
    """Quantize each row by its largest element, multiply whole numbers, and scale the result."""
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
    """Do the same with a given scale and zero point.

    Floats are quantized to int8 first, int8 and uint8 are taken as they are. The bias is of floats,
    or of int32 in steps of scale * scales, as it is usual for static quantization.
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
