"""The exponential for results that are added to one another, a third faster than the exact one.

Who divides by a sum of exponentials cannot tell 1e-38 from 0. Without such *subnormal* numbers a
power of two is just its exponent moved into place, and rounding comes for free: adding 1.5 * 2**23
to a float leaves no bits for what stands behind the point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tinytorch.core.backends.numba_compile import inlined_in_order
from tinytorch.core.backends.numba_math import (
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    ONE,
    P0,
    P1,
    P2,
    P3,
    P4,
    P5,
    as_float,
)

__all__ = ["EXPONENTIAL", "exp_of_minus", "exp_without_subnormals", "larger_number"]

EXPONENTIAL = 4
"""The work of an exponential: it takes about as long as reading so many elements."""

F = np.float32
ROUNDING = F(3 * 2**22 + 127)  # and 127, by which exponents are stored higher than they are
NEGLIGIBLE = F(88)  # exp(-88) rounds to 2**-127, whose stored exponent is that of zero
OVERFLOWING = F(89)  # exp(89) rounds to 2**128, whose stored exponent is that of infinity


@intrinsic
def as_bits(typing: Any, number: Any) -> Any:
    """Read the 32 bits of a float as a whole number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def larger_number(typing: Any, a: Any, b: Any) -> Any:
    """Give the larger of two floats, or any of them if one is NaN: a single instruction.

    For those who will meet the NaN again, as in exp(x - largest).
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
    """Give exp(-x) for x >= 0, and 0 where that is below 1e-38."""
    x = NEGLIGIBLE if x > NEGLIGIBLE else x  # one instruction, and NaN stays what it is
    shifted = ROUNDING - x * LOG2_E
    n = ROUNDING - shifted
    r = (n * LN2_HIGH - x) + n * LN2_LOW
    p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
    p = p * (r * r) + (r + ONE)
    return p * as_float(np.int32(as_bits(shifted) << np.int32(23)))


@inlined_in_order
def exp_without_subnormals(x):
    """Give exp(x) for all x; 0 where that is below 1e-38, infinity where it is above 2e38."""
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
