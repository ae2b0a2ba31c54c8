"""How quantized weights are laid out for the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytorch.core.kernels.backend import Array
from tinytorch.errors import DTypeError, SettingError, ShapeError

# ---------------------------------------------------------------- how INT8 weights lie in memory,
# so that one layout serves every kernel and every processor
#
# The matrix (inputs, outputs) is cut into *panels* of 64 outputs. A panel holds *lines*, one for
# each four inputs; a line holds, output by output, the four values that meet the same four inputs::
#
#     line 0:  w[0,0] w[1,0] w[2,0] w[3,0]   w[0,1] w[1,1] w[2,1] w[3,1]   ...   (64 outputs)
#     line 1:  w[4,0] w[5,0] w[6,0] w[7,0]   w[4,1] ...
#
# Four bytes are what one lane of a vector register multiplies and adds up in one instruction, and a
# panel is read from front to back, as memory likes best. Inputs are filled up with zeros to a
# multiple of four. The last panel is only as wide as there are outputs; behind it lie a few bytes
# more, since whole registers are read.
#
# Values are symmetric: w = scales[output] * value, without a zero point.

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


def unpack_values(values: Array, inputs: int, outputs: int) -> Array:
    """Return the int8 matrix (inputs, outputs) whose packed values these are."""
    if values.shape != (packed_length(inputs, outputs),):
        raise ShapeError(
            f"values of shape {values.shape} are not a packed weight of {inputs} inputs and "
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
    """Return how many bytes the packed values take."""
    size = -(-inputs // STEP) * STEP * outputs
    return size + -(outputs * STEP) % WIDEST_REGISTER if size else 0


def aligned(values: Array) -> Array:
    """Return packed values aligned to 64 bytes: the same array, or a copy."""
    if values.ctypes.data % WIDEST_REGISTER == 0:
        return values
    room = _room(values.size)
    room[...] = values
    return room


def _room(size: int) -> Array:
    """Allocate bytes aligned to 64, so that no vector load crosses a cache line."""
    room = np.empty(size + WIDEST_REGISTER, np.int8)
    start = -room.ctypes.data % WIDEST_REGISTER
    return room[start : start + size]


# ---------------------------------------------------------------- how INT4 weights lie in memory:
# as INT8 weights do, with two values in each byte
#
# The layout is that of `packing`, but the four bytes that lie side by side hold the
# values of eight inputs, the first one in the lowest bits. There is a scale for each output and
# each *group* of neighbouring inputs: w = scales[group, output] * value, with values from -8 to 7.

STEP_INT4 = 8
"""Inputs whose values lie side by side."""


@dataclass(frozen=True, eq=False)
class PackedInt4:
    """An INT4 weight: ``run(kind, x, *packed.arrays, bias, group_size=packed.group_size)``.

    values: int8, flat, two values each; scales: float32 (groups, outputs); shape: (inputs,
    outputs).
    """

    values: Array
    scales: Array
    shape: tuple[int, int]
    group_size: int

    @property
    def arrays(self) -> tuple[Array, Array]:
        return self.values, self.scales

    @property
    def nbytes(self) -> int:
        """The bytes that are really held."""
        return self.values.nbytes + self.scales.nbytes


def pack_int4(weight: Array, scales: Array, *, group_size: int) -> PackedInt4:
    """Lay out a matrix (inputs, outputs) of int8 from -8 to 7, with scales (groups, outputs)."""
    if weight.dtype != np.int8:
        raise DTypeError(f"a weight of {weight.dtype} cannot be packed; quantize it to int8 first")
    if weight.ndim != 2:
        raise ShapeError(f"a weight has two axes (inputs, outputs), not the shape {weight.shape}")
    if weight.size and (weight.min() < -8 or weight.max() > 7):
        raise SettingError(
            f"values from {weight.min()} to {weight.max()} do not fit into 4 bits; "
            "quantize to the range from -8 to 7"
        )
    if group_size < 1 or group_size % STEP_INT4:
        raise SettingError(f"groups of {group_size} inputs are not a multiple of {STEP_INT4}")
    inputs, outputs = weight.shape
    groups = -(-inputs // group_size)
    if scales.shape != (groups, outputs):
        raise ShapeError(
            f"{inputs} inputs in groups of {group_size} and {outputs} outputs need scales of shape "
            f"{(groups, outputs)}, not {scales.shape}"
        )
    filled = np.zeros((-(-inputs // STEP_INT4) * STEP_INT4, outputs), np.int8)
    filled[:inputs] = weight
    low, high = filled[0::2].view(np.uint8) & 15, filled[1::2].view(np.uint8) << 4
    pairs = (low | high).view(np.int8)  # two inputs each: (inputs / 2, outputs)
    return PackedInt4(
        values=pack_int8(pairs, np.empty(outputs, np.float32)).values,
        scales=np.array(scales, np.float32),
        shape=(inputs, outputs),
        group_size=group_size,
    )


def unpack_nibbles(values: Array, inputs: int, outputs: int) -> Array:
    """Return the int8 matrix (inputs, outputs) whose packed values these are."""
    pairs = unpack_values(values, -(-inputs // STEP_INT4) * 4, outputs)
    both = np.empty((2 * len(pairs), outputs), np.int8)
    both[0::2], both[1::2] = pairs << 4 >> 4, pairs >> 4  # shifts to the right keep the sign
    return both[:inputs]


def packed_length_int4(inputs: int, outputs: int) -> int:
    """Return how many bytes the packed values take."""
    return packed_length(-(-inputs // STEP_INT4) * 4, outputs)
