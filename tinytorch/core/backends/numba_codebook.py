"""Weights by codes with the compiled backend."""

from __future__ import annotations

import numpy as np
from numba import prange

from tinytorch.core.backends import numpy_codebook as plain
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.numba_arrays import FLOAT32, readable
from tinytorch.core.backends.numba_compile import compiled
from tinytorch.core.backends.reference_codebook import PACKED_ENTRIES, code_bytes

__all__ = ["KERNELS"]

BLOCK = 4096
"""Bytes of codes that one thread takes at a time."""


@compiled
def look_up(codes, table, out):
    """Give the entry of a table for each byte; two floats move as one number of 8 bytes."""
    for block in prange((len(codes) + BLOCK - 1) // BLOCK):
        first = np.int64(block) * BLOCK
        for place in range(first, min(first + BLOCK, len(codes))):
            out[place] = table[codes[place]]


def codebook_lookup(codes: Array, codebook: Array, *, size: int) -> Array:
    if (
        codebook.dtype != FLOAT32
        or len(codebook) > PACKED_ENTRIES
        or codes.dtype != np.uint8
        or codes.shape != (code_bytes(size, len(codebook)),)
    ):
        return plain.KERNELS["codebook_lookup"](codes, codebook, size=size)
    table = plain.pairs_of(codebook).view(np.int64).reshape(-1)  # both entries, in eight bytes
    out = np.empty(len(codes), np.int64)
    look_up(readable(codes), table, out, work=size)
    return out.view(FLOAT32)[:size]


KERNELS: dict[str, Kernel] = {"codebook_lookup": codebook_lookup}
