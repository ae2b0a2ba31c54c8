"""Packed INT8 weights become floats again, all of them or some columns (:mod:`int8_packing`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from tinytorch.core.backends.int8_packing import PANEL_COLUMNS, STEP
from tinytorch.core.backends.numba_compile import compiled, inlined
from tinytorch.core.backends.numba_simd import (
    FLOAT,
    INT32,
    broadcast,
    element,
    load_vector,
    store_vector,
)

__all__ = ["unpack_columns", "unpack_floats"]

BLOCK_COLUMNS, BLOCK_LINES = 16, 16
"""Columns, whose bytes share cache lines, and lines of them that are unpacked together."""


@intrinsic
def unpack_step(typing, values, at, scale, out, out_at):
    """Give what a line holds for one column: out[out_at + i] = values[at + i] * scale, i < STEP."""
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
    """Give a packed matrix as the floats of its transpose (outputs, inputs), in a row."""
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
    """Give some columns (numbers, inputs) as floats, in a row; tell whether all of them exist.

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
