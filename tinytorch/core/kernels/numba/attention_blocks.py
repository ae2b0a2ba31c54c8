"""What the compiled kernels of attention share: arrays of any layout, packing, products of blocks.

Heads arrive as views: queries of a transposed (batch, time, heads, d), keys and values of a longer
cache. The kernels read them where they lie. They get the whole arrays, whatever their strides, and
find a row by its distance in elements from the first one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from tinytorch.core.kernels.backend import Array
from tinytorch.core.kernels.numba.compile import Compiled, compiled, inlined
from tinytorch.core.kernels.numba.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    VECTOR,
    broadcast,
    element,
    exp_of_minus,
    larger_number,
    load_vector,
    multiply_add,
    store_vector,
    tile_product,
    transpose_block,
)

HEADS = types.Array(types.float32, 4, "A", readonly=True)
"""The type of (batch, heads, time, d) in any layout.

Every float32 array of four axes can be passed as one, also a read-only one, so that one compilation
serves them all. Results are written through :func:`row_at`.
"""

DEPTH = 64
"""Terms of a sum that are added at once: a panel of this many rows stays in the L1 cache."""

LOWEST = np.finfo(np.float32).min
ZERO, ONE = np.float32(0), np.float32(1)

six_rows = tile_product(TILE_ROWS)


class _OneSignature:
    """A kernel that is compiled once, for types to which its arguments are converted.

    Left to itself, numba compiles a kernel again for every combination of contiguous, strided and
    read-only arrays.
    """

    def __init__(self, dispatcher: Any, signature: Any) -> None:
        self.dispatcher = dispatcher
        self._signature = signature
        self._lock = threading.Lock()
        self._is_ready = False

    def __call__(self, *arguments: Any) -> Any:
        if not self._is_ready:
            self._compile()
        return self.dispatcher(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dispatcher, name)

    def _compile(self) -> None:
        with self._lock:
            if not self._is_ready:
                self.dispatcher.compile(self._signature)
                self.dispatcher.disable_compile()
                self._is_ready = True


def compiled_for(*arguments: Any) -> Callable[[Callable[..., Any]], Compiled]:
    """Compile a kernel, when first called, for one list of types of its arguments."""
    signature = types.void(*arguments)

    def decorate(function: Callable[..., Any]) -> Compiled:
        kernel = compiled(function)
        versions = {id(version): version for version in (kernel.serial, kernel.parallel)}
        fixed = {key: _OneSignature(version, signature) for key, version in versions.items()}
        kernel.serial, kernel.parallel = fixed[id(kernel.serial)], fixed[id(kernel.parallel)]
        return kernel

    return decorate


# ---------------------------------------------------------------- arrays that kernels take


def four_axes(array: Array) -> Array:
    """Make four axes: add some in front, or merge those before the last three."""
    if array.ndim == 4:
        return array
    if array.ndim < 4:
        return array[(None,) * (4 - array.ndim)]
    return array.reshape(-1, *array.shape[-3:])


def with_contiguous_rows(array: Array) -> Array:
    """Return the array, or a copy if the elements of a row do not follow each other in memory."""
    if array.strides[-1] == array.itemsize and array.flags.aligned:
        return array
    return array.copy()


def merged_layout(shape: tuple[int, int, int, int]) -> Array:
    """Make an array (batch, heads, time, d) whose heads can be merged without a copy."""
    batch, heads, time, width = shape
    return np.empty((batch, time, heads, width), np.float32).swapaxes(1, 2)


def with_leading_axes(array: Array, lead: tuple[int, ...]) -> Array:
    """Restore the leading axes of (batch, heads, time, d): the inverse of :func:`four_axes`."""
    if len(lead) == 2:
        return array
    time, width = array.shape[2:]
    merged = array.swapaxes(1, 2).reshape(*lead[:-1], time, *lead[-1:], width)
    return merged.swapaxes(-3, -2) if lead else merged


# ---------------------------------------------------------------- finding rows


@intrinsic
def row_at(typing, array, offset):
    """Return the elements from an offset on as a contiguous row; bounds are up to the caller.

    The offset counts elements of memory from the first one, so strides may be anything.
    """
    row = types.Array(array.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, arguments[0])
        view = context.make_array(row)(context, builder)
        size = context.get_abi_sizeof(context.get_data_type(row.dtype))
        itemsize = context.get_constant(types.intp, size)
        populate_array(
            view,
            data=builder.gep(source.data, [arguments[1]]),
            shape=[context.get_constant(types.intp, 2**40)],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return impl_ret_borrowed(context, builder, row, view._getvalue())

    return row(array, types.int64), generate


@inlined
def steps_of(array):
    """Return how many elements lie between neighbours along each axis: 0 where one is repeated."""
    size = array.itemsize
    return (
        array.strides[0] // size if array.shape[0] > 1 else 0,
        array.strides[1] // size if array.shape[1] > 1 else 0,
        array.strides[2] // size if array.shape[2] > 1 else 0,
        array.strides[3] // size if array.shape[3] > 1 else 0,
    )


@inlined
def visible_keys(row, queries, keys, causal):
    """Return how many keys a query may see: under a causal mask, the last one sees all of them."""
    if not causal:
        return keys
    return min(max(keys - queries + row + 1, 0), keys)


@inlined
def head_at(array, place):
    """Return where the head (batch, head) begins and how far apart its rows are."""
    steps = steps_of(array)
    return place[0] * steps[0] + place[1] * steps[1], steps[2]


@inlined
def reach_of(start, rows, queries, keys, causal):
    """Return how many keys each tile of a block of queries has to look at."""
    reach = np.empty((rows + TILE_ROWS - 1) // TILE_ROWS, np.int64)
    for tile in range(len(reach)):
        last = min(start + (tile + 1) * TILE_ROWS, start + rows) - 1
        reach[tile] = visible_keys(last, queries, keys, causal)
    return reach


@inlined
def padded(length, multiple):
    return (length + multiple - 1) // multiple * multiple


@inlined
def share_of(worker, workers, turn):
    """Return the task of a worker in a turn; the order alternates, which balances long tasks."""
    return turn * workers + (worker if turn % 2 == 0 else workers - 1 - worker)


# ---------------------------------------------------------------- packing


@inlined
def pack_transposed(source, offset, step, count, width, panels):
    """Lay rows (count, width) as columns into panels of (width, TILE_COLUMNS), padded by zeros."""
    for first in range(0, count, LANES):
        start = first // TILE_COLUMNS * TILE_COLUMNS * width + first % TILE_COLUMNS
        whole = width // LANES * LANES if first + LANES <= count else 0
        for index in range(0, whole, LANES):
            transpose_block(
                source, offset + first * step + index, step,
                panels, start + index * TILE_COLUMNS, TILE_COLUMNS,
            )  # fmt: skip
        for column in range(LANES):
            row = row_at(source, offset + (first + column) * step)
            for index in range(whole, width):
                held = row[index] if first + column < count else ZERO
                panels[start + index * TILE_COLUMNS + column] = held
    for first in range(padded(count, LANES), padded(count, TILE_COLUMNS), LANES):
        start = first // TILE_COLUMNS * TILE_COLUMNS * width + first % TILE_COLUMNS
        for index in range(width):
            for column in range(LANES):
                panels[start + index * TILE_COLUMNS + column] = ZERO


@inlined
def pack_rows(source, offset, step, count, width, panels):
    """Lay rows (count, width) into panels of (count, TILE_COLUMNS), padded by zeros."""
    for first in range(0, width, TILE_COLUMNS):
        filled = min(TILE_COLUMNS, width - first)
        for index in range(count):
            row = row_at(source, offset + index * step + first)
            line = row_at(panels, first * count + index * TILE_COLUMNS)
            for column in range(filled):
                line[column] = row[column]
            for column in range(filled, TILE_COLUMNS):
                line[column] = ZERO


@inlined
def copy_rows(source, offset, step, count, width, factor, target, target_step, rows):
    """Copy rows (count, width) times a factor, and fill up to `rows` rows with zeros."""
    for index in range(rows):
        line = row_at(target, index * target_step)
        if index < count:
            row = row_at(source, offset + index * step)
            for column in range(width):
                line[column] = row[column] * factor
        else:
            for column in range(width):
                line[column] = ZERO


# ---------------------------------------------------------------- products of a block of queries
# A block is some rows of queries, a multiple of TILE_ROWS with zeros at the end. A tile of it
# leaves out the keys that none of its rows may see; `reach` says for each tile how many are left.


@intrinsic
def narrow_tile(typing, block, block_offset, width, panel, panel_offset, out, out_offset, out_row):
    """Multiply TILE_ROWS rows (.., width) by LANES columns of a panel (width, TILE_COLUMNS).

    At the edge of a causal mask, most of a tile of full width would be masked.
    """
    count = types.int64
    signature = types.void(block, count, count, panel, count, out, count, count)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block, block_offset, width, panel, panel_offset, out, out_offset, out_row = arguments
        block_start = element(context, builder, signature.args[0], block, block_offset)
        panel_start = element(context, builder, signature.args[3], panel, panel_offset)
        out_start = element(context, builder, signature.args[5], out, out_offset)

        def line(start: Any, step: Any, row: int) -> Any:
            return builder.gep(start, [builder.mul(step, ir.Constant(step.type, row))])

        sums = [cgutils.alloca_once(builder, VECTOR) for _ in range(TILE_ROWS)]
        for total in sums:
            builder.store(ir.Constant(VECTOR, [0.0] * LANES), total)
        rows = [line(block_start, width, row) for row in range(TILE_ROWS)]
        with cgutils.for_range(builder, width) as loop:
            columns = load_vector(builder, line(panel_start, loop.index, TILE_COLUMNS))
            for row, total in zip(rows, sums, strict=True):
                factor = broadcast(builder, builder.load(builder.gep(row, [loop.index])))
                product = multiply_add(builder, factor, columns, builder.load(total))
                builder.store(product, total)
        for row, total in enumerate(sums):
            store_vector(builder, builder.load(total), line(out_start, out_row, row))
        return context.get_dummy_value()

    return signature, generate


@inlined
def score_rows(block, width, panels, reach, scores, pitch):
    """Multiply a block (rows, width) by the columns of `panels`: scores (rows, pitch)."""
    for column in range(0, reach[-1], TILE_COLUMNS):  # one panel stays close for all tiles
        for tile in range(len(reach)):
            row, left = tile * TILE_ROWS, reach[tile] - column
            if left > TILE_COLUMNS - LANES:
                six_rows(
                    block, row * width, width, 1, panels, column * width, TILE_COLUMNS, width,
                    scores, row * pitch + column, pitch, False,
                )  # fmt: skip
            else:
                for part in range(0, left, LANES):
                    narrow_tile(
                        block, row * width, width, panels, column * width + part,
                        scores, row * pitch + column + part, pitch,
                    )  # fmt: skip


@inlined
def mix_rows(scores, pitch, panels, count, width, reach, mix):
    """Multiply scores (rows, pitch) by the rows (count, width) in `panels`: mix (rows, width)."""
    for panel in range(0, width, TILE_COLUMNS):
        for start in range(
            0, max(reach[-1], 1), DEPTH
        ):  # DEPTH rows stay in the cache for all tiles
            for tile in range(len(reach)):
                depth = min(DEPTH, reach[tile] - start)
                if depth > 0 or start == 0:
                    row = tile * TILE_ROWS
                    six_rows(
                        scores, row * pitch + start, pitch, 1,
                        panels, panel * count + start * TILE_COLUMNS, TILE_COLUMNS, max(depth, 0),
                        mix, row * width + panel, width, start > 0,
                    )  # fmt: skip


# ---------------------------------------------------------------- softmax of one row


@inlined
def add_bias(scores, count, bias, offset, step):
    """Add a row of the bias, which may be a single broadcast number."""
    row = row_at(bias, offset)
    if step == 0:
        for key in range(count):
            scores[key] += row[0]
    else:
        for key in range(count):
            scores[key] += row[key]


@inlined
def exponentiate(scores, count):
    """Turn scores into exp(score - highest), in place; return the highest and the sum."""
    highest = LOWEST  # so that a row in which everything is -inf becomes zeros, not NaN
    for key in range(count):
        highest = larger_number(highest, scores[key])
    total = ZERO
    for key in range(count):
        scores[key] = exp_of_minus(highest - scores[key])  # a NaN shows here
        total += scores[key]
    return highest, total


@inlined
def factor_of(total):
    """Return the factor that makes weights of exponentials with this sum; zeros stay zeros."""
    return ONE / total if total != ZERO else ONE
