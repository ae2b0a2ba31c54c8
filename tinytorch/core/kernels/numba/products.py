"""Matrix products of the compiled backend, with bias and activation while the result is hot.

A product is cut into *panels* of one to VECTORS vectors, as equal as can be. For each panel a
micro-kernel walks down the rows, six at a time, and keeps a tile of sums in registers
(`simd`). A panel whose rows are no neighbours in memory is first copied together. One
row alone is no product to speak of: there the matrix is read once from memory, and that is all that
counts.
"""

from __future__ import annotations

import threading

import numpy as np
from numba import prange

from tinytorch.core.kernels import backend as products
from tinytorch.core.kernels import numpy as plain
from tinytorch.core.kernels.backend import Array, Kernel
from tinytorch.core.kernels.numba import simd as fast
from tinytorch.core.kernels.numba.compile import (
    PARALLEL_WORK,
    THREADS,
    compiled,
    flat,
    inlined,
    readable,
)
from tinytorch.core.kernels.numba.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    VECTORS,
    copy_vectors,
    narrow_tile_product,
    tile_product,
    transpose_block,
)
from tinytorch.core.kernels.reference import ACTIVATIONS

DEPTH = 512
"""Rows of a panel that are used before the next are fetched: 128 KiB, a part of an L2 cache."""

BLOCK_ROWS = 64 * TILE_ROWS
"""Rows of the result that one task computes at most."""

ROWS_WORTH_PACKING = 256
WIDTH_WORTH_PACKING = 2048
"""A panel is packed first when this many rows use it and its own rows are this far apart."""

STREAMS, SHORT_ROW, NARROW_ROW = 8, 1024, 2 * TILE_COLUMNS
"""How many rows a vector takes at once where they are long; below NARROW_ROW it takes all."""

SMALLEST_PRODUCT = 1 << 13
"""Multiply-accumulates below which a BLAS call takes less time than checking the arguments."""

NARROWEST_PRODUCT = TILE_COLUMNS // 2
"""Columns below which tiles are so narrow that BLAS, which starts sooner, is faster ..."""

LARGEST_FOR_BLAS = 1 << 18
"""... but never more work than this: it would start threads of its own, which then keep a core busy
for some time after they are done, and ours waiting."""

ACTIVATION_CODES: dict[str | None, int] = {None: 0}
ACTIVATION_CODES |= {name: code for code, name in enumerate(ACTIVATIONS, 1)}

tile_of_6, tile_of_4, tile_of_2, tile_of_1 = (narrow_tile_product(n) for n in (6, 4, 2, 1))
one_row, one_narrow_row = tile_product(1), narrow_tile_product(1, 2 * VECTORS)


@inlined
def multiply_rows(
    a, a_offset, a_row, a_step, rows, panel, panel_offset, panel_row, depth,
    out, out_offset, out_row, add_to_out, vectors,
):  # fmt: skip
    """Multiply `rows` rows with a panel, in tiles of six rows and what is left in smaller ones."""
    row = 0
    while row + 6 <= rows:
        tile_of_6(
            a, a_offset + row * a_row, a_row, a_step, panel, panel_offset, panel_row, depth,
            out, out_offset + row * out_row, out_row, add_to_out, vectors,
        )  # fmt: skip
        row += 6
    if row + 4 <= rows:
        tile_of_4(
            a, a_offset + row * a_row, a_row, a_step, panel, panel_offset, panel_row, depth,
            out, out_offset + row * out_row, out_row, add_to_out, vectors,
        )  # fmt: skip
        row += 4
    if row + 2 <= rows:
        tile_of_2(
            a, a_offset + row * a_row, a_row, a_step, panel, panel_offset, panel_row, depth,
            out, out_offset + row * out_row, out_row, add_to_out, vectors,
        )  # fmt: skip
        row += 2
    if row < rows:
        tile_of_1(
            a, a_offset + row * a_row, a_row, a_step, panel, panel_offset, panel_row, depth,
            out, out_offset + row * out_row, out_row, add_to_out, vectors,
        )  # fmt: skip


@inlined
def pack_panel(b, b_offset, b_row, b_step, depth, columns, panel, panel_row):
    """Copy b[:depth, :columns] into a dense panel of `panel_row` columns, filled up with zeros."""
    if b_step == 1 and columns == TILE_COLUMNS:
        for k in range(depth):
            copy_vectors(b, b_offset + k * b_row, panel, k * TILE_COLUMNS)
        return
    if columns < panel_row:
        panel[: depth * panel_row] = np.float32(0)
    if b_step == 1:
        for k in range(depth):
            for column in range(columns):
                panel[k * panel_row + column] = b[b_offset + k * b_row + column]
        return
    # Columns are contiguous instead of rows: turn whole blocks around, and the rest by elements.
    blocks, column_blocks = depth // LANES * LANES, columns // LANES * LANES
    for first in range(0, blocks, LANES):
        for column in range(0, column_blocks, LANES):
            transpose_block(
                b, b_offset + column * b_step + first, b_step,
                panel, first * panel_row + column, panel_row,
            )  # fmt: skip
    for column in range(columns):
        for k in range(0 if column >= column_blocks else blocks, depth):
            panel[k * panel_row + column] = b[b_offset + column * b_step + k]


@inlined
def finish_row(row, bias, activation):
    """Add the bias to (a part of) a row and apply the activation, in place."""
    if bias.size:
        for j in range(row.size):
            row[j] += bias[j]
    if activation == 1:
        for j in range(row.size):
            row[j] = fast.larger(row[j], fast.ZERO)
    elif activation == 2:
        for j in range(row.size):
            row[j] = fast.gelu(row[j], True)
    elif activation == 3:
        for j in range(row.size):
            row[j] = fast.gelu(row[j], False)
    elif activation == 4:
        for j in range(row.size):
            row[j] = fast.tanh(row[j])
    elif activation == 5:
        for j in range(row.size):
            row[j] = fast.sigmoid(row[j])


@compiled
def multiply(
    a, a_stack, a_row, a_step, b, b_stack, b_row, b_step, out, stack, rows, depth, columns,
    bias, activation, block_rows, packs, scratch,
):  # fmt: skip
    """Compute a stack of products (rows, depth) @ (depth, columns), cut into panels and blocks.

    Each of the workers, which are as many as `scratch` has rows, does neighbouring tasks.
    """
    vectors = (columns + LANES - 1) // LANES
    panels = (vectors + VECTORS - 1) // VECTORS
    blocks = (rows + block_rows - 1) // block_rows
    tasks, workers = stack * panels * blocks, len(scratch)
    share = (tasks + workers - 1) // workers
    for worker in prange(workers):
        mine = scratch[worker]
        # numbers of workers have no sign, and together with signed ones become floats
        first = np.int64(worker) * share
        for task in range(first, min(first + share, tasks)):
            item, place = divmod(task, panels * blocks)
            panel, block = divmod(place, blocks)
            first_vector, last_vector = panel * vectors // panels, (panel + 1) * vectors // panels
            first_column, first_row = first_vector * LANES, block * block_rows
            width = min(last_vector * LANES, columns) - first_column
            multiply_block(
                a, item * a_stack + first_row * a_row, a_row, a_step,
                b, item * b_stack + first_column * b_step, b_row, b_step,
                out, (item * rows + first_row) * columns + first_column, columns,
                min(block_rows, rows - first_row), depth, width, last_vector - first_vector,
                packs, mine,
            )  # fmt: skip
            for row in range(first_row, min(first_row + block_rows, rows)):
                start = (item * rows + row) * columns + first_column
                finish_row(out[start : start + width], bias[first_column:], activation)


@inlined
def rows_within(elements, offset, row, width, rows):
    """Count the rows from which `width` elements can be read, even if the last are the next's."""
    return max(0, min(rows, (elements.size - offset - width) // row + 1))


@inlined
def multiply_block(
    a, a_start, a_row, a_step, b, b_start, b_row, b_step, out, out_start, out_row,
    height, depth, width, vectors, packs, scratch,
):  # fmt: skip
    """Multiply some rows with one panel of b, DEPTH of its rows at a time."""
    padded = vectors * LANES
    is_ragged = width < padded
    edge = DEPTH * TILE_COLUMNS
    # The micro-kernel writes whole vectors: at the edge it gets room beside the result ...
    target = scratch if is_ragged else out
    target_offset, target_row = (edge, padded) if is_ragged else (out_start, out_row)
    # ... and reads whole vectors, which end in the next row, except where there is none.
    direct = 0 if packs or b_step != 1 else rows_within(b, b_start, b_row, padded, depth)
    start = 0
    while start < depth:
        taken = min(DEPTH, (direct if start < direct else depth) - start)
        source, source_offset, source_row = b, b_start + start * b_row, b_row
        if start >= direct:
            pack_panel(b, source_offset, b_row, b_step, taken, width, scratch, padded)
            source, source_offset, source_row = scratch, 0, padded
        multiply_rows(
            a, a_start + start * a_step, a_row, a_step, height,
            source, source_offset, source_row, taken,
            target, target_offset, target_row, start > 0, vectors,
        )  # fmt: skip
        start += taken
    if is_ragged:
        for row in range(height):
            at = out_start + row * out_row
            done = out[at : at + width]
            tile = scratch[edge + row * padded : edge + (row + 1) * padded]
            for j in range(width):
                done[j] = tile[j]


@inlined
def add_rows(x, elements, rows, columns, first, last, sums):
    """Set sums to x[first:last] @ matrix[first:last]: neighbouring rows, read once, in order.

    The sums of narrow rows stay in registers. Short rows are one stream, which the processor
    fetches ahead best. While a long row passes by, the sums would leave the first-level cache;
    there eight rows at a time share a pass.
    """
    vectors = (columns + LANES - 1) // LANES
    direct = rows_within(elements, 0, columns, vectors * LANES, rows)
    streams = rows if columns <= NARROW_ROW else 1 if columns <= SHORT_ROW else STREAMS
    whole = 0 if columns <= NARROW_ROW else vectors // VECTORS * TILE_COLUMNS
    rest = vectors - whole // LANES
    sums[:] = fast.ZERO
    row = first
    while row < last:
        if row < direct:
            taken = min(streams, min(last, direct) - row)
            for column in range(0, whole, TILE_COLUMNS):
                at = row * columns + column
                one_row(x, row, 0, 1, elements, at, columns, taken, sums, column, 0, True)
            at = row * columns + whole
            one_narrow_row(x, row, 0, 1, elements, at, columns, taken, sums, whole, 0, True, rest)
        else:  # whole vectors would end beyond the matrix
            taken = 1
            line = elements[row * columns : (row + 1) * columns]
            for j in range(columns):
                sums[j] += x[row] * line[j]
        row += taken


@inlined
def merge_sums(partial, bias, activation, out):
    """Add up the sums (parts, columns) of a product's parts, and finish it."""
    for j in range(out.size):
        total = partial[0, j]
        for part in range(1, partial.shape[0]):
            total += partial[part, j]
        out[j] = total
    finish_row(out, bias, activation)


@compiled
def multiply_vector_by_rows(x, matrix, out, partial, parts, bias, activation):
    """Compute x @ matrix for a matrix in rows, cut into parts of neighbouring rows."""
    rows, columns = matrix.shape
    elements = matrix.reshape(-1)
    share = (rows + parts - 1) // parts
    for part in prange(parts):
        first = np.int64(part) * share
        add_rows(x, elements, rows, columns, first, min(rows, first + share), partial[part])
    merge_sums(partial[:parts], bias, activation, out)


@inlined
def multiply_columns(x, columns, first, last, bias, activation, out):
    """Compute x @ columns[first:last].T: one dot product for each row of `columns`."""
    for column in range(first, last):
        factors = columns[column]
        total = fast.ZERO
        for k in range(columns.shape[1]):
            total += x[k] * factors[k]
        out[column] = total
    if first < last:
        finish_row(out[first:last], bias[first:last], activation)


@compiled
def multiply_vector_by_columns(x, columns, out, parts, bias, activation):
    """Compute x @ columns.T, cut into parts of neighbouring columns."""
    count = len(columns)
    share = (count + parts - 1) // parts
    for part in prange(parts):
        first = np.int64(part) * share
        multiply_columns(x, columns, first, min(count, first + share), bias, activation, out)


class _Scratch(threading.local):
    """Memory that the kernels called by one Python thread use again and again."""

    def __init__(self) -> None:
        self._array = np.empty(0, np.float32)

    def of(self, rows: int, width: int) -> Array:
        """Return an uninitialised array (rows, width)."""
        if self._array.size < rows * width:
            self._array = np.empty(rows * width, np.float32)
        return self._array[: rows * width].reshape(rows, width)


_scratch = _Scratch()
_NO_BIAS = np.empty(0, np.float32)
PANEL_SCRATCH = (DEPTH + BLOCK_ROWS) * TILE_COLUMNS


def _flat(array: Array) -> tuple[Array, int, int, int]:
    """Return the elements of a stack of matrices, and the steps to the next matrix, row, column."""
    rows, columns = array.shape[-2:]
    turned = array.swapaxes(-1, -2)
    if turned.flags.c_contiguous and not array.flags.c_contiguous:
        return flat(turned), rows * columns, 1, rows
    return flat(array), rows * columns, columns, 1


def _product(a: Array, b: Array, bias: Array | None, activation: str | None) -> Array:
    """Multiply stacks of matrices (stack, rows, depth) and (stack, depth, columns), all float32."""
    *stack, rows, depth = a.shape
    columns = b.shape[-1]
    count = 1
    for length in stack:
        count *= length
    out = np.empty((*stack, rows, columns), np.float32)
    bias = _NO_BIAS if bias is None else readable(bias)
    code = ACTIVATION_CODES[activation]
    work = count * depth * columns * (1 + rows // 8)
    if count == rows == 1:
        _multiply_vector(flat(a), b.reshape(b.shape[-2:]), out.reshape(-1), bias, code)
        return out
    elements_b, b_stack, b_row, b_step = _flat(b)
    elements_a, a_stack, a_row, a_step = _flat(a)
    multiply(
        elements_a, a_stack, a_row, a_step, elements_b, b_stack, b_row, b_step, out.reshape(-1),
        count, rows, depth, columns, bias, code, _block_rows(count, rows, columns),
        rows >= ROWS_WORTH_PACKING and columns >= WIDTH_WORTH_PACKING,
        _scratch.of(1 if work < PARALLEL_WORK else THREADS, PANEL_SCRATCH), work=work,
    )  # fmt: skip
    return out


def _multiply_vector(x: Array, matrix: Array, out: Array, bias: Array, activation: int) -> None:
    parts = 1 if matrix.size < PARALLEL_WORK else THREADS
    if matrix.T.flags.c_contiguous:
        pieces = parts if len(out) < 1024 else 8 * parts
        columns = readable(matrix.T)
        multiply_vector_by_columns(x, columns, out, pieces, bias, activation, work=matrix.size)
        return
    sums = _scratch.of(parts, -(-len(out) // LANES) * LANES)
    matrix = readable(matrix)
    multiply_vector_by_rows(x, matrix, out, sums, parts, bias, activation, work=matrix.size)


def _block_rows(count: int, rows: int, columns: int) -> int:
    """Choose how many rows a task takes: many, but each thread gets as much to do as the others."""
    panels = count * (-(-columns // TILE_COLUMNS))
    blocks = 1
    while panels * blocks % THREADS and panels * blocks < 4 * THREADS:
        blocks += 1
    share = -(-rows // blocks)
    return max(TILE_ROWS, min(BLOCK_ROWS, -(-share // TILE_ROWS) * TILE_ROWS))


def _suits_blas(rows: int, macs: int, columns: int) -> bool:
    """Return whether the product is so small that BLAS on one thread is faster."""
    if macs < SMALLEST_PRODUCT:
        return True
    return columns < NARROWEST_PRODUCT and macs <= LARGEST_FOR_BLAS and rows > 1


def matmul(a: Array, b: Array) -> Array:
    if (
        a.ndim >= 2
        and a.ndim == b.ndim
        and a.shape[:-2] == b.shape[:-2]
        and a.shape[-1] == b.shape[-2]
        and a.dtype == b.dtype == np.float32
        and not _suits_blas(a.shape[-2], a.size * b.shape[-1], b.shape[-1])
    ):
        return _product(a, b, None, None)
    return products.matmul(a, b)


def linear(
    x: Array, weight: Array, bias: Array | None = None, *, activation: str | None = None
) -> Array:
    depth, columns = weight.shape
    if (
        x.shape[-1] != depth
        or not depth
        or _suits_blas(x.size // depth, x.size * columns, columns)
        or x.dtype != np.float32
        or weight.dtype != np.float32
        or (bias is not None and (bias.dtype != np.float32 or bias.shape != (columns,)))
    ):
        return plain.linear(x, weight, bias, activation=activation)
    if x.size == depth:  # one row, as for every generated token
        out = np.empty((*x.shape[:-1], columns), np.float32)
        offset = _NO_BIAS if bias is None else readable(bias)
        _multiply_vector(flat(x), weight, out.reshape(-1), offset, ACTIVATION_CODES[activation])
        return out
    rows = x if x.ndim == 2 else x.reshape(-1, depth)
    result = _product(rows, weight, bias, activation)
    return result if x.ndim == 2 else result.reshape(*x.shape[:-1], columns)


KERNELS: dict[str, Kernel] = {"matmul": matmul, "linear": linear}
