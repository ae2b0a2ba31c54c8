"""The memory of CUDA devices: what is free, what a call needs, and when there is too little."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tinytorch.measure.device_clock import running_cuda, used_devices

__all__ = [
    "DeviceMemory",
    "device_memory",
    "free_unused",
    "is_out_of_memory",
    "peak_during",
    "private_pool_bytes",
    "shortage_text",
]

OUT_OF_MEMORY = re.compile(r"out of memory|ALLOC_FAILED", re.IGNORECASE)
ASKED_FOR = re.compile(r"[Tt]ried to allocate ([\d.]+ [KMGT]?i?B)")
GIB = 1 << 30


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a device: free for everybody, all there are, and held by tensors of this program."""

    free_bytes: int
    total_bytes: int
    held_bytes: int


def device_memory(device: str) -> DeviceMemory | None:
    """Ask the driver and PyTorch about the memory of a device; None where CUDA is not in use."""
    cuda = running_cuda()
    if cuda is None or not device.startswith("cuda"):
        return None
    free, total = cuda.mem_get_info(device)
    # What PyTorch keeps for later can be given out again.
    held = cuda.memory_allocated(device)
    return DeviceMemory(free + cuda.memory_reserved(device) - held, total, held)


def peak_during(device: str, function: Callable[[], object]) -> int | None:
    """Call a function and give the bytes that it needed at most on top of what was there before.

    Scratch memory of operators is part of it. What a captured graph works in was taken when it was
    captured, and is not: :func:`private_pool_bytes`. None where CUDA is not in use.
    """
    cuda = running_cuda()
    if cuda is None or not device.startswith("cuda"):
        return None
    cuda.synchronize(device)
    cuda.reset_peak_memory_stats(device)
    before = cuda.memory_allocated(device)
    kept = function()  # what it returns is alive as long as a caller would hold it
    cuda.synchronize(device)
    peak = int(cuda.max_memory_allocated(device)) - int(before)
    del kept
    return peak


def private_pool_bytes(device: str) -> int | None:
    """Give the bytes that captured graphs keep for themselves; None where nobody tells."""
    cuda = running_cuda()
    if cuda is None or not device.startswith("cuda"):
        return None
    index = int(device.partition(":")[2] or cuda.current_device())
    segments = [each for each in cuda.memory_snapshot() if each["device"] == index]
    if any("segment_pool_id" not in each for each in segments):
        return None
    return sum(each["total_size"] for each in segments if tuple(each["segment_pool_id"]) != (0, 0))


def free_unused() -> None:
    """Give memory that PyTorch keeps for later back to the devices."""
    cuda = running_cuda()
    if cuda is not None:
        cuda.empty_cache()


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether an exception, or what caused it, says that a device has too little memory."""
    while error is not None:
        kind = type(error)
        is_named = kind.__name__ == "OutOfMemoryError"
        is_of_torch = kind.__module__.partition(".")[0] == "torch" or isinstance(
            error, RuntimeError
        )
        if is_named or (is_of_torch and OUT_OF_MEMORY.search(str(error)) is not None):
            return True
        error = error.__cause__
    return False


def shortage_text(error: BaseException | None, device: str) -> str:
    """Say how much memory was asked for, and how much there is."""
    asked = ""
    while error is not None and not asked:
        found = ASKED_FOR.search(str(error))
        asked = found[1] if found else ""
        error = error.__cause__
    parts = [f"it asked for {asked} more"] if asked else []
    memory = device_memory(device) if used_devices() else None
    if memory is not None:
        parts.append(
            f"{memory.free_bytes / GIB:.3g} of {memory.total_bytes / GIB:.3g} GiB are free and "
            f"{memory.held_bytes / GIB:.3g} GiB are held by this program"
        )
    return "; ".join(parts) or "the device does not say how much is missing"
