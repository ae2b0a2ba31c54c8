"""Vector registers for numba: the inner loop of matrix products, written once for all sizes.

LLVM turns simple loops into vector instructions by itself, but not the one that matters most: a
tile of a product whose sums stay in registers. :func:`tile_product` writes that loop in LLVM's own
language, from a description that reads like the mathematics. No C compiler is needed, and LLVM
chooses the instructions of whatever processor it finds.

Offsets and steps count elements from the first element of an array, so that any array with any
strides will do as long as the last axis of `panel` and `out` is contiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from tinytorch.core.kernels.numba.compile import inlined, inlined_in_order


def target_features() -> dict[str, bool]:
    """Return the instruction sets that numba compiles for: the processor's, or what was set.

    NUMBA_CPU_FEATURES may leave out some of them; an instruction that is not among them would end
    the process while it is compiled.
    """
    if config.CPU_FEATURES is None:
        return dict(llvm.get_host_cpu_features())
    named = filter(None, config.CPU_FEATURES.split(","))
    return {name.lstrip("+-"): not name.startswith("-") for name in map(str.strip, named)}


def _register_file() -> tuple[int, int]:
    """Return the lanes of a vector register (of float32) and how many vectors wide a tile is.

    A tile of six rows needs six sums for each vector, one register for each vector of the panel and
    one for an element of the rows: 6 x 4 + 4 + 1 of the 32 registers of AVX-512 or Neon, or
    6 x 2 + 2 + 1 of the 16 of AVX2.
    """
    features = target_features()
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
    """Return a * b + c in one instruction."""
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
    """Make a variant of :func:`tile_product` for 1 to `widest` vectors, by its last argument.

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


# ---------------------------------------------------------------- exponentials and their relatives
# for compiled loops, in float32
#
# `math.exp` is a call for each element, so LLVM could not turn a loop over it into vector
# instructions (it would be seven times slower). These are plain arithmetic: a polynomial on a short
# range, and the exponent set by its bits. They keep NaN, and give 0 and infinity where float32
# does.

F = np.float32
ZERO, HALF, ONE, TWO = F(0), F(0.5), F(1), F(2)

# exp(x) = 2**n * exp(r), with n the nearest whole number to x / ln 2. The logarithm is split in two
# so that n * LN2_HIGH is exact.
LOG2_E, LN2_HIGH, LN2_LOW = F(1.4426950408889634), F(0.693359375), F(-2.12194440e-4)
EXP_LOWEST, EXP_HIGHEST = F(-104.0), F(88.73)  # below it is 0 and above it is infinity
# exp(r) = 1 + r + r^2 (P5 + r (P4 + ...)) on |r| <= ln 2 / 2 (Cephes)
P0, P1, P2 = F(1.9875691500e-4), F(1.3981999507e-3), F(8.3334519073e-3)
P3, P4, P5 = F(4.1665795894e-2), F(1.6666665459e-1), F(5.0000001201e-1)

# erf(x) = 1 - t (E1 + t (E2 + ...)) exp(-x^2) with t = 1 / (1 + E0 x) (Abramowitz, Stegun 7.1.26)
E0, E1, E2, E3 = F(0.3275911), F(0.254829592), F(-0.284496736), F(1.421413741)
E4, E5 = F(-1.453152027), F(1.061405429)

GELU_SCALE, GELU_CUBIC = F(0.7978845608028654), F(0.044715)
SQRT_HALF, INVERSE_SQRT_TAU = F(0.7071067811865476), F(0.3989422804014327)


@intrinsic
def as_float(typing: Any, bits: Any) -> Any:
    """Read the 32 bits of an integer as a float."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def larger(typing: Any, a: Any, b: Any) -> Any:
    """Return the maximum of two floats, NaN if either is; vectorised even in a reduction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.FloatType()
        name = "llvm.maximum.f32"
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(number, [number, number]), name
        )
        return builder.call(function, arguments)

    return types.float32(types.float32, types.float32), generate


@inlined_in_order  # the product of both powers of two alone may be infinite
def exp(x):
    # written so that NaN, for which every comparison fails, stays what it is
    x = EXP_LOWEST if x < EXP_LOWEST else x
    x = EXP_HIGHEST if x > EXP_HIGHEST else x
    n = np.rint(x * LOG2_E)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
    p = p * r * r + r + ONE
    # 2**n in two steps, since n may be one more, or much less, than an exponent can say
    half = np.int32(n) >> np.int32(1)
    rest = np.int32(n) - half
    return p * _power_of_two(half) * _power_of_two(rest)


@inlined
def _power_of_two(n):
    return as_float(np.int32((n + np.int32(127)) << np.int32(23)))


@inlined
def sigmoid(x):
    return ONE / (ONE + exp(-x))


@inlined
def tanh(x):
    # 1 - 2 / (1 + exp(2 x)) loses digits near 0; there an odd polynomial has them all
    square = x * x
    near = x * (ONE + square * (F(-1 / 3) + square * (F(2 / 15) + square * F(-17 / 315))))
    far = ONE - TWO / (ONE + exp(TWO * x))
    return near if square < F(0.04) else far


@inlined
def erf(x):
    size = abs(x)
    t = ONE / (ONE + E0 * size)
    tail = ((((E5 * t + E4) * t + E3) * t + E2) * t + E1) * t * exp(-size * size)
    return ONE - tail if x >= ZERO else tail - ONE


@inlined
def gelu(x, with_tanh):
    """Return x * P(Z <= x) for a normal Z, exactly or by the usual formula with tanh."""
    if with_tanh:  # 0.5 (1 + tanh(u)) = sigmoid(2 u)
        return x * sigmoid(TWO * GELU_SCALE * x * (ONE + GELU_CUBIC * x * x))
    return HALF * x * (ONE + erf(x * SQRT_HALF))


# ---------------------------------------------------------------- the exponential for results that
# are added to one another, a third faster than the exact one
#
# Who divides by a sum of exponentials cannot tell 1e-38 from 0. Without such *subnormal* numbers a
# power of two is just its exponent moved into place, and rounding comes for free: adding 1.5 *
# 2**23 to a float leaves no bits for what stands behind the point.

EXPONENTIAL = 4
"""The work of an exponential, in elements that could be read in the same time."""
ROUNDING = F(3 * 2**22 + 127)  # and 127, by which exponents are stored higher than they are
NEGLIGIBLE = F(88)  # exp(-88) rounds to 2**-127, whose stored exponent is that of zero
OVERFLOWING = F(89)  # exp(89) rounds to 2**128, whose stored exponent is that of infinity


@intrinsic
def as_bits(typing: Any, number: Any) -> Any:
    """Read the 32 bits of a float as an integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def larger_number(typing: Any, a: Any, b: Any) -> Any:
    """Return the maximum of two floats, or either of them if one is NaN: a single instruction.

    For uses where a NaN shows up later anyway, as in exp(x - largest).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.FloatType()
        name = "llvm.maxnum.f32"
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(number, [number, number]), name
        )
        return builder.call(function, arguments, fastmath=("nnan", "nsz"))

    return types.float32(types.float32, types.float32), generate


@inlined_in_order  # adding and taking away again is the point
def exp_of_minus(x):
    """Return exp(-x) for x >= 0, and 0 where that is below 1e-38."""
    x = NEGLIGIBLE if x > NEGLIGIBLE else x  # one instruction, and NaN stays what it is
    shifted = ROUNDING - x * LOG2_E
    n = ROUNDING - shifted
    r = (n * LN2_HIGH - x) + n * LN2_LOW
    p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
    p = p * (r * r) + (r + ONE)
    return p * as_float(np.int32(as_bits(shifted) << np.int32(23)))


@inlined_in_order
def exp_without_subnormals(x):
    """Return exp(x) for all x; 0 where that is below 1e-38, infinity where it is above 2e38."""
    distance = -x
    distance = NEGLIGIBLE if distance > NEGLIGIBLE else distance
    x = -distance
    x = OVERFLOWING if x > OVERFLOWING else x
    shifted = x * LOG2_E + ROUNDING
    n = shifted - ROUNDING
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
    p = p * (r * r) + (r + ONE)
    return p * as_float(np.int32(as_bits(shifted) << np.int32(23)))
