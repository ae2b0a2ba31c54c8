"""PackedWeight: a quantized matrix as the kernels take it, in tensors that layers can share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.backends.int4_packing import STEP_INT4, pack_int4, unpack_nibbles
from tinytorch.core.backends.int8_packing import pack_int8, unpack_values
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.formats.affine import QuantizedArray, Scheme, quantize_array

__all__ = [
    "PackedWeight",
    "check_group_size",
    "default_group",
    "pack_weight",
    "quantize_weight",
]

DEFAULT_GROUPS = (32, 16, 8)
"""Neighbouring inputs that share a scale in INT4, unless asked otherwise: the first that divides.
With 32 a weight takes five bits, its share of the scale included."""


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A matrix (inputs, outputs) of INT8 with a scale per output, or of INT4 with one per group.

    values: int8, in the layout of the kernels; scales: float32 (outputs,) or (groups, outputs).
    """

    values: Tensor
    scales: Tensor
    shape: tuple[int, int]
    bits: int
    group_size: int | None

    def unpacked(self) -> QuantizedArray:
        """Give values (inputs, outputs) and scales in the order in which a reader expects them."""
        unpack = unpack_values if self.bits == 8 else unpack_nibbles
        scale = self.scales.data
        return QuantizedArray(
            values=unpack(self.values.data, *self.shape),
            scale=scale,
            zero_point=np.zeros(scale.shape, np.int32),
            scheme=_scheme(self.bits, self.group_size),
        )

    def sums(self) -> Array:
        """Add up the values of each output (outputs,), to correct for inputs off the centre."""
        return unpack_values(self.values.data, *self.shape).sum(axis=0, dtype=np.int32)


def quantize_weight(
    matrix: Array, *, bits: int = 8, group_size: int | None = None
) -> QuantizedArray:
    """Quantize a matrix (inputs, outputs): each output by its extremes, INT4 groups by their error.

    Eight bits have steps to spare, so nothing is cut off; with four it pays to cut off the largest
    values where that makes the others more exact.
    """
    if bits == 4:
        group_size = default_group(len(matrix)) if group_size is None else group_size
        if group_size is None:
            raise SettingError(f"no group of 8 divides {len(matrix)} inputs; INT8 needs no groups")
        check_group_size(len(matrix), group_size)
    return quantize_array(matrix, _scheme(bits, group_size), fit="mse" if bits == 4 else "range")


def pack_weight(quantized: QuantizedArray) -> PackedWeight:
    """Lay out what :func:`quantize_weight` gave, or what a file holds."""
    values, scale, scheme = quantized.values, quantized.scale, quantized.scheme
    inputs, outputs = values.shape
    if scheme.bits == 8:
        packed_values, packed_scales, _ = pack_int8(values, scale).arrays
    else:
        assert scheme.group_size is not None
        packed_values, packed_scales = pack_int4(values, scale, group_size=scheme.group_size).arrays
    return PackedWeight(
        Tensor(packed_values),
        Tensor(packed_scales),
        (inputs, outputs),
        scheme.bits,
        scheme.group_size,
    )


def default_group(inputs: int) -> int | None:
    """Give the size of groups that so many inputs are divided into, or None where none divides."""
    return next((size for size in DEFAULT_GROUPS if inputs % size == 0), None)


def check_group_size(inputs: int, group_size: int) -> None:
    """Raise unless groups of this size can be made of so many inputs."""
    if group_size < 1 or group_size % STEP_INT4:
        raise SettingError(
            f"group_size must be a multiple of {STEP_INT4}, as the kernels read so many inputs at "
            f"once, got {group_size}"
        )
    if inputs % group_size:
        possible = [g for g in (16, 32, 64, 128) if inputs % g == 0]
        hint = f"{', '.join(map(str, possible))} would" if possible else "INT8 needs no groups"
        raise SettingError(f"group_size={group_size} does not divide {inputs} inputs; {hint}")


def _scheme(bits: int, group_size: int | None) -> Scheme:
    return Scheme(bits, symmetric=True, axis=1, group_size=group_size)
