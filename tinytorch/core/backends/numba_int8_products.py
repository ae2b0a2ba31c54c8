"""The loops of INT8 products: rows become bytes, tiles of sums, results in floats.

A task multiplies a block of rows with a panel of columns, tile by tile (:mod:`numba_int8_simd`),
and turns each tile into results while it is in the nearest cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from tinytorch.core.backends import numba_math as fast
from tinytorch.core.backends.int8_packing import PANEL_COLUMNS, STEP
from tinytorch.core.backends.numba_compile import (
    LOOPS,
    PARALLEL_WORK,
    compiled,
    inlined,
    inlined_in_order,
)
from tinytorch.core.backends.numba_int8_simd import (
    expect_writes,
    packed_tile,
    scale_integers,
    scale_integers_and_add,
)
from tinytorch.core.backends.numba_products import finish_row
from tinytorch.core.backends.numba_simd import LANES, TILE_COLUMNS
from tinytorch.core.backends.reference_int8 import LARGEST, OFFSET, SMALLEST_ROW

__all__ = [
    "NAN",
    "TILE_ROWS",
    "TILE_SIZE",
    "largest_of",
    "multiply_packed",
    "quantize_and_multiply",
    "row_scale",
]

TILE_ROWS = 4
"""Rows of a tile: 4 x 4 sums keep the multipliers busy, and leave registers for their factors."""

TILE_SIZE = TILE_ROWS * PANEL_COLUMNS
NAN = np.float32(np.nan)

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


@inlined
def quantize_by_largest(row, done):
    """Turn a row of floats into bytes, by its own largest element; give its step."""
    step, inverse = row_scale(largest_of(row))
    if inverse == fast.ZERO:
        done[:] = OFFSET
    else:
        for k in range(row.size):
            done[k] = np.uint8(np.int32(np.rint(row[k] * inverse)) + OFFSET)
    return step


@inlined
def quantize_by(row, done, step, inverse, zero_point):
    """Do the same with a given step; what lies beyond the range saturates."""
    lowest = np.float32(-OFFSET - zero_point)
    highest = np.float32(OFFSET - 1 - zero_point)
    is_number = True
    for k in range(row.size):
        value = np.rint(row[k] * inverse)
        is_number &= value == value
        value = lowest if value < lowest else value
        value = highest if value > highest else value
        value = value if value == value else fast.ZERO
        done[k] = np.uint8(np.int32(value) + zero_point + OFFSET)
    return step if is_number else NAN


@njit(**LOOPS)  # not inlined: it is called in two places
def quantize_row(row, done, is_dynamic, step, zero_point):
    if is_dynamic:
        return quantize_by_largest(row, done)
    return quantize_by(row, done, step, fast.ONE / step, zero_point)


# ---------------------------------------------------------------- one tile


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
def scale_row(tile, place, first, width, step, scales, excess, bias, out, at):
    """Turn a row of sums into results: take the excess away, scale, and add the bias."""
    in_vectors = width // LANES * LANES
    if bias.size:
        for j in range(0, in_vectors, LANES):
            scale_integers_and_add(
                tile, place + j, excess, scales, bias, first + j, step, out, at + j
            )
    else:
        for j in range(0, in_vectors, LANES):
            scale_integers(tile, place + j, excess, scales, bias, first + j, step, out, at + j)
    if in_vectors < width:  # or LLVM prepares a loop that is hardly ever run
        for j in range(in_vectors, width):
            total = np.int32(tile[place + j] - excess[first + j])
            result = np.float32(total) * (step * scales[first + j])
            out[at + j] = result + bias[first + j] if bias.size else result


@inlined
def write_row(tile, place, first, width, step, scales, excess, bias, activation, out, at):
    """Turn a row of sums into results, and apply the activation."""
    done = out[at : at + width]
    # Where an argument is None, numba leaves out what that makes unreachable.
    if scales is None:  # the sums themselves
        if excess is not None:
            totals = tile[place : place + width]
            for j in range(width):
                done[j] = np.int32(totals[j] - excess[first + j])
    elif excess is None:  # sums of floats
        totals = tile[place : place + width]
        for j in range(width):
            done[j] = totals[j] * scales[first + j]
        finish_row(done, bias[first : first + width], activation)
    else:
        scale_row(tile, place, first, width, step, scales, excess, bias, out, at)
        if activation:
            finish_row(done, bias[:0], activation)


# ---------------------------------------------------------------- whole products


@njit(**LOOPS)  # not inlined: two kernels call it, each in a serial and a parallel version
def multiply_share(
    worker, workers, a, values, steps, scales, excess, bias, activation, out, tile, block_rows, way
):
    """Do the share of a worker: its tasks are blocks of rows with panels of columns."""
    rows, columns = out.shape
    a_row, lines = a.shape[1], a.shape[1] // STEP
    results = out.reshape(-1)
    panels = (columns + PANEL_COLUMNS - 1) // PANEL_COLUMNS
    tasks = panels * ((rows + block_rows - 1) // block_rows)
    share = (tasks + workers - 1) // workers
    for task in range(worker * share, min((worker + 1) * share, tasks)):
        first_row = task // panels * block_rows
        last_row = min(first_row + block_rows, rows)
        first = task % panels * PANEL_COLUMNS
        width = min(PANEL_COLUMNS, columns - first)
        for row in range(first_row, last_row, TILE_ROWS):
            height = min(TILE_ROWS, last_row - row)
            for each in range(row, row + height):
                expect_writes(results, each * columns + first)
            for column in range(0, width, TILE_COLUMNS):
                last = (width - column - 1) // LANES * LANES * STEP
                multiply_rows(
                    a, row * a_row, a_row, height, values, (first * lines + column) * STEP,
                    width * STEP, last, lines, tile, column, way,
                )  # fmt: skip
            for each in range(height):
                step = fast.ONE if steps is None else steps[row + each]
                write_row(
                    tile, each * PANEL_COLUMNS, first, width, step, scales, excess, bias,
                    activation, results, (row + each) * columns + first,
                )  # fmt: skip


@compiled
def multiply_packed(
    a, values, steps, scales, excess, bias, activation, out, tile_like, block_rows, workers, way
):
    """Multiply rows (rows, whole lines) with a packed weight.

    `excess` is what sums of products are too high by, for each column. Without it the rows are
    floats; without `scales` the result is whole numbers. `tile_like` is an example of a sum.
    """
    for worker in prange(workers):
        multiply_share(
            np.int64(worker),  # without a sign numba would mix it with others as floats
            workers, a, values, steps, scales, excess, bias, activation, out,
            np.empty(TILE_SIZE, tile_like.dtype), block_rows, way,
        )  # fmt: skip


@inlined
def excess_of(sums, offset, whole_bias):
    """Give what sums of products are too high by, for each column; a bias makes it less."""
    excess = np.empty_like(sums)
    for j in range(sums.size):
        excess[j] = np.int32(offset * sums[j])
    for j in range(whole_bias.size):
        excess[j] = np.int32(excess[j] - whole_bias[j])
    return excess


@compiled
def quantize_and_multiply(
    x, is_dynamic, scale, zero_point, values, scales, sums, whole_bias, bias, activation, out,
    block_rows, workers, way,
):  # fmt: skip
    """Turn rows of floats into bytes and multiply these, in one call since each takes a while."""
    rows, depth = x.shape
    # behind a row may be anything: the weights there are zero
    a = np.empty((rows, (depth + STEP - 1) // STEP * STEP), np.uint8)
    steps = np.empty(rows, np.float32)
    step = np.float32(scale)
    if x.size < PARALLEL_WORK:  # waking up threads would take longer
        for row in range(rows):
            steps[row] = quantize_row(x[row], a[row], is_dynamic, step, zero_point)
    else:
        for row in prange(rows):
            steps[row] = quantize_row(x[row], a[row], is_dynamic, step, zero_point)
    excess = excess_of(sums, OFFSET + zero_point, whole_bias)
    for worker in prange(workers):
        multiply_share(
            np.int64(worker), workers, a, values, steps, scales, excess, bias, activation, out,
            np.empty(TILE_SIZE, np.int32), block_rows, way,
        )  # fmt: skip
