"""Weights by codes with NumPy: a byte of two codes is looked up at once in a table of pairs."""

from __future__ import annotations

import numpy as np

from tinytorch.core.backends import reference_codebook as reference
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.reference_codebook import PACKED_ENTRIES, code_bytes

__all__ = ["KERNELS", "pairs_of"]

BYTES = np.arange(256, dtype=np.uint8)
BOTH_CODES = np.stack([BYTES & 15, BYTES >> 4], axis=1)  # (256, 2)


def pairs_of(codebook: Array) -> Array:
    """Give the two entries that each byte means (256, 2); NaN where there is no such entry."""
    padded = np.full(PACKED_ENTRIES, np.nan, codebook.dtype)
    padded[: len(codebook)] = codebook
    return padded[BOTH_CODES]


def codebook_lookup(codes: Array, codebook: Array, *, size: int) -> Array:
    if len(codebook) > PACKED_ENTRIES or codes.shape != (code_bytes(size, len(codebook)),):
        return reference.codebook_lookup(codes, codebook, size=size)
    return pairs_of(codebook).take(codes, axis=0).reshape(-1)[:size]


KERNELS: dict[str, Kernel] = {"codebook_lookup": codebook_lookup}
