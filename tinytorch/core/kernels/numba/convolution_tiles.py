"""The inner loops of convolution: sums that stay in vector registers while images slide past.

Both loops read an image through tables of offsets. One table says where each tap of the weights
looks, the other where the neighbouring output positions of one vector register begin; the sum of
two offsets is the place in memory. So nothing is copied into columns, and strides, dilation and
borders are questions of the tables alone.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinytorch.core.kernels.numba.simd import (
    FLOAT,
    LANES,
    TILE_ROWS,
    VECTOR,
    VECTORS,
    broadcast,
    element,
    load_vector,
    multiply_add,
    store_vector,
)

TILE_HEIGHTS = (TILE_ROWS, 4, 3, 2, 1)
"""Output channels that a tile may have."""

TILE_WIDTHS = tuple(width for width in (4, 2, 1) if width <= VECTORS)
"""Vectors of output positions that a tile may have."""

# Three taps are a row of the usual window. The sums, the images of the taps and one vector of the
# gradient fill 28 of 32 registers, or 16 of 16.
SUM_ROWS, SUM_TAPS = 2 * VECTORS, 3

COUNT = types.int64
INT64 = ir.IntType(64)


class _Loops:
    """What both loops need to write: numbers, pointers, and sums that LLVM keeps in registers."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder = builder
        self._context = context
        self._types = signature.args
        self._values = arguments

    def number(self, position: int) -> Any:
        return self._values[position]

    def pointer(self, position: int, offset: Any = 0) -> Any:
        """Point to an element of the array that is the argument at `position`."""
        offset = ir.Constant(INT64, offset) if isinstance(offset, int) else offset
        array = self._values[position]
        return element(self._context, self.builder, self._types[position], array, offset)

    def moved(self, pointer: Any, *offsets: Any) -> Any:
        for offset in offsets:
            pointer = self.builder.gep(pointer, [offset])
        return pointer

    def entry(self, table: Any, index: Any) -> Any:
        """Read one offset of a table."""
        return self.builder.load(self.builder.gep(table, [index]))

    def times(self, value: Any, factor: int) -> Any:
        return self.builder.mul(value, ir.Constant(value.type, factor))

    def plus(self, value: Any, addend: int) -> Any:
        return self.builder.add(value, ir.Constant(value.type, addend))

    def is_equal(self, value: Any, number: int) -> Any:
        return self.builder.icmp_signed("==", value, ir.Constant(value.type, number))

    def sums(self, count: int) -> list[Any]:
        return [cgutils.alloca_once(self.builder, VECTOR) for _ in range(count)]

    def add_product(self, total: Any, a: Any, b: Any) -> None:
        self.builder.store(multiply_add(self.builder, a, b, self.builder.load(total)), total)


@intrinsic
def slide_tile(
    typing, height, width, a, a_offset, a_row, a_at, image, image_offset, tap_at, taps,
    vector_at, vector, bias, bias_offset, out, out_offset, out_row, out_at, out_vector,
):  # fmt: skip
    """Compute `height` channels of `width` vectors of output positions.

    out[i, out_at[v] + lane] = bias[i] + sum over k < taps of
        a[i * a_row + a_at[k]] * image[tap_at[k] + vector_at[v] + lane]
    for i < height and `width` vectors v, which count from `vector` and from `out_vector`. One
    loop is written for each of TILE_HEIGHTS and TILE_WIDTHS.
    """
    signature = types.void(
        COUNT, COUNT, a, COUNT, COUNT, a_at, image, COUNT, tap_at, COUNT,
        vector_at, COUNT, bias, COUNT, out, COUNT, COUNT, out_at, COUNT,
    )  # fmt: skip

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = _Loops(context, builder, signature, arguments)
        for rows in TILE_HEIGHTS:
            with builder.if_then(write.is_equal(write.number(0), rows)):
                for vectors in TILE_WIDTHS:
                    with builder.if_then(write.is_equal(write.number(1), vectors)):
                        _write_slide(write, rows, vectors)
        return context.get_dummy_value()

    return signature, generate


def _write_slide(write: _Loops, rows: int, vectors: int) -> None:
    """Write the loop of :func:`slide_tile` for one size of the tile."""
    builder = write.builder
    tile = [(row, vector) for row in range(rows) for vector in range(vectors)]
    sums = dict(zip(tile, write.sums(len(tile)), strict=True))
    bias = write.pointer(12, write.number(13))
    for row in range(rows):
        start = broadcast(builder, builder.load(write.moved(bias, ir.Constant(INT64, row))))
        for vector in range(vectors):
            builder.store(start, sums[row, vector])
    a = write.pointer(2, write.number(3))
    a_rows = [write.moved(a, write.times(write.number(4), row)) for row in range(rows)]
    image, vector_at = write.pointer(6, write.number(7)), write.pointer(10, write.number(11))
    starts = [
        write.moved(image, write.entry(vector_at, ir.Constant(INT64, vector)))
        for vector in range(vectors)
    ]
    a_at, tap_at = write.pointer(5), write.pointer(8)
    with cgutils.for_range(builder, write.number(9)) as loop:
        factor_at, seen_at = write.entry(a_at, loop.index), write.entry(tap_at, loop.index)
        seen = [load_vector(builder, write.moved(start, seen_at)) for start in starts]
        factors = [
            broadcast(builder, builder.load(write.moved(start, factor_at))) for start in a_rows
        ]
        for row, vector in tile:
            write.add_product(sums[row, vector], factors[row], seen[vector])
    out, out_at = write.pointer(14, write.number(15)), write.pointer(17, write.number(18))
    for row, vector in tile:
        offset = write.entry(out_at, ir.Constant(INT64, vector))
        place = write.moved(out, write.times(write.number(16), row), offset)
        store_vector(builder, builder.load(sums[row, vector]), place)


@intrinsic
def sum_tile(
    typing, grad, grad_offset, grad_row, grad_image, image, image_offset, image_step, tap_at, tap,
    vector_at, vectors, images, out, out_offset,
):  # fmt: skip
    """Sum products over all output positions, for SUM_ROWS channels and SUM_TAPS taps.

    out[i * SUM_TAPS + j] = sum over images n, vectors v and lanes of
        grad[n * grad_image + i * grad_row + v * LANES + lane]
        * image[n * image_step + tap_at[tap + j] + vector_at[v] + lane]
    Each lane is summed on its own, and all lanes at the end.
    """
    signature = types.void(
        grad, COUNT, COUNT, COUNT, image, COUNT, COUNT, tap_at, COUNT,
        vector_at, COUNT, COUNT, out, COUNT,
    )  # fmt: skip

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = _Loops(context, builder, signature, arguments)
        sums = write.sums(SUM_ROWS * SUM_TAPS)
        for total in sums:
            builder.store(ir.Constant(VECTOR, [0.0] * LANES), total)
        grad, image = write.pointer(0, write.number(1)), write.pointer(4, write.number(5))
        tap_at, vector_at = write.pointer(7, write.number(8)), write.pointer(9)
        rows = [write.times(write.number(2), row) for row in range(SUM_ROWS)]
        taps = [write.entry(tap_at, ir.Constant(INT64, tap)) for tap in range(SUM_TAPS)]
        with cgutils.for_range(builder, write.number(11)) as each_image:
            grad_start = write.moved(grad, builder.mul(each_image.index, write.number(3)))
            grad_rows = [write.moved(grad_start, row) for row in rows]
            start = write.moved(image, builder.mul(each_image.index, write.number(6)))
            tap_starts = [write.moved(start, tap) for tap in taps]
            with cgutils.for_range(builder, write.number(10)) as each_vector:
                seen_at = write.entry(vector_at, each_vector.index)
                seen = [load_vector(builder, write.moved(tap, seen_at)) for tap in tap_starts]
                at = write.times(each_vector.index, LANES)
                for row, row_start in enumerate(grad_rows):
                    slope = load_vector(builder, write.moved(row_start, at))
                    for tap in range(SUM_TAPS):
                        write.add_product(sums[row * SUM_TAPS + tap], slope, seen[tap])
        out = write.pointer(12, write.number(13))
        for index, total in enumerate(sums):
            place = write.moved(out, ir.Constant(INT64, index))
            builder.store(_sum_of_lanes(builder, builder.load(total)), place)
        return context.get_dummy_value()

    return signature, generate


def _sum_of_lanes(builder: Any, vector: Any) -> Any:
    """Add up the lanes of a vector: neighbours first, then pairs, as a tree."""
    name = f"llvm.vector.reduce.fadd.v{LANES}f32"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(FLOAT, [FLOAT, VECTOR]), name
    )
    return builder.call(function, [ir.Constant(FLOAT, -0.0), vector], fastmath=("reassoc",))


@intrinsic
def clear(typing, target, offset, count):
    """Write `count` zeros."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = _Loops(context, builder, signature, arguments)
        size = write.times(write.number(2), 4)  # bytes
        cgutils.memset(builder, write.pointer(0, write.number(1)), size, 0)
        return context.get_dummy_value()

    return types.void(target, COUNT, COUNT), generate


@intrinsic
def copy_row(typing, source, source_offset, target, target_offset, count):
    """Copy `count` elements, LANES or more: whole vectors, and one that ends with the row."""
    signature = types.void(source, COUNT, target, COUNT, COUNT)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = _Loops(context, builder, signature, arguments)
        read, put = write.pointer(0, write.number(1)), write.pointer(2, write.number(3))
        last = write.plus(write.number(4), -LANES)

        def copy(at: Any) -> None:
            store_vector(builder, load_vector(builder, write.moved(read, at)), write.moved(put, at))

        whole = builder.sdiv(last, ir.Constant(INT64, LANES))
        with cgutils.for_range(builder, write.plus(whole, 1)) as loop:
            copy(write.times(loop.index, LANES))
        copy(last)
        return context.get_dummy_value()

    return signature, generate
