"""The inner loops of INT8 convolution: vector registers hold neighbouring output positions.

What LANES output positions see of four inputs of their patches (channels, or places of the kernel)
is one register: four bytes for each position. It meets the same four inputs of an output channel's
weight, which lie side by side (:mod:`int8_packing`) and go to all lanes; one instruction multiplies
and adds up the four pairs of each lane. So results lie in registers as they lie in an image.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinytorch.core.backends.int8_packing import STEP
from tinytorch.core.backends.numba_int8_simd import HAS_VNNI
from tinytorch.core.backends.numba_simd import (
    INT32,
    LANES,
    VECTOR,
    VECTORS,
    broadcast,
    element,
    load_vector,
    store_vector,
)

__all__ = [
    "LINE_BYTES",
    "TILE_HEIGHTS",
    "TILE_WIDTHS",
    "copy_bytes",
    "fill_bytes",
    "gather_lines",
    "patch_tile",
]

# Sums of 8 x 3 registers leave 8 of 32 for their factors, those of 4 x 3 leave 4 of 16.
TILE_HEIGHTS = (8, 4, 1) if VECTORS == 4 else (4, 1)
"""Output channels that a tile may have."""

TILE_WIDTHS = (3, 1)
"""Registers of output positions that a tile may have."""

LINE_BYTES = LANES * STEP
"""The bytes of one register, and how many of them `copy_bytes` may write too much."""

COUNT = types.int64
INT64 = ir.IntType(64)
BYTE = ir.IntType(8)
INTEGERS = ir.VectorType(INT32, LANES)
LINE = ir.VectorType(BYTE, LINE_BYTES)


def _constant(number: int) -> Any:
    return ir.Constant(INT64, number)


def _lanes(numbers: Iterable[int]) -> Any:
    """Give the lanes that a shuffle picks; those of its second vector are counted on."""
    chosen = list(numbers)
    return ir.Constant(ir.VectorType(INT32, len(chosen)), chosen)


# ---------------------------------------------------------------- bytes become lines


@intrinsic
def gather_lines(typing, images, start, tap_at, lines, out, at, step):
    """Put together what LANES neighbouring positions see, four inputs of a patch at a time.

    out[at + line * step + lane * 4 + i] = images[start + tap_at[line * 4 + i] + lane]
    """
    signature = types.void(images, COUNT, tap_at, COUNT, out, COUNT, COUNT)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        images, start, tap_at, lines, out, at, step = arguments
        seen = element(context, builder, signature.args[0], images, start)
        table = element(context, builder, signature.args[2], tap_at, _constant(0))
        target = element(context, builder, signature.args[4], out, at)
        with cgutils.for_range(builder, lines) as loop:
            first = builder.gep(table, [builder.mul(loop.index, _constant(STEP))])
            taps = [builder.load(builder.gep(first, [_constant(i)])) for i in range(STEP)]
            four = [
                load_vector(builder, builder.gep(seen, [tap]), ir.VectorType(BYTE, LANES))
                for tap in taps
            ]
            place = builder.gep(target, [builder.mul(loop.index, step)])
            store_vector(builder, _interleaved(builder, four), place)
        return context.get_dummy_value()

    return signature, generate


def _interleaved(builder: Any, four: list[Any]) -> Any:
    """Give the four bytes of the first lane, then those of the second, and so on."""
    pairs = [
        builder.shuffle_vector(*four[i : i + 2], _lanes(range(2 * LANES)))
        for i in range(0, STEP, 2)
    ]
    order = (i * LANES + lane for lane in range(LANES) for i in range(STEP))
    return builder.shuffle_vector(*pairs, _lanes(order))


@intrinsic
def copy_bytes(typing, source, source_at, step, target, target_at, count):
    """Copy every `step`-th byte: target[target_at + k] = source[source_at + k * step].

    Steps of 1 and 2 are copied in whole registers: up to LINE_BYTES - 1 bytes more are written, and
    step times as many are read.
    """
    signature = types.void(source, COUNT, COUNT, target, COUNT, COUNT)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, source_at, step, target, target_at, count = arguments
        read = element(context, builder, signature.args[0], source, source_at)
        write = element(context, builder, signature.args[3], target, target_at)
        rounded = builder.add(count, _constant(LINE_BYTES - 1))
        registers = builder.sdiv(rounded, _constant(LINE_BYTES))
        for width in (1, 2):
            is_step = builder.icmp_signed("==", step, _constant(width))
            with builder.if_then(is_step), cgutils.for_range(builder, registers) as loop:
                place = builder.mul(loop.index, _constant(LINE_BYTES))
                start = builder.gep(read, [builder.mul(place, _constant(width))])
                found = [
                    load_vector(builder, builder.gep(start, [_constant(i * LINE_BYTES)]), LINE)
                    for i in range(width)
                ]
                picked = _lanes(range(0, width * LINE_BYTES, width))
                value = builder.shuffle_vector(found[0], found[-1], picked)
                store_vector(builder, value, builder.gep(write, [place]))
        is_far = builder.icmp_signed(">", step, _constant(2))
        with builder.if_then(is_far), cgutils.for_range(builder, count) as loop:
            value = builder.load(builder.gep(read, [builder.mul(loop.index, step)]))
            builder.store(value, builder.gep(write, [loop.index]))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def fill_bytes(typing, target, at, count, value):
    """Write the same byte `count` times."""
    signature = types.void(target, COUNT, COUNT, types.uint8)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, at, count, value = arguments
        place = element(context, builder, signature.args[0], target, at)
        cgutils.memset(builder, place, count, value)
        return context.get_dummy_value()

    return signature, generate


# ---------------------------------------------------------------- lines times weights


@intrinsic
def patch_tile(
    typing, height, width, seen, seen_at, values, value_at, value_step, lines, sums, scales, bias,
    output, offset, step, out, out_at, out_row, position, last, way,
):  # fmt: skip
    """Compute `height` output channels of `width` registers of neighbouring positions.

    out[out_at + i * out_row + p + lane] = total * (step * scales[c]) + bias[c]

    where c = output + i, p = min(position + v * LANES, last) for register v < width, and the total
    is that of all products of the bytes in `seen` (lines x width registers) and the weight,
    less offset * sums[c]. `value_at` is where the channel's weight begins and `value_step` leads to
    its next line. One loop is written for each of TILE_HEIGHTS and TILE_WIDTHS. `way` is as in
    :mod:`numba_int8_simd`.
    """
    signature = types.void(
        COUNT, COUNT, seen, COUNT, values, COUNT, COUNT, COUNT, sums, scales, bias, COUNT,
        types.int32, types.float32, out, COUNT, COUNT, COUNT, COUNT, way,
    )  # fmt: skip

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        dot = _dot_in_one if HAS_VNNI and isinstance(way, types.NoneType) else _dot_in_steps
        tile = _Tile(context, builder, signature, arguments, dot)
        for outputs, vectors in product(TILE_HEIGHTS, TILE_WIDTHS):
            is_high = builder.icmp_signed("==", arguments[0], _constant(outputs))
            is_wide = builder.icmp_signed("==", arguments[1], _constant(vectors))
            with builder.if_then(builder.and_(is_high, is_wide)):
                tile.write(outputs, vectors)
        return context.get_dummy_value()

    return signature, generate


class _Tile:
    """Writes the loop of :func:`patch_tile` for one size of the tile."""

    def __init__(
        self, context: Any, builder: Any, signature: Any, arguments: Any, dot: Any
    ) -> None:
        self.builder = builder
        self.dot = dot

        def pointer(number: int, offset: Any) -> Any:
            return element(context, builder, signature.args[number], arguments[number], offset)

        self.seen = pointer(2, arguments[3])
        self.weight = pointer(4, arguments[5])
        self.value_step, self.lines = arguments[6:8]
        self.sums, self.scales, self.bias = (pointer(each, arguments[11]) for each in (8, 9, 10))
        self.offset, self.step = arguments[12:14]
        self.out = pointer(14, arguments[15])
        self.out_row, self.position, self.last = arguments[16:19]

    def write(self, outputs: int, vectors: int) -> None:
        builder = self.builder
        tile = [(output, vector) for output in range(outputs) for vector in range(vectors)]
        totals = {spot: cgutils.alloca_once(builder, INTEGERS) for spot in tile}
        for spot in tile:
            builder.store(ir.Constant(INTEGERS, [0] * LANES), totals[spot])
        with cgutils.for_range(builder, self.lines) as loop:
            seen_at = builder.mul(loop.index, _constant(vectors * LINE_BYTES))
            seen = builder.gep(self.seen, [seen_at])
            bytes_seen = [
                load_vector(builder, builder.gep(seen, [_constant(v * LINE_BYTES)]), INTEGERS)
                for v in range(vectors)
            ]
            line = builder.gep(self.weight, [builder.mul(loop.index, self.value_step)])
            for output in range(outputs):
                place = builder.gep(line, [_constant(output * STEP)])
                four = builder.load(builder.bitcast(place, INT32.as_pointer()))
                four.align = 1
                for vector in range(vectors):
                    total = builder.load(totals[output, vector])
                    total = self.dot(builder, total, bytes_seen[vector], four)
                    builder.store(total, totals[output, vector])
        for output in range(outputs):
            self._finish(output, [builder.load(totals[output, v]) for v in range(vectors)])

    def _finish(self, output: int, totals: list[Any]) -> None:
        """Turn the sums of a channel into results and write them."""
        builder = self.builder
        column_sum, scale, bias = (
            builder.load(builder.gep(start, [_constant(output)]))
            for start in (self.sums, self.scales, self.bias)
        )
        excess = broadcast(builder, builder.mul(self.offset, column_sum), INTEGERS)
        factor = broadcast(builder, builder.fmul(self.step, scale))
        addend = broadcast(builder, bias)
        row = builder.gep(self.out, [builder.mul(self.out_row, _constant(output))])
        for vector, total in enumerate(totals):
            exact = builder.sitofp(builder.sub(total, excess), VECTOR)
            result = builder.fadd(builder.fmul(exact, factor), addend)
            place = builder.add(self.position, _constant(vector * LANES))
            place = builder.select(builder.icmp_signed("<", place, self.last), place, self.last)
            store_vector(builder, result, builder.gep(row, [place]))


def _dot_in_one(builder: Any, total: Any, seen: Any, four: Any) -> Any:
    """Add to each lane the products of its four bytes and the weight's, by ``vpdpbusd``."""
    # LLVM calls the factors bytes since its version 22
    kind = LINE if llvm.llvm_version_info[0] >= 22 else INTEGERS
    name = f"llvm.x86.avx512.vpdpbusd.{LINE_BYTES * 8}"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(INTEGERS, [INTEGERS, kind, kind]), name
    )
    spread = broadcast(builder, four, INTEGERS)
    return builder.call(
        function, [total, builder.bitcast(seen, kind), builder.bitcast(spread, kind)]
    )


def _dot_in_steps(builder: Any, total: Any, seen: Any, four: Any) -> Any:
    """Do the same byte by byte."""
    for which in range(STEP):
        shift = ir.Constant(INTEGERS, [8 * which] * LANES)
        byte = builder.and_(builder.lshr(seen, shift), ir.Constant(INTEGERS, [255] * LANES))
        weight = builder.ashr(
            builder.shl(four, ir.Constant(INT32, 24 - 8 * which)), ir.Constant(INT32, 24)
        )
        product = builder.mul(broadcast(builder, weight, INTEGERS), byte)
        total = builder.add(total, product)
    return total
