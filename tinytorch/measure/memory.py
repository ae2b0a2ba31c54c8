"""Memory meters: what Python and NumPy allocate, and what the whole process holds."""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.codec import Coded
from tinytorch.measure.environment import group_folders
from tinytorch.measure.timing import running_cuda, used_devices

STATUS_FILE = Path("/proc/self/status")
RESET_FILE, RESET_PEAK = Path("/proc/self/clear_refs"), "5"

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
        """The bytes that the block allocated and did not free; negative if it freed more."""
        return self.current_bytes - self.baseline_bytes

    @property
    def peak_above_baseline_bytes(self) -> int:
        return self.peak_bytes - self.baseline_bytes


@contextmanager
def traced_memory() -> Iterator[TracedMemory]:
    """Measure what is allocated through Python and NumPy inside the block.

    Blocks may be nested and may overlap in threads; each reports its own peak over everything that
    the process allocated meanwhile. A tracer that was already running keeps running, and its
    peak is unchanged. Calling `reset_peak` or `stop` of tracemalloc inside the block loses what was
    seen before, and tracing that starts only inside the outermost block is stopped afterwards. What
    was allocated before tracing began is not seen when it is freed. Python allocations become
    several times slower while the block runs, so never time inside it.
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
    """Share the peak since the last reset with all open blocks, and return the tracer's numbers.

    The tracer has one peak, and entering a block resets it; the blocks around it
    must not lose what they have seen.
    """
    current, peak = tracemalloc.get_traced_memory()
    for meter in _open:
        meter._peak = max(meter._peak, peak)
    return current, peak


def _raise_peak_to(peak: int) -> None:
    """Restore the peak of a tracer that was already running, which entering the block has reset.

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
    """Return the resident memory of this process and its high-water mark."""
    import psutil

    counters = psutil.Process().memory_info()
    peak = _high_water_mark(getattr(counters, "peak_wset", None))
    # The two are not read at the same moment.
    return ProcessMemory(counters.rss, peak if peak is None else max(peak, counters.rss))


def reset_peak_rss() -> bool:
    """Let the high-water mark begin anew, and return whether the system can do that (Linux can)."""
    try:
        RESET_FILE.write_text(RESET_PEAK, "ascii")
    except OSError:
        return False
    return True


def release_freed() -> None:
    """Return memory that was freed to the system, where its allocator keeps it (glibc does)."""
    with suppress(OSError, AttributeError, ValueError):
        trim = ctypes.CDLL(None).malloc_trim
        trim(0)


@dataclass(frozen=True)
class ProcessUse(Coded):
    """Resident bytes of a fresh process that loads a model and calls it.

    `before_bytes` is with everything imported and no model, `loaded_bytes` once the model is there,
    and the peaks are the most while it was loaded and while it was called for the first time; None
    where the system does not tell one from the other. Libraries and freed memory count.
    """

    before_bytes: int
    loaded_bytes: int
    loading_peak_bytes: int | None
    call_peak_bytes: int | None
    loading_s: float

    @property
    def grown_bytes(self) -> int:
        """By how much the process has grown once the model is loaded."""
        return self.loaded_bytes - self.before_bytes


def measure_process_use(load: Callable[[], Any], call: Callable[[Any], object]) -> ProcessUse:
    """Load something in this process, and call it. A fresh process tells most."""
    gc.collect()
    has_peaks = reset_peak_rss()
    before, started = process_memory(), perf_counter()
    loaded = load()
    seconds = perf_counter() - started
    at_peak = process_memory().peak_rss_bytes
    gc.collect()
    after = process_memory()
    has_peaks &= reset_peak_rss()
    call(loaded)
    in_call = process_memory().peak_rss_bytes
    return ProcessUse(
        before.rss_bytes,
        after.rss_bytes,
        at_peak if has_peaks else None,
        in_call if has_peaks else None,
        seconds,
    )


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

ASKED_FOR = re.compile(r"[Tt]ried to allocate ([\d.]+ [KMGT]?i?B)")
GIB = 1 << 30


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a device: free for everybody, all there are, and held by tensors of this program."""

    free_bytes: int
    total_bytes: int
    held_bytes: int


def device_memory(device: str) -> DeviceMemory | None:
    """Query the driver and PyTorch about the memory of a device; None where CUDA is not in use."""
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
    """Return the bytes of private pools of captured graphs; None where it is unknown."""
    cuda = running_cuda()
    if cuda is None or not device.startswith("cuda"):
        return None
    index = int(device.partition(":")[2] or cuda.current_device())
    segments = [each for each in cuda.memory_snapshot() if each["device"] == index]
    if any("segment_pool_id" not in each for each in segments):
        return None
    return sum(each["total_size"] for each in segments if tuple(each["segment_pool_id"]) != (0, 0))


def free_unused() -> None:
    """Release memory that PyTorch caches back to the devices."""
    cuda = running_cuda()
    if cuda is not None:
        cuda.empty_cache()


def shortage_text(error: BaseException | None, device: str) -> str:
    """Return how much memory was requested, and how much there is."""
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


# ---------------------------------------------------------------- how much memory is left, and a
# fence around it

OOM_SCORE = Path("/proc/self/oom_score_adj")
FIRST_TO_GO = "1000"
PROBE_BYTES = 64 << 20
"""Asked for on top of what is allowed, to see whether the fence holds."""


def available_bytes(device: str = "cpu") -> int:
    """Return what this process may take on a device, on a processor without swapping.

    A limit of the control groups around it counts, too: there, what exceeds it is killed.
    """
    on_device = device_memory(device)
    if on_device is not None:
        return on_device.free_bytes
    import psutil

    return min([int(psutil.virtual_memory().available), *_left_in_groups()])


def fence_memory(allowed_bytes: int, device: str = "cpu") -> bool:
    """Make allocations beyond `allowed_bytes` more fail, and return whether that is enforced.

    On a processor the fence is around the address space, since no system enforces one around memory
    that is in use. It stays for the rest of the process. False where the system has none, as on
    Windows and macOS; then nothing is limited.
    """
    on_device = device_memory(device)
    if on_device is not None:
        share = (on_device.held_bytes + allowed_bytes) / on_device.total_bytes
        running_cuda().set_per_process_memory_fraction(min(1.0, share), device)
        return True
    return _fence_address_space(allowed_bytes)


def _fence_address_space(allowed_bytes: int) -> bool:
    import psutil

    try:
        resource = importlib.import_module("resource")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = psutil.Process().memory_info().vms + allowed_bytes
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (ImportError, AttributeError, ValueError, OSError):
        return False
    try:
        mmap.mmap(-1, allowed_bytes + PROBE_BYTES).close()
    except (OSError, OverflowError, ValueError):
        return True
    return False


def be_first_to_go() -> None:
    """Ask the system to kill this process before others if memory runs out."""
    with suppress(OSError):
        OOM_SCORE.write_text(FIRST_TO_GO, "ascii")


def _left_in_groups() -> Iterator[int]:
    """Yield what is left below the memory limits of our control groups, in both layouts."""
    for folder in group_folders("memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most, now = _number(folder / limit), _number(folder / used)
            if most is not None and now is not None:
                yield max(0, most - now + _reclaimable(folder))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None  # without a limit it reads "max"


def _reclaimable(folder: Path) -> int:
    """Return the bytes of files in memory, which go when the room is needed."""
    try:
        lines = (folder / "memory.stat").read_text("ascii").splitlines()
    except (OSError, ValueError):
        return 0
    facts = dict(line.split(maxsplit=1) for line in lines if " " in line)
    found = facts.get("inactive_file", facts.get("total_inactive_file", "0"))
    return int(found) if found.isdecimal() else 0
