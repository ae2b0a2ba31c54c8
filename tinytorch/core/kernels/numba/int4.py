"""Products with INT4 weights of the compiled backend: an eighth of the bytes of float32.

The tiles are those of INT8 weights (`int8_simd`). Each group of inputs has scales of its
own, so a tile adds up one group only; then its sums are scaled and added to the result.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from tinytorch.core.kernels import reference_quantized as plain
from tinytorch.core.kernels.backend import Array, Kernel
from tinytorch.core.kernels.numba.compile import (
    FLOAT32,
    LOOPS,
    compiled,
    inlined,
    readable,
    rows_of,
)
from tinytorch.core.kernels.numba.int8 import INT8, NO_BIAS, TILE_ROWS, TILE_SIZE, choose_block_rows
from tinytorch.core.kernels.numba.int8_simd import add_scaled, packed_tile
from tinytorch.core.kernels.numba.products import ACTIVATION_CODES, finish_row
from tinytorch.core.kernels.numba.simd import LANES, TILE_COLUMNS, ZERO
from tinytorch.core.kernels.packing import PANEL_COLUMNS, STEP, STEP_INT4, packed_length_int4

tile_of_4, tile_of_1 = (packed_tile(rows, bits=4) for rows in (4, 1))


@inlined
def multiply_rows(a, at, a_row, rows, values, offset, line_step, last, lines, tile, place):
    """Multiply up to four rows with the columns of a tile."""
    if rows == 4:
        tile_of_4(
            a, at, a_row, values, offset, line_step, last, lines, tile, place, PANEL_COLUMNS, None
        )
        return
    for row in range(rows):
        tile_of_1(
            a, at + row * a_row, a_row, values, offset, line_step, last, lines,
            tile, place + row * PANEL_COLUMNS, PANEL_COLUMNS, None,
        )  # fmt: skip


@inlined
def add_row(totals, scales, done):
    """Scale the sums of a group and add them to a row of the result."""
    in_vectors = done.size // LANES * LANES
    for j in range(0, in_vectors, LANES):
        add_scaled(totals, j, scales, j, done, j)
    for j in range(in_vectors, done.size):
        done[j] += totals[j] * scales[j]


@njit(**LOOPS)  # not inlined: two kernels call it
def multiply_task(
    task, a, lines, group_lines, values, scales, bias, activation, out, block_rows, tile
):
    """Multiply a block of rows with a panel of columns."""
    rows, columns = out.shape
    a_row, elements = a.shape[1], a.reshape(-1)
    panels = (columns + PANEL_COLUMNS - 1) // PANEL_COLUMNS
    first_row = task // panels * block_rows
    first = task % panels * PANEL_COLUMNS
    width = min(PANEL_COLUMNS, columns - first)
    for row in range(first_row, min(first_row + block_rows, rows), TILE_ROWS):
        height = min(TILE_ROWS, first_row + block_rows - row, rows - row)
        out[row : row + height, first : first + width] = ZERO
        for group in range(scales.shape[0]):
            line = group * group_lines
            start = (first * lines + line * width) * STEP
            for column in range(0, width, TILE_COLUMNS):
                last = (width - column - 1) // LANES * LANES * STEP
                multiply_rows(
                    elements, row * a_row + line * STEP_INT4, a_row, height, values,
                    start + column * STEP, width * STEP, last, min(group_lines, lines - line),
                    tile, column,
                )  # fmt: skip
            for each in range(height):
                totals = tile[each * PANEL_COLUMNS : (each + 1) * PANEL_COLUMNS]
                done = out[row + each, first : first + width]
                add_row(totals, scales[group, first : first + width], done)
        for each in range(height):
            done = out[row + each, first : first + width]
            finish_row(done, bias[first : first + width], activation)


@compiled
def multiply_groups(a, lines, group_lines, values, scales, bias, activation, out, block_rows):
    """Multiply rows with a packed weight: a task is a block of rows and a panel of columns."""
    rows, columns = out.shape
    panels = (columns + PANEL_COLUMNS - 1) // PANEL_COLUMNS
    blocks = (rows + block_rows - 1) // block_rows
    for task in prange(panels * blocks):
        multiply_task(
            np.int64(task),  # without a sign numba would mix it with others as floats
            a, lines, group_lines, values, scales, bias, activation, out, block_rows,
            np.empty(TILE_SIZE, np.float32),
        )  # fmt: skip


def int4_linear_weight_only(
    x: Array,
    values: Array,
    scales: Array,
    bias: Array | None = None,
    *,
    group_size: int,
    activation: str | None = None,
) -> Array:
    columns, depth = scales.shape[1], x.shape[-1]
    if not (
        x.dtype == FLOAT32
        and scales.dtype == FLOAT32
        and values.dtype == INT8
        and x.size > 0
        and columns > 0
        and group_size % STEP_INT4 == 0
        and scales.shape[0] == -(-depth // group_size)
        and values.shape == (packed_length_int4(depth, columns),)
        and (bias is None or (bias.dtype == FLOAT32 and bias.shape == (columns,)))
    ):
        return plain.int4_linear_weight_only(
            x, values, scales, bias, group_size=group_size, activation=activation
        )
    rows, lines = rows_of(x), -(-depth // STEP_INT4)
    if depth % STEP_INT4:
        filled = np.zeros((len(rows), lines * STEP_INT4), np.float32)
        filled[:, :depth] = rows
        rows = filled
    count = len(rows)
    out = np.empty((count, columns), np.float32)
    multiply_groups(
        rows, lines, group_size // STEP_INT4, readable(values), readable(scales),
        NO_BIAS if bias is None else readable(bias), ACTIVATION_CODES[activation], out,
        choose_block_rows(count, columns), work=values.size * (1 + count // 8) // 2,
    )  # fmt: skip
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], columns)


KERNELS: dict[str, Kernel] = {"int4_linear_weight_only": int4_linear_weight_only}
