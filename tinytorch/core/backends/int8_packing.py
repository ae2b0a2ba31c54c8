"""How INT8 weights lie in memory, so that one layout serves every kernel and every processor.

The matrix (inputs, outputs) is cut into *panels* of 64 outputs. A panel holds *lines*, one for each
four inputs; a line holds, output by output, the four values that meet the same four inputs::

    line 0:  w[0,0] w[1,0] w[2,0] w[3,0]   w[0,1] w[1,1] w[2,1] w[3,1]   ...   (64 outputs)
    line 1:  w[4,0] w[5,0] w[6,0] w[7,0]   w[4,1] ...

Four bytes are what one lane of a vector register multiplies and adds up in one instruction, and a
panel is read from front to back, as memory likes best. Inputs are filled up with zeros to a
multiple of four. The last panel is only as wide as there are outputs; behind it lie a few bytes
more, since whole registers are read.

Values are symmetric: w = scales[output] * value, without a zero point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.errors import DTypeError, ShapeError

__all__ = [
    "MOST_INPUTS",
    "PANEL_COLUMNS",
    "STEP",
    "PackedInt8",
    "aligned",
    "pack_int8",
    "packed_length",
    "unpack_int8",
    "unpack_values",
]

PANEL_COLUMNS = 64
STEP = 4
"""Inputs whose values lie side by side."""

WIDEST_REGISTER = 64  # bytes
MOST_INPUTS = (2**31 - 1) // (255 * 128)
"""Inputs up to which a sum of products of uint8 and int8 always fits into 32 bits."""


@dataclass(frozen=True, eq=False)
class PackedInt8:
    """An INT8 weight as the ``int8_*`` kernels take it: ``run(kind, x, *packed.arrays, bias)``.

    values: int8, flat, in the layout of this module; scales: float32 (outputs,); sums: int32
    (outputs,), of the values of each output, which correct for activations that are not centred;
    shape: (inputs, outputs).
    """

    values: Array
    scales: Array
    sums: Array
    shape: tuple[int, int]

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        return self.values, self.scales, self.sums

    @property
    def nbytes(self) -> int:
        """The bytes that are really held."""
        return sum(array.nbytes for array in self.arrays)


def pack_int8(weight: Array, scales: Array) -> PackedInt8:
    """Lay out an int8 matrix (inputs, outputs) with one scale for each output."""
    if weight.dtype != np.int8:
        raise DTypeError(f"a weight of {weight.dtype} cannot be packed; quantize it to int8 first")
    if weight.ndim != 2 or scales.shape != weight.shape[1:]:
        raise ShapeError(
            f"a weight (inputs, outputs) needs one scale for each output, "
            f"but their shapes are {weight.shape} and {scales.shape}"
        )
    inputs, outputs = weight.shape
    if inputs > MOST_INPUTS:
        raise ShapeError(
            f"sums of {inputs:,} products may not fit into 32 bits; "
            f"split the layer into parts of at most {MOST_INPUTS:,} inputs"
        )
    values = _room(packed_length(inputs, outputs))
    lines = -(-inputs // STEP)
    filled = np.zeros((lines, STEP, outputs), np.int8)
    filled.reshape(lines * STEP, outputs)[:inputs] = weight
    at = 0
    for first in range(0, outputs, PANEL_COLUMNS):
        panel = filled[:, :, first : first + PANEL_COLUMNS].swapaxes(1, 2)
        values[at : at + panel.size].reshape(panel.shape)[...] = panel
        at += panel.size
    values[at:] = 0
    return PackedInt8(
        values=values,
        scales=np.array(scales, np.float32),
        sums=weight.sum(axis=0, dtype=np.int32),
        shape=(inputs, outputs),
    )


def unpack_int8(packed: PackedInt8) -> Array:
    """Give back the int8 matrix (inputs, outputs) that was packed."""
    return unpack_values(packed.values, *packed.shape)


def unpack_values(values: Array, inputs: int, outputs: int) -> Array:
    """Give the int8 matrix (inputs, outputs) whose packed values these are."""
    if values.shape != (packed_length(inputs, outputs),):
        raise ShapeError(
            f"values of shape {values.shape} are no packed weight of {inputs} inputs and "
            f"{outputs} outputs"
        )
    lines = -(-inputs // STEP)
    filled = np.empty((lines, STEP, outputs), np.int8)
    at = 0
    for first in range(0, outputs, PANEL_COLUMNS):
        panel = filled[:, :, first : first + PANEL_COLUMNS]
        stored = values[at : at + panel.size].reshape(lines, panel.shape[2], STEP)
        panel[...] = stored.swapaxes(1, 2)
        at += panel.size
    return filled.reshape(lines * STEP, outputs)[:inputs]


def packed_length(inputs: int, outputs: int) -> int:
    """Give how many bytes the packed values take."""
    size = -(-inputs // STEP) * STEP * outputs
    return size + -(outputs * STEP) % WIDEST_REGISTER if size else 0


def aligned(values: Array) -> Array:
    """Give packed values that begin where kernels read them best: the same, or a copy."""
    if values.ctypes.data % WIDEST_REGISTER == 0:
        return values
    room = _room(values.size)
    room[...] = values
    return room


def _room(size: int) -> Array:
    """Reserve bytes from a multiple of 64 on, so that no register is read from two cache lines."""
    room = np.empty(size + WIDEST_REGISTER, np.int8)
    start = -room.ctypes.data % WIDEST_REGISTER
    return room[start : start + size]
