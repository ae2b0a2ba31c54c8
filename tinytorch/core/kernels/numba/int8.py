"""INT8 products of the compiled backend: a quarter of the bytes, and four products at a time.

With few rows a product takes as long as its weight takes to read, so INT8 weights alone make it up
to four times faster (`int8_linear_weight_only`). With many rows it takes as long as multiplying
does; there the activations become INT8 too, with a given scale (`int8_linear_static`) or by the
largest element of each row (`int8_linear_dynamic`), and integers are multiplied exactly.

The instruction for that takes activations without a sign. They are stored 128 too high, and what
this adds to the result, 128 times the sum of each column of the weight, is taken away at the end.
The loops check no bounds, so every shape is checked before; what does not fit goes to the NumPy
kernel, which raises."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from tinytorch.core.kernels import numpy_quantized as plain
from tinytorch.core.kernels.backend import Array, Kernel
from tinytorch.core.kernels.numba import simd as fast
from tinytorch.core.kernels.numba.compile import (
    FLOAT32,
    LOOPS,
    PARALLEL_WORK,
    THREADS,
    compiled,
    flat,
    inlined,
    inlined_in_order,
    readable,
    rows_of,
)
from tinytorch.core.kernels.numba.int8_simd import (
    expect_writes,
    packed_tile,
    scale_integers,
    scale_integers_and_add,
    unpack_columns,
)
from tinytorch.core.kernels.numba.products import ACTIVATION_CODES, finish_row
from tinytorch.core.kernels.numba.simd import LANES, TILE_COLUMNS
from tinytorch.core.kernels.packing import PANEL_COLUMNS, STEP, packed_length
from tinytorch.core.kernels.reference_quantized import (
    LARGEST,
    OFFSET,
    SMALLEST_ROW,
)

# ---------------------------------------------------------------- the loops of INT8 products: rows
# become bytes, tiles of sums, results in floats
#
# A task multiplies a block of rows with a panel of columns, tile by tile (`int8_simd`),
# and turns each tile into results while it is in the nearest cache.

TILE_ROWS = 4
"""Rows of a tile: 4 x 4 sums keep the multipliers busy, and leave registers for their factors."""

TILE_SIZE = TILE_ROWS * PANEL_COLUMNS
NAN = np.float32(np.nan)

tile_of_4, tile_of_2, tile_of_1 = (packed_tile(rows) for rows in (4, 2, 1))

# ---------------------------------------------------------------- activations become bytes


@inlined_in_order
def row_scale(largest):
    """Return the step of a row and its inverse; a row that is not finite has the step NaN."""
    if largest < SMALLEST_ROW:
        return fast.ONE, fast.ZERO
    if largest - largest != fast.ZERO:
        return NAN, fast.ZERO
    return largest / LARGEST, LARGEST / largest


@inlined
def largest_of(row):
    """Return the largest size of an element, or NaN if there is one."""
    largest = fast.ZERO
    for k in range(row.size):
        largest = fast.larger(largest, abs(row[k]))
    return largest


@inlined
def quantize_by_largest(row, done):
    """Quantize a row of floats to bytes by its largest element; return its step."""
    step, inverse = row_scale(largest_of(row))
    if inverse == fast.ZERO:
        done[:] = OFFSET
    else:
        for k in range(row.size):
            done[k] = np.uint8(np.int32(np.rint(row[k] * inverse)) + OFFSET)
    return step


@inlined
def quantize_by(row, done, step, inverse, zero_point):
    """Quantize a row with a given step; values beyond the range saturate."""
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
    floats; without `scales` the result is integers. `tile_like` is an example of a sum.
    """
    for worker in prange(workers):
        multiply_share(
            np.int64(worker),  # without a sign numba would mix it with others as floats
            workers, a, values, steps, scales, excess, bias, activation, out,
            np.empty(TILE_SIZE, tile_like.dtype), block_rows, way,
        )  # fmt: skip


@inlined
def excess_of(sums, offset, whole_bias):
    """Return what sums of products are too high by, for each column; a bias makes it less."""
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
    """Quantize rows of floats and multiply them, fused to save the overhead of a call."""
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


# ---------------------------------------------------------------- INT8 products of the compiled
# backend: a quarter of the bytes, and four products at a time

BLOCK_ROWS = 64 * TILE_ROWS
"""Rows of the result that one task computes at most: each fetches its panel from memory again."""

WAY = None
"""How integers are multiplied: None is the fastest way, see numba_int8_simd; tests take others."""

INT8, UINT8, INT32 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32)
NO_BIAS, NO_WHOLE_BIAS = np.empty(0, np.float32), np.empty(0, np.int32)


# ---------------------------------------------------------------- does it fit?


def _is_packed(x: Array, values: Array, columns: int) -> bool:
    """Return whether there is work, and the weight fits `x`."""
    return (
        x.size > 0
        and columns > 0
        and values.dtype == INT8
        and values.shape == (packed_length(x.shape[-1], columns),)
    )


def _are_columns(scales: Array, bias: Array | None, sums: Array | None = None) -> bool:
    """Return whether all have one number per column, of the dtypes that the loops support."""
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
    """Return how much work there is, and how many share it."""
    work = values.size * (1 + rows // 8) // 4
    return work, 1 if work < PARALLEL_WORK else THREADS


def _shaped(out: Array, x: Array) -> Array:
    """Return results (rows, columns) the shape that belongs to `x`."""
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], out.shape[1])


def _multiply_floats_as_bytes(
    x: Array, values: Array, scales: Array, sums: Array, bias: Array | None,
    activation: str | None, *, is_dynamic: bool, scale: float = 1.0, zero_point: int = 0,
) -> Array:  # fmt: skip
    """Return `x` times the weight, where rows of `x` are quantized by themselves or by `scale`."""
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
    """Return `x` times the weight, where `rows` are those of `x` in whole lines."""
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
    """Return rows (rows, depth) filled up with zeros to a multiple of STEP."""
    missing = -rows.shape[1] % STEP
    if not missing:
        return rows
    filled = np.zeros((len(rows), rows.shape[1] + missing), rows.dtype)
    filled[:, :-missing] = rows
    return filled


def _unsigned(x: Array) -> tuple[Array, int]:
    """Return bytes (rows, whole lines) without sign, and how much higher they are than `x`."""
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


# ---------------------------------------------------------------- looking up rows of an INT8 table
# with the compiled backend


def int8_embedding(ids: Array, values: Array, scales: Array, *, width: int) -> Array:
    tokens = scales.size
    if (
        ids.dtype.kind in "iu"
        and ids.size > 0
        and width > 0
        and tokens > 0
        and scales.dtype == FLOAT32
        and scales.shape == (tokens,)
        and values.dtype == np.int8
        and values.shape == (packed_length(width, tokens),)
    ):
        out = np.empty(ids.size * width, FLOAT32)
        numbers = flat(ids.astype(np.int64, copy=False))
        if unpack_columns(numbers, readable(values), readable(scales), width, out, work=out.size):
            return out.reshape(*ids.shape, width)
    return plain.EMBEDDING_KERNELS["int8_embedding"](ids, values, scales, width=width)


EMBEDDING_KERNELS: dict[str, Kernel] = {"int8_embedding": int8_embedding}
