"""Looking up rows of an INT8 table with NumPy, without unpacking all of it."""

from __future__ import annotations

import numpy as np

from tinytorch.core.backends import reference_int8_embedding as reference
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.int8_packing import PANEL_COLUMNS, STEP, packed_length

__all__ = ["KERNELS"]


def int8_embedding(ids: Array, values: Array, scales: Array, *, width: int) -> Array:
    tokens = scales.size
    if not (
        ids.dtype.kind in "iu"
        and ids.size > 0
        and scales.shape == (tokens,)
        and values.dtype == np.int8
        and width > 0
        and values.shape == (packed_length(width, tokens),)
        and ids.min() >= 0
        and ids.max() < tokens
    ):
        return reference.int8_embedding(ids, values, scales, width=width)
    lines = -(-width // STEP)
    number = ids.reshape(-1, 1).astype(np.int64, copy=False)
    first = number // PANEL_COLUMNS * PANEL_COLUMNS  # of the token's panel
    columns = np.minimum(PANEL_COLUMNS, tokens - first)
    # what lies in a line for one token is one word of four bytes
    words = np.ascontiguousarray(values)[: lines * tokens * STEP].view(np.int32)
    at = first * lines + (number - first) + np.arange(lines) * columns  # (ids, lines)
    rows = words[at].view(np.int8)[:, :width].astype(np.float32)
    return (rows * scales[number]).reshape(*ids.shape, width)


KERNELS: dict[str, Kernel] = {"int8_embedding": int8_embedding}
