"""Compiled loops that read and copy memory, for probing caches that a call of NumPy would hide.

Importing this file imports numba. The loops are compiled when first called, which takes about a
second, and numba keeps the result on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["copy_repeatedly", "read_repeatedly"]

Words = npt.NDArray[np.int64]


def _read(source: Words, target: Words, repeats: int) -> int:
    """Read every word of `source`, again and again; `target` is there for the same signature."""
    total = 0
    for repeat in range(repeats):
        # Whole numbers, because their additions may be reordered and so run as vectors.
        seen = 0
        for index in range(source.size):
            seen += source[index]
        total ^= seen + repeat
    return total


def _copy(source: Words, target: Words, repeats: int) -> int:
    """Copy `source` to `target` and back, again and again."""
    for repeat in range(repeats):
        if repeat % 2:
            for index in range(source.size):
                source[index] = target[index]
        else:
            for index in range(source.size):
                target[index] = source[index]
    return repeats


def _compiled(function: Callable[[Words, Words, int], int]) -> Any:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # There is no folder where the result could be kept.
        return numba.njit(nogil=True)(function)


read_repeatedly = _compiled(_read)
copy_repeatedly = _compiled(_copy)
