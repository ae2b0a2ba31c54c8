"""What a file must at least hold: the entropy of the values of an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch.errors import DTypeError

__all__ = ["entropy_bytes"]

BITS_OF_BYTE = 8


def entropy_bytes(values: Any) -> float:
    """Give the zeroth-order entropy of an array in bytes: n values, -log2 of its share for each.

    No code that knows how often each value occurs, but nothing about the order, is shorter on
    average. What the shares themselves take is not counted. For a pruned array it is the entropy of
    the mask plus that of the values that are left. Floats count as different if any bit differs.

    >>> entropy_bytes([0, 0, 0, 1] * 100)
    40.56390622295664
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"an array of {array.dtype} has no entropy here; give numbers or truths")
    if array.dtype.kind == "f":
        array = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    counts = np.unique(array, return_counts=True)[1]
    return float(np.sum(counts * np.log2(array.size / counts))) / BITS_OF_BYTE
