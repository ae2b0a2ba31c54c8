"""Looking up rows of an INT8 table with the compiled backend."""

from __future__ import annotations

import numpy as np

from tinytorch.core.backends import numpy_int8_embedding as plain
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.int8_packing import packed_length
from tinytorch.core.backends.numba_arrays import FLOAT32, flat, readable
from tinytorch.core.backends.numba_int8_unpacking import unpack_columns

__all__ = ["KERNELS"]


def int8_embedding(ids: Array, values: Array, scales: Array, *, width: int) -> Array:
    tokens = scales.size
    if (
        ids.dtype.kind in "iu"
        and ids.size > 0
        and width > 0
        and tokens > 0
        and scales.dtype == FLOAT32
        and scales.shape == (tokens,)
        and values.dtype == np.int8
        and values.shape == (packed_length(width, tokens),)
    ):
        out = np.empty(ids.size * width, FLOAT32)
        numbers = flat(ids.astype(np.int64, copy=False))
        if unpack_columns(numbers, readable(values), readable(scales), width, out, work=out.size):
            return out.reshape(*ids.shape, width)
    return plain.KERNELS["int8_embedding"](ids, values, scales, width=width)


KERNELS: dict[str, Kernel] = {"int8_embedding": int8_embedding}
