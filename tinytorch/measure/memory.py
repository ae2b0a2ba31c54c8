"""Memory meters: what Python and NumPy allocate, and what the whole process holds."""

from __future__ import annotations

import importlib
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["ProcessMemory", "TracedMemory", "process_memory", "traced_memory"]

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
