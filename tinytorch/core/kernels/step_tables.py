"""The tables that describe a language model to the compiled step: what stands in which column."""

from __future__ import annotations

# ---------------------------------------------------------------- products (layers + 1, slots,
# fields): those of a block in order, and in the last row, first slot, the head

QUERY, KEY, VALUE, ATTENDED, UP, GATE, DOWN = range(7)
PRODUCT_SLOTS = 7

(
    KIND, INPUTS, OUTPUTS, TASKS, VALUES, SCALES, EXCESS, BIAS, GROUP, OUTPUT, PARTIAL,
) = range(11)  # fmt: skip
FIELDS = 11
"""VALUES to BIAS are addresses, or 0; OUTPUT and PARTIAL are places in the room of the step."""

NOTHING, ROWS, COLUMNS, INT8_WEIGHT_ONLY, INT8_DYNAMIC, INT4 = range(6)
"""Kinds of products: none, floats in rows (inputs, outputs) or in columns, packed integers."""

# ---------------------------------------------------------------- norms: (4 layers + 1, 2), the
# addresses of weight and bias (0: a root mean square) of those before attention, before the MLP, of
# queries and of keys (0 0: none); then the last one

BLOCK_NORMS = 4

# ---------------------------------------------------------------- sizes, and places in the room

(
    LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, SLOTS, STREAM, NORMALISED, MIXED, HIDDEN, SCORES,
) = range(11)  # fmt: skip

STEP_OF_BYTES = 0
"""Where in the room the step stands by which the bytes of a vector were rounded."""

PHASES = 5
"""Times that threads wait for each other in a block."""
