"""Vector registers for numba: the inner loop of matrix products, written once for all sizes.

LLVM turns simple loops into vector instructions by itself, but not the one that matters most: a
tile of a product whose sums stay in registers. :func:`tile_product` writes that loop in LLVM's own
language, from a description that reads like the mathematics. No C compiler is needed, and LLVM
chooses the instructions of whatever processor it finds.

Offsets and steps count elements from the first element of an array, so that any array with any
strides will do as long as the last axis of `panel` and `out` is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "LANES",
    "TILE_COLUMNS",
    "TILE_ROWS",
    "VECTORS",
    "copy_vectors",
    "narrow_tile_product",
    "tile_product",
    "transpose_block",
]


def _register_file() -> tuple[int, int]:
    """Give the lanes of a vector register (of float32) and how many vectors wide a tile is.

    A tile of six rows needs six sums for each vector, one register for each vector of the panel and
    one for an element of the rows: 6 x 4 + 4 + 1 of the 32 registers of AVX-512 or Neon, or
    6 x 2 + 2 + 1 of the 16 of AVX2.
    """
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 4
    if features.get("avx"):
        return 8, 2
    return 4, 4 if features.get("neon") else 2


TILE_ROWS = 6
LANES, VECTORS = _register_file()
TILE_COLUMNS = LANES * VECTORS

FLOAT = ir.FloatType()
INT32 = ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, LANES)


def element(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """Point to the element of an array at an offset from its first one."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


def load_vector(builder: Any, pointer: Any, vector: Any = VECTOR) -> Any:
    """Read neighbouring elements, which need not lie at a multiple of the vector's size."""
    value = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    value.align = 1
    return value


def store_vector(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = 1


def broadcast(builder: Any, scalar: Any, vector: Any = VECTOR) -> Any:
    """Fill all lanes with one number."""
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(INT32, 0))
    lanes = ir.Constant(ir.VectorType(INT32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, empty, lanes)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Give a * b + c in one instruction."""
    return builder.call(_vector_function(builder, "llvm.fma", 3), [a, b, c])


def _vector_function(builder: Any, name: str, arity: int) -> Any:
    full_name = f"{name}.v{LANES}f32"
    known = builder.module.globals.get(full_name)
    return known or ir.Function(
        builder.module, ir.FunctionType(VECTOR, [VECTOR] * arity), full_name
    )


def tile_product(rows: int) -> Callable[..., None]:
    """Make the function that computes one tile of a matrix product, with `rows` rows.

    out[i, j] (+)= sum over k < depth of a[i, k] * panel[k, j], for i < rows and j < TILE_COLUMNS
    """

    @intrinsic
    def multiply(
        typing, a, a_offset, a_row, a_step, panel, panel_offset, panel_row, depth,
        out, out_offset, out_row, add_to_out,
    ):  # fmt: skip
        count = types.int64
        signature = types.void(
            a, count, count, count, panel, count, count, count, out, count, count, types.boolean
        )

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _write_tile(context, builder, signature.args, arguments, (rows, VECTORS))
            return context.get_dummy_value()

        return signature, generate

    return multiply


def narrow_tile_product(rows: int, widest: int = VECTORS) -> Callable[..., None]:
    """Make the like of :func:`tile_product` for 1 to `widest` vectors, as its last argument says.

    Each width has a loop of its own, since registers have no index. Choosing among the loops here
    is compiled in half the time of choosing among functions.
    """

    @intrinsic
    def multiply(
        typing, a, a_offset, a_row, a_step, panel, panel_offset, panel_row, depth,
        out, out_offset, out_row, add_to_out, vectors,
    ):  # fmt: skip
        count = types.int64
        signature = types.void(
            a, count, count, count, panel, count, count, count, out, count, count, types.boolean,
            count,
        )  # fmt: skip

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            *arguments, vectors = arguments
            for width in range(1, widest + 1):
                wanted = ir.Constant(vectors.type, width)
                with builder.if_then(builder.icmp_signed("==", vectors, wanted)):
                    _write_tile(context, builder, signature.args, arguments, (rows, width))
            return context.get_dummy_value()

        return signature, generate

    return multiply


def _write_tile(
    context: Any, builder: Any, kinds: Any, arguments: Any, size: tuple[int, int]
) -> None:
    """Write the loop of a tile, `size` (rows, vectors), for arguments of these types."""
    a, a_offset, a_row, a_step, panel, panel_offset, panel_row, depth = arguments[:8]
    out, out_offset, out_row, add_to_out = arguments[8:]
    a_start = element(context, builder, kinds[0], a, a_offset)
    panel_start = element(context, builder, kinds[4], panel, panel_offset)
    out_start = element(context, builder, kinds[8], out, out_offset)
    rows, vectors = size

    def constant(value: int) -> Any:
        return ir.Constant(depth.type, value)

    def place(row: int, vector: int) -> Any:
        offset = builder.mul(out_row, constant(row))
        return builder.gep(out_start, [builder.add(offset, constant(vector * LANES))])

    tile = [(row, vector) for row in range(rows) for vector in range(vectors)]
    sums = {spot: cgutils.alloca_once(builder, VECTOR) for spot in tile}
    for spot in tile:
        builder.store(ir.Constant(VECTOR, [0.0] * LANES), sums[spot])
    with builder.if_then(add_to_out):
        for spot in tile:
            builder.store(load_vector(builder, place(*spot)), sums[spot])
    row_starts = [builder.gep(a_start, [builder.mul(a_row, constant(row))]) for row in range(rows)]
    with cgutils.for_range(builder, depth) as loop:
        line = builder.gep(panel_start, [builder.mul(loop.index, panel_row)])
        columns = [
            load_vector(builder, builder.gep(line, [constant(vector * LANES)]))
            for vector in range(vectors)
        ]
        at = builder.mul(loop.index, a_step)
        factors = [
            broadcast(builder, builder.load(builder.gep(start, [at]))) for start in row_starts
        ]
        for row, vector in tile:
            total = builder.load(sums[row, vector])
            total = multiply_add(builder, factors[row], columns[vector], total)
            builder.store(total, sums[row, vector])
    for spot in tile:
        store_vector(builder, builder.load(sums[spot]), place(*spot))


@intrinsic
def copy_vectors(typing, source, source_offset, target, target_offset):
    """Copy TILE_COLUMNS elements."""
    signature = types.void(source, types.int64, target, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, source_offset, target, target_offset = arguments
        read = element(context, builder, signature.args[0], source, source_offset)
        write = element(context, builder, signature.args[2], target, target_offset)
        for vector in range(VECTORS):
            at = ir.Constant(source_offset.type, vector * LANES)
            value = load_vector(builder, builder.gep(read, [at]))
            store_vector(builder, value, builder.gep(write, [at]))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def transpose_block(typing, source, source_offset, source_row, target, target_offset, target_row):
    """Copy a block of LANES x LANES elements so that its rows become columns."""
    count = types.int64
    signature = types.void(source, count, count, target, count, count)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, source_offset, source_row, target, target_offset, target_row = arguments
        read = element(context, builder, signature.args[0], source, source_offset)
        write = element(context, builder, signature.args[3], target, target_offset)

        def line(start: Any, step: Any, number: int) -> Any:
            return builder.gep(start, [builder.mul(step, ir.Constant(step.type, number))])

        rows = [load_vector(builder, line(read, source_row, row)) for row in range(LANES)]
        # Swap ever larger squares across the diagonal: 1 x 1 in 2 x 2, then 2 x 2 in 4 x 4, ...
        size = 1
        while size < LANES:
            upper_lanes = [
                lane if not lane & size else lane - size + LANES for lane in range(LANES)
            ]
            lower_lanes = [
                lane + size if not lane & size else lane + LANES for lane in range(LANES)
            ]
            for upper in range(LANES):
                lower = upper + size
                if not upper & size:
                    rows[upper], rows[lower] = (
                        _choose(builder, rows[upper], rows[lower], upper_lanes),
                        _choose(builder, rows[upper], rows[lower], lower_lanes),
                    )
            size *= 2
        for number, row in enumerate(rows):
            store_vector(builder, row, line(write, target_row, number))
        return context.get_dummy_value()

    return signature, generate


def _choose(builder: Any, first: Any, second: Any, lanes: list[int]) -> Any:
    """Take lanes of two vectors; those of the second are counted on from LANES."""
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(INT32, LANES), lanes))
