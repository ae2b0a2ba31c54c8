"""How INT4 weights lie in memory: as INT8 weights do, with two values in each byte.

The layout is that of :mod:`int8_packing`, but the four bytes that lie side by side hold the values
of eight inputs, the first one in the lowest bits. There is a scale for each output and each *group*
of neighbouring inputs: w = scales[group, output] * value, with values from -8 to 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.core.backends.int8_packing import pack_int8, packed_length, unpack_values
from tinytorch.errors import DTypeError, SettingError, ShapeError

__all__ = [
    "STEP_INT4",
    "PackedInt4",
    "pack_int4",
    "packed_length_int4",
    "unpack_int4",
    "unpack_nibbles",
]

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


def unpack_int4(packed: PackedInt4) -> Array:
    """Give back the matrix (inputs, outputs) that was packed, as int8."""
    return unpack_nibbles(packed.values, *packed.shape)


def unpack_nibbles(values: Array, inputs: int, outputs: int) -> Array:
    """Give the int8 matrix (inputs, outputs) whose packed values these are."""
    pairs = unpack_values(values, -(-inputs // STEP_INT4) * 4, outputs)
    both = np.empty((2 * len(pairs), outputs), np.int8)
    both[0::2], both[1::2] = pairs << 4 >> 4, pairs >> 4  # shifts to the right keep the sign
    return both[:inputs]


def packed_length_int4(inputs: int, outputs: int) -> int:
    """Give how many bytes the packed values take."""
    return packed_length(-(-inputs // STEP_INT4) * 4, outputs)
