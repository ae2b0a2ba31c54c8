"""Vector registers for INT8: tiles of products with packed weights, written once for all sizes.

:func:`packed_tile` walks down the lines of a panel (`packing`) and keeps a tile of sums
in registers. Each lane of a register belongs to one output and gets the four values of a line at
once.

- Bytes of a row are multiplied by ``vpdpbusd``, one instruction for four products and their sum on
  processors with AVX-512 VNNI or AVX-VNNI. It takes one factor without and one with sign, and its
  sums do not saturate (those of the older ``vpmaddubsw`` do). Other processors separate the bytes
  by shifts and multiply them as 32-bit numbers, which gives the same sums.
- For floats the bytes are separated too, and turned into floats.

The argument `way` of a tile is None for the fastest way of this processor and PORTABLE for the way
of all processors: numba compiles for the *type* of an argument, and so for one of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from tinytorch.core.kernels.numba.compile import compiled, inlined
from tinytorch.core.kernels.numba.simd import (
    FLOAT,
    INT32,
    LANES,
    VECTOR,
    VECTORS,
    broadcast,
    element,
    load_vector,
    multiply_add,
    store_vector,
    target_features,
)
from tinytorch.core.kernels.packing import PANEL_COLUMNS, STEP

PORTABLE = False
INTEGERS = ir.VectorType(INT32, LANES)
BYTES = ir.VectorType(ir.IntType(8), LANES * STEP)
BYTE_BITS, LANE_BITS = 8, 32
FETCH_AHEAD = 4096  # bytes
CACHE_LINE = 16  # floats
KEEP_IN_ALL_CACHES, OF_DATA = 3, 1  # how LLVM numbers these


def _has_vnni() -> bool:
    """Return whether registers of our size have the instruction."""
    features = target_features()
    return bool(features.get({16: "avx512vnni", 8: "avxvnni"}.get(LANES, "")))


HAS_VNNI = _has_vnni()


def _best_dot(way: Any) -> Callable[..., Any]:
    return _dot_in_one if HAS_VNNI and isinstance(way, types.NoneType) else _dot_in_steps


# ---------------------------------------------------------------- what happens to one line


def _separate(builder: Any, line: Any, which: int, bits: int = BYTE_BITS) -> Any:
    """Return one of the bytes (or of other groups of bits) of each lane as a number with sign."""

    def by(count: int) -> Any:
        return ir.Constant(INTEGERS, [count] * LANES)

    left = LANE_BITS - bits * (which + 1)
    shifted = builder.shl(line, by(left)) if left else line
    return builder.ashr(shifted, by(LANE_BITS - bits))


def _leave_on_top(builder: Any, line: Any, which: int, bits: int) -> Any:
    """Return one of the values of each lane in its highest bits: 2**(32 - bits) times as large."""
    left = LANE_BITS - bits * (which + 1)
    shifted = builder.shl(line, ir.Constant(INTEGERS, [left] * LANES)) if left else line
    mask = ir.Constant(INTEGERS, [-(1 << (LANE_BITS - bits))] * LANES)
    return builder.and_(shifted, mask) if which else shifted


def _look_up(builder: Any, line: Any, which: int) -> Any:
    """Return one of the eight values of 4 bits of each lane as a float.

    A register of AVX-512 holds all sixteen floats that 4 bits can mean, and the instruction that
    picks some of them ignores all higher bits.
    """
    table = ir.Constant(VECTOR, [float(value) for value in (*range(8), *range(-8, 0))])
    name = "llvm.x86.avx512.permvar.sf.512"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(VECTOR, [VECTOR, INTEGERS]), name
    )
    shift = ir.Constant(INTEGERS, [4 * which] * LANES)
    return builder.call(function, [table, builder.lshr(line, shift)])


def add_byte_products(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """Add to each lane the products of its four bytes, by ``vpdpbusd``."""
    # LLVM calls the factors bytes since its version 22
    kind = BYTES if llvm.llvm_version_info[0] >= 22 else INTEGERS
    name = f"llvm.x86.avx512.vpdpbusd.{LANES * LANE_BITS}"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(INTEGERS, [INTEGERS, kind, kind]), name
    )
    return builder.call(
        function, [total, builder.bitcast(unsigned, kind), builder.bitcast(signed, kind)]
    )


def _dot_in_one(builder: Any, total: Any, factors: Any, line: Any) -> Any:
    return add_byte_products(builder, total, broadcast(builder, factors, INTEGERS), line)


def _dot_in_steps(builder: Any, total: Any, factors: Any, line: Any) -> Any:
    """Do what :func:`_dot_in_one` does, byte by byte."""
    for which in range(STEP):
        shift = ir.Constant(INT32, BYTE_BITS * which)
        factor = builder.and_(builder.lshr(factors, shift), ir.Constant(INT32, 255))
        product = builder.mul(broadcast(builder, factor, INTEGERS), _separate(builder, line, which))
        total = builder.add(total, product)
    return total


def _add_integers(
    builder: Any, sums: Any, lines: list[Any], rows: list[Any], at: Any, dot: Callable[..., Any]
) -> None:
    """Add the products of four bytes of each row."""
    for row, start in enumerate(rows):
        pointer = builder.bitcast(builder.gep(start, [at]), INT32.as_pointer())
        factors = builder.load(pointer)
        factors.align = 1
        for vector, line in enumerate(lines):
            total = dot(builder, builder.load(sums[row, vector]), factors, line)
            builder.store(total, sums[row, vector])


def _add_floats(
    builder: Any, sums: Any, lines: list[Any], rows: list[Any], at: Any, bits: int
) -> None:
    """Add the products of four floats (for weights of 4 bits: eight) of each row.

    Shifts take longest. With one row it is faster to leave values on top and to scale the row.
    """
    is_on_top = len(rows) == 1
    for which in range(LANE_BITS // bits):
        if bits == 4 and LANES == 16:
            is_on_top = False
            numbers = [_look_up(builder, line, which) for line in lines]
        else:
            separate = _leave_on_top if is_on_top else _separate
            integers = [separate(builder, line, which, bits) for line in lines]
            numbers = [builder.sitofp(each, VECTOR) for each in integers]
        place = builder.add(at, ir.Constant(at.type, which))
        for row, start in enumerate(rows):
            factor = builder.load(builder.gep(start, [place]))
            if is_on_top:
                factor = builder.fmul(factor, ir.Constant(FLOAT, 2.0 ** (bits - LANE_BITS)))
            factor = broadcast(builder, factor)
            for vector, number in enumerate(numbers):
                total = multiply_add(builder, factor, number, builder.load(sums[row, vector]))
                builder.store(total, sums[row, vector])


def _prefetch(builder: Any, place: Any, *, to_write: bool = False) -> None:
    """Ask for the cache line of a place. Where there is no memory this has no effect."""
    pointer = ir.IntType(8).as_pointer()
    name = "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(ir.VoidType(), [pointer, INT32, INT32, INT32]), name
    )
    flags = (ir.Constant(INT32, flag) for flag in (int(to_write), KEEP_IN_ALL_CACHES, OF_DATA))
    builder.call(function, [builder.bitcast(place, pointer), *flags])


def _fetch_ahead(builder: Any, line: Any) -> None:
    """Ask memory for what will be read soon.

    One row of floats computes just long enough for memory to wait for it; bytes are so quick that
    they gain nothing.
    """
    for vector in range(VECTORS):
        ahead = ir.Constant(ir.IntType(64), FETCH_AHEAD + vector * LANES * STEP)
        _prefetch(builder, builder.gep(line, [ahead]))


# ---------------------------------------------------------------- the tile


@contextmanager
def _each_line(builder: Any, lines: Any) -> Iterator[Any]:
    """Loop over the numbers of lines, one by one.

    Left to itself LLVM would do several at once, with a pointer to each vector of each of them:
    more pointers than there are registers, which can make a row take twice as long.
    """
    before, body = builder.block, builder.append_basic_block("line")
    after = builder.append_basic_block("after_lines")
    zero, one = ir.Constant(lines.type, 0), ir.Constant(lines.type, 1)
    builder.cbranch(builder.icmp_signed(">", lines, zero), body, after)
    builder.position_at_end(body)
    number = builder.phi(lines.type)
    number.add_incoming(zero, before)
    yield number
    following = builder.add(number, one)
    number.add_incoming(following, builder.block)
    back = builder.cbranch(builder.icmp_signed("<", following, lines), body, after)
    rule = builder.module.add_metadata(["llvm.loop.unroll.disable"])
    # each loop has a node of its own, which begins with itself
    loop = ir.MDValue(builder.module, (), name=str(len(builder.module.metadata)))
    loop.operands = (loop, rule)
    back.set_metadata("llvm.loop", loop)
    builder.position_at_end(after)


def packed_tile(rows: int, *, bits: int = BYTE_BITS) -> Callable[..., None]:
    """Make the function that computes one tile of a product with a packed weight.

    out[i, j] = sum over k of a[i, k] * w[k, j], for i < rows and j < TILE_COLUMNS

    `a` is uint8 and `out` int32, or both are float32, which also takes weights of 4 bits. Steps and
    offsets count elements. `lines` is the number of lines of the panel, `line_step` the bytes of
    one, and `last` the byte of a line at which the last register begins that holds a column of the
    matrix: registers behind it read the same, what they add up is never used, and nothing is read
    from behind the panel.
    """

    @intrinsic
    def multiply(
        typing, a, a_offset, a_row, values, offset, line_step, last, lines,
        out, out_offset, out_row, way,
    ):  # fmt: skip
        count = types.int64
        signature = types.void(
            a, count, count, values, count, count, count, count, out, count, count, way
        )
        is_float = a.dtype == types.float32
        assert is_float or bits == BYTE_BITS, "integers of 4 bits cannot be multiplied yet"
        add = (
            partial(_add_floats, bits=bits)
            if is_float
            else partial(_add_integers, dot=_best_dot(way))
        )
        zero = ir.Constant(VECTOR if is_float else INTEGERS, [0] * LANES)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a, a_offset, a_row, values, offset, line_step, last, lines = arguments[:8]
            out, out_offset, out_row, _ = arguments[8:]
            a_start = element(context, builder, signature.args[0], a, a_offset)
            panel = element(context, builder, signature.args[3], values, offset)
            out_start = element(context, builder, signature.args[8], out, out_offset)

            def constant(value: int) -> Any:
                return ir.Constant(lines.type, value)

            tile = [(row, vector) for row in range(rows) for vector in range(VECTORS)]
            sums = {spot: cgutils.alloca_once(builder, zero.type) for spot in tile}
            for spot in tile:
                builder.store(zero, sums[spot])
            places = [constant(vector * LANES * STEP) for vector in range(VECTORS)]
            places = [
                builder.select(builder.icmp_signed("<", place, last), place, last)
                for place in places
            ]
            row_starts = [
                builder.gep(a_start, [builder.mul(a_row, constant(row))]) for row in range(rows)
            ]
            with _each_line(builder, lines) as number:
                line = builder.gep(panel, [builder.mul(number, line_step)])
                if is_float and rows == 1:
                    _fetch_ahead(builder, line)
                weights = [
                    load_vector(builder, builder.gep(line, [place]), INTEGERS) for place in places
                ]
                at = builder.mul(number, constant(LANE_BITS // bits))
                add(builder, sums, weights, row_starts, at)
            for row, vector in tile:
                place = builder.mul(out_row, constant(row))
                place = builder.add(place, constant(vector * LANES))
                value = builder.load(sums[row, vector])
                store_vector(builder, value, builder.gep(out_start, [place]))
            return context.get_dummy_value()

        return signature, generate

    return multiply


def _scaling(*, adds_bias: bool) -> Callable[..., None]:
    """Make the function that turns LANES sums of integers into results.

    out[at + j] = (totals[place + j] - excess[j]) * (step * scales[j]) + bias[j]

    where j counts from `first`. LLVM would ask before each such short loop whether the arrays share
    memory.
    """

    @intrinsic
    def scale(typing, totals, place, excess, scales, bias, first, step, out, at):
        count = types.int64
        signature = types.void(
            totals, count, excess, scales, bias, count, types.float32, out, count
        )

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            totals, place, excess, scales, bias, first, step, out, at = arguments

            def load(position: int, array: Any, start: Any, kind: Any = VECTOR) -> Any:
                pointer = element(context, builder, signature.args[position], array, start)
                return load_vector(builder, pointer, kind)

            too_much = load(2, excess, first, INTEGERS)
            whole = builder.sub(load(0, totals, place, INTEGERS), too_much)
            number = builder.sitofp(whole, VECTOR)
            factor = builder.fmul(broadcast(builder, step), load(3, scales, first))
            if adds_bias:
                result = multiply_add(builder, number, factor, load(4, bias, first))
            else:
                result = builder.fmul(number, factor)
            store_vector(builder, result, element(context, builder, signature.args[7], out, at))
            return context.get_dummy_value()

        return signature, generate

    return scale


scale_integers, scale_integers_and_add = _scaling(adds_bias=False), _scaling(adds_bias=True)


@intrinsic
def expect_writes(typing, out, at):
    """Prefetch the memory of a panel's results out[at:] for writing.

    The rows of a wide result are too far apart for the hardware prefetcher.
    """
    signature = types.void(out, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, at = arguments
        start = element(context, builder, signature.args[0], out, at)
        for first in range(0, PANEL_COLUMNS, CACHE_LINE):
            place = builder.gep(start, [ir.Constant(at.type, first)])
            _prefetch(builder, place, to_write=True)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def add_scaled(typing, totals, place, scales, first, out, at):
    """Add LANES results: out[at + j] += totals[place + j] * scales[first + j]."""
    count = types.int64
    signature = types.void(totals, count, scales, count, out, count)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        totals, place, scales, first, out, at = arguments
        total = load_vector(builder, element(context, builder, signature.args[0], totals, place))
        scale = load_vector(builder, element(context, builder, signature.args[2], scales, first))
        target = element(context, builder, signature.args[4], out, at)
        before = load_vector(builder, target)
        store_vector(builder, multiply_add(builder, total, scale, before), target)
        return context.get_dummy_value()

    return signature, generate


# ---------------------------------------------------------------- packed INT8 weights become
# floats again, all of them or some columns (`packing`)

BLOCK_COLUMNS, BLOCK_LINES = 16, 16
"""Columns, whose bytes share cache lines, and lines of them that are unpacked together."""


@intrinsic
def unpack_step(typing, values, at, scale, out, out_at):
    """Dequantize one column of a line: out[out_at + i] = values[at + i] * scale, i < STEP."""
    signature = types.void(values, types.int64, types.float32, out, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, at, scale, out, out_at = arguments
        place = element(context, builder, signature.args[0], values, at)
        target = element(context, builder, signature.args[3], out, out_at)
        four = load_vector(builder, place, ir.VectorType(ir.IntType(8), STEP))
        whole = builder.sext(four, ir.VectorType(INT32, STEP))
        floats = ir.VectorType(FLOAT, STEP)
        result = builder.fmul(builder.sitofp(whole, floats), broadcast(builder, scale, floats))
        store_vector(builder, result, target)
        return context.get_dummy_value()

    return signature, generate


@inlined
def unpack_rest(values, at, scale, out, out_at, count):
    """Do the same for a last line that is not full."""
    for i in range(count):
        out[out_at + i] = np.float32(values[at + i]) * scale


@compiled
def unpack_floats(values, scales, inputs, out):
    """Dequantize a packed matrix into its transpose (outputs, inputs), flat."""
    outputs = len(scales)
    lines, whole = (inputs + STEP - 1) // STEP, inputs // STEP
    for block in prange((outputs + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS):
        first = np.int64(block) * BLOCK_COLUMNS
        panel = first // PANEL_COLUMNS * PANEL_COLUMNS
        step = min(PANEL_COLUMNS, outputs - panel) * STEP
        start = (panel * lines - panel) * STEP  # and STEP bytes further for each output
        for some in range(0, lines, BLOCK_LINES):
            for output in range(first, min(first + BLOCK_COLUMNS, outputs)):
                at, row = start + output * STEP, output * inputs
                for line in range(some, min(some + BLOCK_LINES, whole)):
                    unpack_step(values, at + line * step, scales[output], out, row + line * STEP)
                if whole < lines <= some + BLOCK_LINES:
                    unpack_rest(
                        values, at + whole * step, scales[output], out, row + whole * STEP,
                        inputs - whole * STEP,
                    )  # fmt: skip


@compiled
def unpack_columns(numbers, values, scales, inputs, out):
    """Dequantize some columns (numbers, inputs), flat; return whether all of them exist.

    Nothing is read or written unless they do.
    """
    outputs = len(scales)
    for k in range(len(numbers)):
        if numbers[k] < 0 or numbers[k] >= outputs:
            return False
    lines, whole = (inputs + STEP - 1) // STEP, inputs // STEP
    for k in prange(len(numbers)):
        number, row = numbers[k], np.int64(k) * inputs
        panel = number // PANEL_COLUMNS * PANEL_COLUMNS
        step = min(PANEL_COLUMNS, outputs - panel) * STEP
        at, scale = (panel * lines + number - panel) * STEP, scales[number]
        for line in range(whole):
            unpack_step(values, at + line * step, scale, out, row + line * STEP)
        unpack_rest(
            values, at + whole * step, scale, out, row + whole * STEP, inputs - whole * STEP
        )
    return True
