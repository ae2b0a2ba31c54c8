"""Encodings: ways to store an array as plain parts and a short text.

An encoding turns an array into named parts, which are plain arrays, and a short text of settings;
shape and settings together determine the parts. `ENCODINGS` is the table of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tinytorch.core.kernels.backend import Array
from tinytorch.errors import SettingError
from tinytorch.formats.affine import QuantizedArray, Scheme, scale_shape, value_limits
from tinytorch.formats.tensor_file import TensorSpec

MAIN = ""
"""The part that has the name of the array itself."""

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Encoded:
    """An array as an encoding keeps it. The settings are words, separated by single spaces."""

    shape: Shape
    settings: str
    parts: dict[str, Array]


@dataclass(frozen=True)
class Encoding:
    """One way to keep arrays.

    accepts: whether an array is of the kind that this encoding is for.
    encode: take an array apart; raises a TinyTorchError for one that would not come back as it is.
    layout: return the specs of the parts of an array with this shape and these settings. Both come
        from a file and are untrusted: it raises a ValueError if invalid, and allocates nothing.
    decode: rebuild the array; the parts match the layout, but their values are untrusted: it raises
        a ValueError if they are invalid.
    """

    accepts: Callable[[Any], bool]
    encode: Callable[[Any], Encoded]
    layout: Callable[[Shape, str], dict[str, TensorSpec]]
    decode: Callable[[Encoded], Any]


# ---------------------------------------------------------------- quantized arrays in a weights
# file: integers of 8 or 4 bits, scales and zero points


def has_bits(bits: int, array: Any) -> bool:
    """Return whether an array is quantized to `bits` bits."""
    return isinstance(array, QuantizedArray) and array.scheme.bits == bits


def _encode_quantized(array: QuantizedArray) -> Encoded:
    check_quantized(array)
    scheme, values = array.scheme, array.values
    parts = {MAIN: values if scheme.bits == 8 else _pack_nibbles(values), "scale": array.scale}
    if not scheme.symmetric:
        parts["zero_point"] = array.zero_point.astype(np.int8)
    return Encoded(values.shape, scheme_words(scheme), parts)


def check_quantized(array: QuantizedArray) -> None:
    """Raise for an array that would not survive a round trip."""
    scheme, values, scale, zero_point = array.scheme, array.values, array.scale, array.zero_point
    if values.dtype != np.int8 or scale.dtype != np.float32 or zero_point.dtype != np.int32:
        raise SettingError(
            f"values are {values.dtype}, scales {scale.dtype} and zero points {zero_point.dtype}; "
            "they must be int8, float32 and int32"
        )
    wanted = scale_shape(values.shape, scheme)
    if scale.shape != wanted or zero_point.shape != wanted:
        raise SettingError(
            f"scales have shape {scale.shape} and zero points {zero_point.shape}; "
            f"values of shape {values.shape} under {scheme} need {wanted}"
        )
    _check_within("zero points", zero_point, (0, 0) if scheme.symmetric else value_limits())
    _check_within("values", values, value_limits(scheme.bits))


def _check_within(what: str, array: Array, limits: tuple[int, int]) -> None:
    lowest, highest = int(array.min(initial=0)), int(array.max(initial=0))
    if lowest < limits[0] or highest > limits[1]:
        raise SettingError(
            f"{what} go from {lowest} to {highest}; they must lie in {limits[0]}..{limits[1]}"
        )


def _quantized_layout(bits: int, shape: Shape, settings: str) -> dict[str, TensorSpec]:
    scheme = scheme_of(bits, settings)
    if scheme.group_size is not None and shape and shape[0] % scheme.group_size:
        raise ValueError(f"groups of {scheme.group_size} do not divide {shape[0]} rows")
    scales = scale_shape(shape, scheme)
    values = TensorSpec("I8", shape)
    if bits == 4:
        values = TensorSpec("U8", ((math.prod(shape) + 1) // 2,))
    specs = {MAIN: values, "scale": TensorSpec("F32", scales)}
    return specs if scheme.symmetric else specs | {"zero_point": TensorSpec("I8", scales)}


def _decode_quantized(bits: int, encoded: Encoded) -> QuantizedArray:
    values, scale = encoded.parts[MAIN], encoded.parts["scale"]
    if bits == 4:
        values = _unpack_nibbles(values, encoded.shape)
    zero_point = np.zeros(scale.shape, np.int32)
    zero_point[...] = encoded.parts.get("zero_point", 0)
    return QuantizedArray(values, scale, zero_point, scheme_of(bits, encoded.settings))


def scheme_words(scheme: Scheme) -> str:
    """Return the settings text of a scheme: the inverse of :func:`scheme_of`."""
    words = [] if scheme.axis is None else [f"axis={scheme.axis}"]
    words += [] if scheme.group_size is None else [f"group={scheme.group_size}"]
    return " ".join(words if scheme.symmetric else [*words, "zero"])


def scheme_of(bits: int, settings: str) -> Scheme:
    """Parse the settings text of a file into a scheme."""
    found = re.fullmatch(
        r"(?:axis=(?P<axis>-?[0-9]{1,9}) ?)?(?:group=(?P<group>[0-9]{1,18}) ?)?(?P<zero>zero)?",
        settings,
    )
    if found is None:
        raise ValueError(f"{settings!r} are not settings of a quantized array")
    return Scheme(
        bits=bits,
        symmetric=not found["zero"],
        axis=int(found["axis"]) if found["axis"] else None,
        group_size=int(found["group"]) if found["group"] else None,
    )


def _pack_nibbles(values: Array) -> Array:
    """Put two neighbours into each byte, the first one into the lower four bits."""
    flat = values.reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.int8(0))
    nibbles = flat.view(np.uint8) & 15
    return nibbles[0::2] | nibbles[1::2] << 4


def _unpack_nibbles(packed: Array, shape: Shape) -> Array:
    values = np.empty(shape, np.int8)
    flat = values.reshape(-1)
    flat[0::2] = packed & 15
    flat[1::2] = packed[: flat.size // 2] >> 4
    flat ^= 8  # The highest of the four bits is the sign: 8..15 stand for -8..-1.
    flat -= 8
    return values


def _quantized(bits: int) -> Encoding:
    return Encoding(
        accepts=partial(has_bits, bits),
        encode=_encode_quantized,
        layout=partial(_quantized_layout, bits),
        decode=partial(_decode_quantized, bits),
    )


QUANTIZED = {"int8": _quantized(8), "int4": _quantized(4)}
"""The encodings of quantized arrays, by their names in the file."""
