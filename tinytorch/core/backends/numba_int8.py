"""INT8 products of the compiled backend: a quarter of the bytes, and four products at a time.

With few rows a product takes as long as its weight takes to read, so INT8 weights alone make it up
to four times faster (`int8_linear_weight_only`). With many rows it takes as long as multiplying
does; there the activations become INT8 too, with a given scale (`int8_linear_static`) or by the
largest element of each row (`int8_linear_dynamic`), and whole numbers are multiplied exactly.

The instruction for that takes activations without a sign. They are stored 128 too high, and what
this adds to the result, 128 times the sum of each column of the weight, is taken away at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from tinytorch.core.backends import numba_math as fast
from tinytorch.core.backends import numpy_int8 as plain
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.int8_packing import PANEL_COLUMNS, STEP, packed_length
from tinytorch.core.backends.numba_arrays import FLOAT32, readable, rows_of
from tinytorch.core.backends.numba_compile import (
    THREADS,
    compiled,
    inlined,
    inlined_in_order,
)
from tinytorch.core.backends.numba_int8_simd import packed_tile, scale_integers
from tinytorch.core.backends.numba_products import ACTIVATION_CODES, finish_row
from tinytorch.core.backends.numba_simd import LANES, TILE_COLUMNS
from tinytorch.core.backends.reference_int8 import LARGEST, OFFSET, SMALLEST_ROW

__all__ = ["KERNELS"]

TILE_ROWS = 4
"""Rows of a tile: 4 x 4 sums keep the multipliers busy, and leave registers for their factors."""

BLOCK_ROWS = 16 * TILE_ROWS
"""Rows of the result that one task computes at most."""

WAY = None
"""How integers are multiplied: None is the fastest way, see numba_int8_simd; tests take others."""

INT8, UINT8, INT32 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32)
NO_BIAS = np.empty(0, np.float32)
NAN = np.float32(np.nan)
FLOAT_TILE = np.empty(TILE_ROWS * PANEL_COLUMNS, np.float32)
INTEGER_TILE = np.empty(TILE_ROWS * PANEL_COLUMNS, np.int32)

tile_of_4, tile_of_2, tile_of_1 = (packed_tile(rows) for rows in (4, 2, 1))

# ---------------------------------------------------------------- activations become bytes


@inlined_in_order
def row_scale(largest):
    """Give the step of a row and its inverse; a row that is not finite has the step NaN."""
    if largest < SMALLEST_ROW:
        return fast.ONE, fast.ZERO
    if largest - largest != fast.ZERO:
        return NAN, fast.ZERO
    return largest / LARGEST, LARGEST / largest


@inlined
def largest_of(row):
    """Give the largest size of an element, or NaN if there is one."""
    largest = fast.ZERO
    for k in range(row.size):
        largest = fast.larger(largest, abs(row[k]))
    return largest


@compiled
def quantize_rows(x, rows, steps):
    """Turn each row of floats into bytes, by its own largest element."""
    width = x.shape[1]
    for row in prange(x.shape[0]):
        step, inverse = row_scale(largest_of(x[row]))
        steps[row] = step
        if inverse == fast.ZERO:
            rows[row, :] = OFFSET
        else:
            for k in range(width):
                rows[row, k] = np.uint8(np.int32(np.rint(x[row, k] * inverse)) + OFFSET)


@compiled
def quantize_rows_by(x, rows, steps, step, inverse, zero_point):
    """Turn rows of floats into bytes with a given step; beyond the range they saturate."""
    lowest = np.float32(-OFFSET - zero_point)
    highest = np.float32(OFFSET - 1 - zero_point)
    for row in prange(x.shape[0]):
        is_number = True
        for k in range(x.shape[1]):
            value = np.rint(x[row, k] * inverse)
            is_number &= value == value
            value = lowest if value < lowest else value
            value = highest if value > highest else value
            value = value if value == value else fast.ZERO
            rows[row, k] = np.uint8(np.int32(value) + zero_point + OFFSET)
        steps[row] = step if is_number else NAN


# ---------------------------------------------------------------- products


@inlined
def multiply_rows(a, at, a_row, rows, values, offset, line_step, last, lines, tile, place, way):
    """Multiply up to four rows with the columns of a tile."""
    if rows == 4:
        tile_of_4(
            a, at, a_row, values, offset, line_step, last, lines, tile, place, PANEL_COLUMNS, way
        )
        return
    if rows >= 2:
        tile_of_2(
            a, at, a_row, values, offset, line_step, last, lines, tile, place, PANEL_COLUMNS, way
        )
        at, place, rows = at + 2 * a_row, place + 2 * PANEL_COLUMNS, rows - 2
    if rows == 1:
        tile_of_1(
            a, at, a_row, values, offset, line_step, last, lines, tile, place, PANEL_COLUMNS, way
        )


@inlined
def write_row(totals, first, done, step, scales, sums, offset, bias, activation):
    """Turn a row of sums into results: take the offset away, scale, add the bias, activate."""
    # Where an argument is None, numba leaves out what that makes unreachable.
    if scales is None:  # the sums themselves
        if sums is not None:
            for j in range(done.size):
                done[j] = np.int32(totals[j] - offset * sums[first + j])
    elif sums is None:  # sums of floats
        for j in range(done.size):
            done[j] = totals[j] * scales[first + j]
        finish_row(done, bias[first : first + done.size], activation)
    else:
        in_vectors = done.size // LANES * LANES
        for j in range(0, in_vectors, LANES):
            scale_integers(totals, j, sums, scales, first + j, np.int32(offset), step, done, j)
        for j in range(in_vectors, done.size):
            total = np.int32(totals[j] - offset * sums[first + j])
            done[j] = np.float32(total) * (step * scales[first + j])
        finish_row(done, bias[first : first + done.size], activation)


@compiled
def multiply_packed(
    a, depth, values, steps, scales, sums, offset, bias, activation, out, tile_like, block_rows, way
):
    """Multiply rows with a packed weight: a task is a block of rows and a panel of columns.

    Without `sums` the rows are floats, without `scales` the result is whole numbers. `tile_like` is
    an example of the memory that a tile of sums takes.
    """
    rows, columns = out.shape
    a_row = a.shape[1]
    lines = (depth + STEP - 1) // STEP
    panels = (columns + PANEL_COLUMNS - 1) // PANEL_COLUMNS
    blocks = (rows + block_rows - 1) // block_rows
    for task in prange(panels * blocks):
        task = np.int64(task)  # without a sign numba would mix it with others as floats
        first_row = task // panels * block_rows
        first_column = task % panels * PANEL_COLUMNS
        width = min(PANEL_COLUMNS, columns - first_column)
        panel = first_column * lines * STEP
        tile = np.empty_like(tile_like)
        for row in range(first_row, min(first_row + block_rows, rows), TILE_ROWS):
            height = min(TILE_ROWS, first_row + block_rows - row, rows - row)
            for column in range(0, width, TILE_COLUMNS):
                last = (width - column - 1) // LANES * LANES * STEP
                multiply_rows(
                    a, row * a_row, a_row, height, values, panel + column * STEP, width * STEP,
                    last, lines, tile, column, way,
                )  # fmt: skip
            for each in range(height):
                totals = tile[each * PANEL_COLUMNS : (each + 1) * PANEL_COLUMNS]
                done = out[row + each, first_column : first_column + width]
                step = fast.ONE if steps is None else steps[row + each]
                write_row(totals, first_column, done, step, scales, sums, offset, bias, activation)


# ---------------------------------------------------------------- the kernels, on any arrays


def _is_packed(x: Array, values: Array, columns: int) -> bool:
    """Tell whether there is something to multiply, and the compiled kernel can do it."""
    return (
        x.size > 0
        and columns > 0
        and values.dtype == INT8
        and values.shape == (packed_length(x.shape[-1], columns),)
    )


def _fits(array: Array | None, columns: int, dtype: np.dtype[Any]) -> bool:
    return array is None or (array.dtype == dtype and array.shape == (columns,))


def _multiply(
    x: Array, rows: Array, values: Array, steps: Array | None, scales: Array | None,
    sums: Array | None, offset: int, bias: Array | None, activation: str | None,
) -> Array:  # fmt: skip
    """Give `x` times the weight, where `rows` are those of `x` in whole lines."""
    count, depth = len(rows), x.shape[-1]
    if scales is None:
        assert sums is not None
        out = np.empty((count, sums.size), np.int32)
    else:
        out = np.empty((count, scales.size), np.float32)
        scales = readable(scales)
    columns = out.shape[1]
    multiply_packed(
        rows, depth, readable(values), steps, scales, None if sums is None else readable(sums),
        offset, NO_BIAS if bias is None else readable(bias), ACTIVATION_CODES[activation], out,
        FLOAT_TILE if sums is None else INTEGER_TILE,
        choose_block_rows(count, columns), WAY,
        work=values.size * (1 + count // 8) // 4,
    )  # fmt: skip
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], columns)


def choose_block_rows(rows: int, columns: int) -> int:
    """Choose how many rows a task takes, so that each thread gets several tasks."""
    if rows <= TILE_ROWS:
        return TILE_ROWS
    blocks = max(1, 4 * THREADS * PANEL_COLUMNS // columns)
    share = -(-rows // blocks)
    return max(TILE_ROWS, min(BLOCK_ROWS, -(-share // TILE_ROWS) * TILE_ROWS))


def _whole_lines(depth: int) -> int:
    return -(-depth // STEP) * STEP


def int8_linear_weight_only(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    columns = scales.size
    if not (
        x.dtype == FLOAT32
        and _is_packed(x, values, columns)
        and _fits(scales, columns, FLOAT32)
        and _fits(bias, columns, FLOAT32)
    ):
        return plain.int8_linear_weight_only(x, values, scales, sums, bias, activation=activation)
    rows, depth = rows_of(x), x.shape[-1]
    if depth % STEP:
        filled = np.zeros((len(rows), _whole_lines(depth)), np.float32)
        filled[:, :depth] = rows
        rows = filled
    return _multiply(x, rows, values, None, scales, None, 0, bias, activation)


def int8_linear_dynamic(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    columns = scales.size
    if not (
        x.dtype == FLOAT32
        and _is_packed(x, values, columns)
        and _fits(scales, columns, FLOAT32)
        and _fits(sums, columns, INT32)
        and _fits(bias, columns, FLOAT32)
    ):
        return plain.int8_linear_dynamic(x, values, scales, sums, bias, activation=activation)
    floats = rows_of(x)
    rows = np.empty((len(floats), _whole_lines(x.shape[-1])), np.uint8)
    steps = np.empty(len(floats), np.float32)
    quantize_rows(floats, rows, steps, work=floats.size)
    return _multiply(x, rows, values, steps, scales, sums, OFFSET, bias, activation)


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
    columns = scales.size
    if not (
        (x.dtype == FLOAT32 or x.dtype == INT8 or x.dtype == UINT8)
        and _is_packed(x, values, columns)
        and _fits(scales, columns, FLOAT32)
        and _fits(sums, columns, INT32)
        and (_fits(bias, columns, FLOAT32) or _fits(bias, columns, INT32))
    ):
        return plain.int8_linear_static(
            x, values, scales, sums, bias,
            scale=scale, zero_point=zero_point, activation=activation,
        )  # fmt: skip
    step = np.float32(scale)
    if x.dtype == FLOAT32:
        floats, offset = rows_of(x), OFFSET
        rows = np.empty((len(floats), _whole_lines(x.shape[-1])), np.uint8)
        steps = np.empty(len(floats), np.float32)
        quantize_rows_by(floats, rows, steps, step, 1 / step, zero_point, work=floats.size)
    else:
        rows, offset = _unsigned(x)
        steps = np.full(len(rows), step)
    offset += zero_point
    if bias is not None and bias.dtype == INT32:  # it is put in where the offset is taken out
        sums, offset, bias = np.int32(offset) * sums - bias, 1, None
    return _multiply(x, rows, values, steps, scales, sums, offset, bias, activation)


def int8_matmul(x: Array, values: Array, sums: Array) -> Array:
    if not (
        (x.dtype == INT8 or x.dtype == UINT8)
        and _is_packed(x, values, sums.size)
        and _fits(sums, sums.size, INT32)
    ):
        return plain.int8_matmul(x, values, sums)
    rows, offset = _unsigned(x)
    return _multiply(x, rows, values, None, None, sums, offset, None, None)


def _unsigned(x: Array) -> tuple[Array, int]:
    """Give bytes (rows, whole lines) without sign, and how much higher they are than `x`."""
    depth = x.shape[-1]
    rows = rows_of(x)
    is_signed = x.dtype == INT8
    if not is_signed and depth % STEP == 0:
        return rows, 0
    filled = np.zeros((len(rows), _whole_lines(depth)), np.uint8)
    filled[:, :depth] = rows.view(np.uint8)
    if is_signed:
        filled ^= OFFSET  # the same as adding 128
    return filled, OFFSET if is_signed else 0


KERNELS: dict[str, Kernel] = {
    "int8_matmul": int8_matmul,
    "int8_linear_weight_only": int8_linear_weight_only,
    "int8_linear_dynamic": int8_linear_dynamic,
    "int8_linear_static": int8_linear_static,
}
