"""Emptying caches with PyTorch: those of its threads' cores, and the L2 of a CUDA device."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["device_flush", "threaded_flush"]

UNKNOWN_L2_BYTES = 128 << 20
"""Where PyTorch does not say how large the L2 cache is; none is larger so far."""
TIMES_THE_CACHE = 2


def threaded_flush(nbytes: int) -> Callable[[], None]:
    """Give a function that reads so many bytes with all threads that PyTorch computes with."""
    words = torch.ones(nbytes // 4)

    def flush() -> None:
        words.sum()

    return flush


def device_flush(name: str) -> Callable[[], None]:
    """Give a function that overwrites the L2 cache of a CUDA device, on the current stream.

    It returns when that is done. Behind it a call could be started while the device is still busy
    with emptying, which would take a part of what starting it costs off its time.
    """
    device = torch.device(name)
    held = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    nbytes = TIMES_THE_CACHE * (held or UNKNOWN_L2_BYTES)
    buffer = torch.empty(nbytes // 4, dtype=torch.int32, device=device)

    def flush() -> None:
        buffer.zero_()
        torch.cuda.synchronize(device)

    return flush
