"""Emptying the caches of a processor or a device, so that a call finds nothing of its own there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np

from tinytorch.errors import BackendError
from tinytorch.measure.hardware import cache_levels

__all__ = ["CACHES", "COLD", "WARM", "cache_flush", "processor_flush"]

WARM, COLD = "warm", "cold"
CACHES = (WARM, COLD)
TIMES_THE_CACHE = 2
"""So many times what the caches hold is read: no line is then likely to be left."""

Flush = Callable[[], None]


def cache_flush(device: str) -> Flush:
    """Give a function that replaces what lies in the caches of `cpu` or of a device.

    On a CUDA device it is its L2 cache, overwritten on the current stream. On a processor a buffer
    larger than all its caches is read: by PyTorch's threads, once somebody has imported it, so that
    the caches of their cores are emptied too, else by this thread alone.
    """
    if "torch" not in sys.modules:
        return processor_flush()
    from tinytorch.measure.cold_cache_torch import device_flush, threaded_flush

    return threaded_flush(flushed_bytes()) if device == "cpu" else device_flush(device)


def processor_flush() -> Flush:
    """Give a function that reads more than the caches hold, in this thread."""
    # Written once, so that it is memory of its own and not the one page of zeros.
    words = np.ones(flushed_bytes() // 8, np.int64)

    def flush() -> None:
        words.sum()

    return flush


def flushed_bytes() -> int:
    """Give how much to read on this processor; raise where nobody says what its caches hold."""
    affinity = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    levels = cache_levels(affinity)
    if not levels:
        raise BackendError(
            "this system does not say how large its caches are, so they cannot be emptied for "
            'sure; compare with cache="warm"'
        )
    return TIMES_THE_CACHE * sum(level.total_bytes for level in levels.values())
