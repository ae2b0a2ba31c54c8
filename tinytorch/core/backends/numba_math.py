"""Exponentials and their relatives for compiled loops, in float32.

`math.exp` is a call for each element, so LLVM could not turn a loop over it into vector
instructions (it would be seven times slower). These are plain arithmetic: a polynomial on a short
range, and the exponent set by its bits. They keep NaN, and give 0 and infinity where float32 does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tinytorch.core.backends.numba_compile import inlined, inlined_in_order

__all__ = ["as_float", "erf", "exp", "gelu", "gelu_slope", "larger", "sigmoid", "tanh"]

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
    """Read the 32 bits of a whole number as a float."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def larger(typing: Any, a: Any, b: Any) -> Any:
    """Give the larger of two floats, and NaN if one of them is; vectorised even in a reduction."""

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
    """Give x * P(Z <= x) for a normal Z, exactly or by the usual formula with tanh."""
    if with_tanh:  # 0.5 (1 + tanh(u)) = sigmoid(2 u)
        return x * sigmoid(TWO * GELU_SCALE * x * (ONE + GELU_CUBIC * x * x))
    return HALF * x * (ONE + erf(x * SQRT_HALF))


@inlined
def gelu_slope(x, with_tanh):
    """Give the derivative of :func:`gelu`."""
    if with_tanh:
        share = sigmoid(TWO * GELU_SCALE * x * (ONE + GELU_CUBIC * x * x))
        slope = TWO * GELU_SCALE * (ONE + F(3) * GELU_CUBIC * x * x)
        return share + x * share * (ONE - share) * slope
    density = INVERSE_SQRT_TAU * exp(-HALF * x * x)
    return HALF * (ONE + erf(x * SQRT_HALF)) + x * density
