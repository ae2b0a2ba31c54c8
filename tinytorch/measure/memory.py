"""Memory meters: what Python and NumPy allocate, and what the whole process holds."""

from __future__ import annotations

import importlib
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinytorch.measure.timing import running_cuda, used_devices

__all__ = [
    "DeviceMemory",
    "ProcessMemory",
    "TracedMemory",
    "device_memory",
    "free_unused",
    "is_out_of_memory",
    "peak_during",
    "private_pool_bytes",
    "process_memory",
    "shortage_text",
    "traced_memory",
]


STATUS_FILE = Path("/proc/self/status")

_lock = threading.RLock()
_open: list[TracedMemory] = []
_started_here = False


class TracedMemory:
    """What was allocated through Python and NumPy while a block ran, in bytes.

    `baseline_bytes` is what was traced when the block began. `current_bytes` and `peak_bytes` can
    be read inside the block; after it they stay as they were at its end. Frameworks with their own
    allocator (PyTorch) are not seen.
    """

    def __init__(self, baseline_bytes: int) -> None:
        self.baseline_bytes = baseline_bytes
        self._peak = baseline_bytes
        self._last: int | None = None

    @property
    def current_bytes(self) -> int:
        return tracemalloc.get_traced_memory()[0] if self._last is None else self._last

    @property
    def peak_bytes(self) -> int:
        if self._last is not None:
            return self._peak
        return max(self._peak, tracemalloc.get_traced_memory()[1])

    @property
    def allocated_bytes(self) -> int:
        """Give what the block has allocated and not freed; negative when it freed more."""
        return self.current_bytes - self.baseline_bytes

    @property
    def peak_above_baseline_bytes(self) -> int:
        return self.peak_bytes - self.baseline_bytes


@contextmanager
def traced_memory() -> Iterator[TracedMemory]:
    """Measure what is allocated through Python and NumPy inside the block.

    Blocks may be nested and may overlap in threads; each reports its own peak over everything that
    the process allocated meanwhile. A tracer that somebody else started keeps running, and its
    peak is as it would be without us. What cannot be kept: somebody who calls `reset_peak` or
    `stop` of tracemalloc inside the block takes from us what was seen before, and somebody who
    starts tracing only inside the outermost block finds it stopped afterwards. What was allocated
    before tracing began is not seen when it is freed. Python allocations become several times
    slower while the block runs, so never time inside it.
    """
    global _started_here
    with _lock:
        if not tracemalloc.is_tracing():
            tracemalloc.start()
            _started_here = True
        current, peak_before = _share_peak()
        tracemalloc.reset_peak()
        meter = TracedMemory(current)
        _open.append(meter)
    try:
        yield meter
    finally:
        with _lock:
            meter._last, _ = _share_peak()
            _open.remove(meter)
            if _started_here and not _open:
                tracemalloc.stop()
                _started_here = False
            elif not _started_here:
                _raise_peak_to(peak_before)


def _share_peak() -> tuple[int, int]:
    """Tell the peak since the last reset to all open blocks, and give the tracer's numbers.

    The tracer has one peak for everybody, and entering a block resets it; the blocks around it
    must not lose what they have seen.
    """
    current, peak = tracemalloc.get_traced_memory()
    for meter in _open:
        meter._peak = max(meter._peak, peak)
    return current, peak


def _raise_peak_to(peak: int) -> None:
    """Give the tracer of somebody else its peak back, which entering our block has reset.

    A peak cannot be set, but a block that is allocated and freed untouched leaves it behind, and
    costs address space for a moment, not memory.
    """
    missing = peak - tracemalloc.get_traced_memory()[0]
    if missing > 0:
        with suppress(MemoryError):
            np.empty(missing, dtype=np.uint8)


@dataclass(frozen=True)
class ProcessMemory:
    """The memory of the whole process as the operating system counts it, in bytes.

    The peak is since the start of the process; None where it cannot be read. Neither is a measure
    of what a model needs: freed memory stays with the process, and libraries count too.
    """

    rss_bytes: int
    peak_rss_bytes: int | None


def process_memory() -> ProcessMemory:
    """Give the resident memory of this process and its high-water mark."""
    import psutil

    counters = psutil.Process().memory_info()
    peak = _high_water_mark(getattr(counters, "peak_wset", None))
    # The two are not read at the same moment.
    return ProcessMemory(counters.rss, peak if peak is None else max(peak, counters.rss))


def _high_water_mark(of_windows: int | None) -> int | None:
    if of_windows is not None:
        return of_windows
    if sys.platform.startswith("linux"):
        # Not getrusage: there a process starts with the mark of the one that launched it.
        try:
            lines = STATUS_FILE.read_text("ascii", errors="replace").splitlines()
        except OSError:
            return None
        marks = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(marks[0]) * 1024 if marks else None
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


# ---------------------------------------------------------------- the memory of CUDA devices: what
# is free, what a call needs, and when there is too little

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
