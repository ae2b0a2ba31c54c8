"""INT8 products of the compiled backend: a quarter of the bytes, and four products at a time.

With few rows a product takes as long as its weight takes to read, so INT8 weights alone make it up
to four times faster (`int8_linear_weight_only`). With many rows it takes as long as multiplying
does; there the activations become INT8 too, with a given scale (`int8_linear_static`) or by the
largest element of each row (`int8_linear_dynamic`), and whole numbers are multiplied exactly.

The instruction for that takes activations without a sign. They are stored 128 too high, and what
this adds to the result, 128 times the sum of each column of the weight, is taken away at the end.
The loops are in :mod:`numba_int8_products`. They run without any check of bounds, so every shape is
looked at here, and what does not fit is left to NumPy, which says what is wrong.
"""

from __future__ import annotations

import numpy as np

from tinytorch.core.backends import numpy_int8 as plain
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.int8_packing import PANEL_COLUMNS, STEP, packed_length
from tinytorch.core.backends.numba_arrays import FLOAT32, readable, rows_of
from tinytorch.core.backends.numba_compile import PARALLEL_WORK, THREADS
from tinytorch.core.backends.numba_int8_products import (
    NAN,
    TILE_ROWS,
    largest_of,
    multiply_packed,
    quantize_and_multiply,
    row_scale,
)
from tinytorch.core.backends.numba_products import ACTIVATION_CODES
from tinytorch.core.backends.reference_int8 import OFFSET

__all__ = ["KERNELS", "NAN", "choose_block_rows", "largest_of", "row_scale"]

BLOCK_ROWS = 64 * TILE_ROWS
"""Rows of the result that one task computes at most: each fetches its panel from memory again."""

WAY = None
"""How integers are multiplied: None is the fastest way, see numba_int8_simd; tests take others."""

INT8, UINT8, INT32 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32)
NO_BIAS, NO_WHOLE_BIAS = np.empty(0, np.float32), np.empty(0, np.int32)


# ---------------------------------------------------------------- does it fit?


def _is_packed(x: Array, values: Array, columns: int) -> bool:
    """Tell whether there is something to multiply, and the weight is one that `x` meets."""
    return (
        x.size > 0
        and columns > 0
        and values.dtype == INT8
        and values.shape == (packed_length(x.shape[-1], columns),)
    )


def _are_columns(scales: Array, bias: Array | None, sums: Array | None = None) -> bool:
    """Tell whether all have one number for each column, of the types that the loops know."""
    shape = (scales.size,)
    return (
        scales.dtype == FLOAT32
        and scales.shape == shape
        and (sums is None or (sums.dtype == INT32 and sums.shape == shape))
        and (bias is None or (bias.shape == shape and bias.dtype in (FLOAT32, INT32)))
    )


# ---------------------------------------------------------------- calling the loops


def choose_block_rows(rows: int, columns: int) -> int:
    """Choose how many rows a task takes, so that each thread gets several tasks."""
    if rows <= TILE_ROWS:
        return TILE_ROWS
    blocks = max(1, 4 * THREADS * PANEL_COLUMNS // columns)
    share = -(-rows // blocks)
    return max(TILE_ROWS, min(BLOCK_ROWS, -(-share // TILE_ROWS) * TILE_ROWS))


def _sharing(values: Array, rows: int) -> tuple[int, int]:
    """Give how much work there is, and how many share it."""
    work = values.size * (1 + rows // 8) // 4
    return work, 1 if work < PARALLEL_WORK else THREADS


def _shaped(out: Array, x: Array) -> Array:
    """Give results (rows, columns) the shape that belongs to `x`."""
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], out.shape[1])


def _multiply_floats_as_bytes(
    x: Array, values: Array, scales: Array, sums: Array, bias: Array | None,
    activation: str | None, *, is_dynamic: bool, scale: float = 1.0, zero_point: int = 0,
) -> Array:  # fmt: skip
    """Give `x` times the weight, where rows of `x` are quantized by themselves or by `scale`."""
    rows = rows_of(x)
    count, columns = len(rows), scales.size
    out = np.empty((count, columns), FLOAT32)
    float_bias, whole_bias = NO_BIAS, NO_WHOLE_BIAS
    if bias is not None and bias.dtype == FLOAT32:
        float_bias = readable(bias)
    elif bias is not None:
        whole_bias = readable(bias)
    work, workers = _sharing(values, count)
    quantize_and_multiply(
        rows, is_dynamic, scale, zero_point, readable(values), readable(scales), readable(sums),
        whole_bias, float_bias, ACTIVATION_CODES[activation], out,
        choose_block_rows(count, columns), workers, WAY, work=work,
    )  # fmt: skip
    return _shaped(out, x)


def _multiply(
    x: Array, rows: Array, values: Array, steps: Array | None, scales: Array | None,
    excess: Array | None, bias: Array | None, activation: str | None,
) -> Array:  # fmt: skip
    """Give `x` times the weight, where `rows` are those of `x` in whole lines."""
    if scales is None:
        assert excess is not None
        out = np.empty((len(rows), excess.size), INT32)
    else:
        out = np.empty((len(rows), scales.size), FLOAT32)
        scales = readable(scales)
    work, workers = _sharing(values, len(rows))
    multiply_packed(
        rows, readable(values), steps, scales, excess,
        NO_BIAS if bias is None else readable(bias), ACTIVATION_CODES[activation], out,
        NO_BIAS if excess is None else NO_WHOLE_BIAS,
        choose_block_rows(*out.shape), workers, WAY, work=work,
    )  # fmt: skip
    return _shaped(out, x)


def _in_whole_lines(rows: Array) -> Array:
    """Give rows (rows, depth) filled up with zeros to a multiple of STEP."""
    missing = -rows.shape[1] % STEP
    if not missing:
        return rows
    filled = np.zeros((len(rows), rows.shape[1] + missing), rows.dtype)
    filled[:, :-missing] = rows
    return filled


def _unsigned(x: Array) -> tuple[Array, int]:
    """Give bytes (rows, whole lines) without sign, and how much higher they are than `x`."""
    rows = _in_whole_lines(rows_of(x))
    if x.dtype == UINT8:
        return rows, 0
    return rows.view(np.uint8) ^ np.uint8(OFFSET), OFFSET  # the same as adding 128


# ---------------------------------------------------------------- the kernels, on any arrays


def int8_linear_weight_only(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    if not (
        x.dtype == FLOAT32
        and (bias is None or bias.dtype == FLOAT32)
        and _is_packed(x, values, scales.size)
        and _are_columns(scales, bias)
    ):
        return plain.int8_linear_weight_only(x, values, scales, sums, bias, activation=activation)
    rows = _in_whole_lines(rows_of(x))
    return _multiply(x, rows, values, None, scales, None, bias, activation)


def int8_linear_dynamic(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    if not (
        x.dtype == FLOAT32
        and (bias is None or bias.dtype == FLOAT32)
        and _is_packed(x, values, scales.size)
        and _are_columns(scales, bias, sums)
    ):
        return plain.int8_linear_dynamic(x, values, scales, sums, bias, activation=activation)
    return _multiply_floats_as_bytes(x, values, scales, sums, bias, activation, is_dynamic=True)


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
) -> Array:
    scale, zero_point = float(scale), int(zero_point)  # NumPy's may be too narrow to add to
    if not (
        x.dtype in (FLOAT32, INT8, UINT8)
        and _is_packed(x, values, scales.size)
        and _are_columns(scales, bias, sums)
    ):
        return plain.int8_linear_static(
            x, values, scales, sums, bias,
            scale=scale, zero_point=zero_point, activation=activation,
        )  # fmt: skip
    if x.dtype == FLOAT32:
        return _multiply_floats_as_bytes(
            x, values, scales, sums, bias, activation,
            is_dynamic=False, scale=scale, zero_point=zero_point,
        )  # fmt: skip
    rows, offset = _unsigned(x)
    excess = np.int32(offset + zero_point) * sums
    if bias is not None and bias.dtype == INT32:
        excess, bias = excess - bias, None
    steps = np.full(len(rows), scale, FLOAT32)
    return _multiply(x, rows, values, steps, scales, excess, bias, activation)


def int8_matmul(x: Array, values: Array, sums: Array) -> Array:
    if not (
        x.dtype in (INT8, UINT8)
        and _is_packed(x, values, sums.size)
        and sums.dtype == INT32
        and sums.ndim == 1
    ):
        return plain.int8_matmul(x, values, sums)
    rows, offset = _unsigned(x)
    return _multiply(x, rows, values, None, None, np.int32(offset) * sums, None, None)


KERNELS: dict[str, Kernel] = {
    "int8_matmul": int8_matmul,
    "int8_linear_weight_only": int8_linear_weight_only,
    "int8_linear_dynamic": int8_linear_dynamic,
    "int8_linear_static": int8_linear_static,
}
