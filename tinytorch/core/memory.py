"""Telling the C library what to do with memory that arrays have freed."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# The numbers that glibc's mallopt(3) gives to these settings.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST_KEPT_BLOCK = 32 << 20  # the most that glibc accepts
KEPT_IN_ALL = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for the next arrays, instead of giving it back at once.

    A training step frees most of what it allocates. By default glibc hands that back to the
    operating system, and the next step pays for every page again, which can take as long as the
    computation. This changes the whole process for good and makes it look larger from outside, so
    it is for programs, not for libraries, to call. Returns whether it took effect (glibc only).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    blocks = mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)
    return bool(blocks and mallopt(M_TRIM_THRESHOLD, KEPT_IN_ALL))
