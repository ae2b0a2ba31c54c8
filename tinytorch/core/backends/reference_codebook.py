"""Weights by codes: each is the number of an entry in a small codebook, in short, obvious NumPy.

Codes are uint8, in a row. With up to 16 entries they take half a byte each: two codes in a byte,
the first one in the lower bits; with more they take a byte.
"""

from __future__ import annotations

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.errors import DTypeError, SettingError, ShapeError

__all__ = [
    "LARGEST_CODEBOOK",
    "PACKED_ENTRIES",
    "check_codes",
    "code_bytes",
    "codebook_lookup",
    "codebook_lookup_backward",
    "pack_codes",
    "unpack_codes",
]

PACKED_ENTRIES = 16
"""So many entries have codes of half a byte."""
LARGEST_CODEBOOK = 256


def code_bytes(size: int, entries: int) -> int:
    """Give how many bytes the codes of `size` weights take."""
    return (size + 1) // 2 if entries <= PACKED_ENTRIES else size


def pack_codes(codes: Array, entries: int) -> Array:
    """Lay out codes (any shape, whole numbers below `entries`) as kernels take them."""
    if not 1 <= entries <= LARGEST_CODEBOOK:
        raise SettingError(f"a codebook has 1 to {LARGEST_CODEBOOK} entries, not {entries}")
    if codes.dtype.kind not in "iu":
        raise DTypeError(f"codes are whole numbers, got {codes.dtype}")
    if codes.size and not 0 <= codes.min() <= codes.max() < entries:
        raise SettingError(
            f"codes from {codes.min()} to {codes.max()} do not fit a codebook of {entries} entries"
        )
    line = codes.reshape(-1).astype(np.uint8)
    if entries > PACKED_ENTRIES:
        return line
    low, high = line[0::2], np.zeros_like(line[0::2])
    high[: line.size // 2] = line[1::2]
    packed: Array = low | high << 4
    return packed


def unpack_codes(packed: Array, *, size: int, entries: int) -> Array:
    """Give back `size` codes, one in each uint8."""
    if packed.shape != (code_bytes(size, entries),):
        raise ShapeError(
            f"{size} codes of {entries} entries take {code_bytes(size, entries)} bytes in a row, "
            f"not {packed.shape}"
        )
    if entries > PACKED_ENTRIES:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[:size]


def check_codes(packed: Array, *, size: int, entries: int) -> None:
    """Raise unless packed codes, such as those from a file, all mean entries of a codebook."""
    if packed.dtype != np.uint8:
        raise DTypeError(f"packed codes are uint8, got {packed.dtype}")
    codes = unpack_codes(packed, size=size, entries=entries)
    most = int(codes.max(initial=0))
    if most >= entries:
        raise SettingError(
            f"there is a code of {most} among the {size:,} of a weight, but its codebook has only "
            f"{entries} entries; codes and codebook are not from the same weight"
        )


def codebook_lookup(codes: Array, codebook: Array, *, size: int) -> Array:
    """Give the entries (size,) that packed codes mean."""
    return codebook[unpack_codes(codes, size=size, entries=len(codebook))]


def codebook_lookup_backward(grad: Array, codes: Array, *, entries: int) -> Array:
    """Give the gradient of each entry: the sum of those of all weights with its code."""
    numbers = unpack_codes(codes, size=grad.size, entries=entries)
    return np.bincount(numbers, weights=grad.reshape(-1), minlength=entries).astype(grad.dtype)
