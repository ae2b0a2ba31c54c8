"""Arrays as compiled kernels want them: dense, in few shapes, and of one type.

Numba compiles a kernel anew for each combination of dtypes, ranks, orders in memory, and whether an
array may be written. So kernels get flat arrays or rows, and all inputs look writable to them.
"""

from __future__ import annotations

import numpy as np

from tinytorch.core.backends.backend import Array

__all__ = ["FLOAT32", "empty_rows", "flat", "has_rows", "readable", "rows_of", "shared_work"]

FLOAT32 = np.dtype(np.float32)


class _Memory:
    """The memory of an array, without the mark that it must not be written."""

    def __init__(self, array: Array) -> None:
        self.array = array  # lives as long as anything that looks at its memory
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def readable(array: Array) -> Array:
    """Give an equal array that kernels can read: the same memory, or a copy if it has gaps.

    A kernel must not write what it got from here.
    """
    if array.flags.carray:  # C-contiguous, aligned and writable
        return array
    if array.flags.c_contiguous and array.flags.aligned:
        return np.asarray(_Memory(array))
    return np.array(array, order="C")


def flat(array: Array) -> Array:
    """Give the elements in a row, for kernels to read."""
    line = array.ravel()  # a copy only where elements do not lie in order
    return line if line.flags.carray else readable(line)


def rows_of(array: Array) -> Array:
    """Give all rows along the last axis, (rows, width), for kernels to read."""
    rows = array if array.ndim == 2 else array.reshape(-1, array.shape[-1])
    return rows if rows.flags.carray else readable(rows)


def has_rows(x: Array, axis: int = -1) -> bool:
    """Tell whether it can be computed row by row: float32, not empty, along the last axis."""
    return x.dtype == FLOAT32 and x.size > 0 and x.ndim > 0 and axis in (-1, x.ndim - 1)


def empty_rows(array: Array) -> tuple[Array, Array]:
    """Give memory for a result of the same shape, and a view of its rows."""
    result = np.empty(array.shape, FLOAT32)
    return result, result.reshape(-1, array.shape[-1])


def shared_work(rows: Array, per_element: int = 1) -> int:
    """Give what there is to share among threads; one row cannot be shared."""
    return per_element * rows.size if len(rows) > 1 else 0
