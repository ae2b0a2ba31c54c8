"""MemoryProfiler and MemoryTracker: what a function or a block allocates."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from tinytorch.errors import SettingError
from tinytorch.measure.memory import ProcessMemory, TracedMemory, process_memory, traced_memory
from tinytorch.measure.timing import used_devices
from tinytorch.profiling.timer import bound_call, check_count
from tinytorch.showing import profiling_reports

# ---------------------------------------------------------------- the memory of one block, by
# every meter that sees a part of it

MB = 2**20


@dataclass
class BlockMemory:
    """What a block allocated: through Python and NumPy, as PyTorch tensors, on CUDA devices.

    The meters may be read inside the block; afterwards they stay as they were at its end. Peaks
    are sums over the meters: exact where one of them dominates, else at most too high, because
    Python's peak and PyTorch's need not come at the same moment.
    """

    traced: TracedMemory
    tensors: Any  # a HostTensors, or None without torch
    device: Any  # a DeviceMemory, or None without CUDA
    process_before: ProcessMemory
    process_after: ProcessMemory | None = None

    @property
    def can_end(self) -> bool:
        """Whether the block may end now, before what was entered inside of it."""
        return self.tensors is None or bool(self.tensors.is_innermost)

    @property
    def baseline_bytes(self) -> int:
        """What was traced when the block began."""
        return self.traced.baseline_bytes

    @property
    def allocated_bytes(self) -> int:
        """What the block allocated and has not freed; negative when it freed more."""
        return self.traced.allocated_bytes + (self.tensors.current_bytes if self.tensors else 0)

    @property
    def peak_above_baseline_bytes(self) -> int:
        """The most that the block held at once, beyond what was there before."""
        above = self.traced.peak_above_baseline_bytes
        return above + (self.tensors.peak_bytes if self.tensors else 0)

    def stats(self) -> dict[str, Any]:
        """Return the numbers in MB (2**20 bytes).

        `baseline_mb`, `final_mb` and `peak_mb` are what Python, NumPy and PyTorch held on the host
        for what was allocated since tracing began, `allocated_mb` is final minus baseline. The
        `process_` keys are the operating system's view of the whole process, the `device_` keys
        CUDA's beyond what was there before, None without CUDA.
        """
        after = self.process_after or process_memory()
        baseline, tensors, device = self.baseline_bytes, self.tensors, self.device
        return {
            "baseline_mb": baseline / MB,
            "final_mb": (baseline + self.allocated_bytes) / MB,
            "peak_mb": (baseline + self.peak_above_baseline_bytes) / MB,
            "allocated_mb": self.allocated_bytes / MB,
            "tensor_peak_mb": tensors.peak_bytes / MB if tensors else None,
            "process_before_mb": self.process_before.rss_bytes / MB,
            "process_after_mb": after.rss_bytes / MB,
            "process_peak_mb": None if after.peak_rss_bytes is None else after.peak_rss_bytes / MB,
            "device_peak_mb": device.peak_bytes / MB if device else None,
            "device_allocated_mb": device.current_bytes / MB if device else None,
        }


@contextmanager
def metering() -> Iterator[BlockMemory]:
    """Measure the memory of a block with all meters that apply.

    Blocks may be nested, and a tracer that was running before keeps running. Code runs slower
    meanwhile, so never time it here.
    """
    with ExitStack() as meters:
        device = tensors = None
        if "torch" in sys.modules:
            from tinytorch.profiling.torch import (
                metering_device,
                metering_tensors,
            )

            device = meters.enter_context(metering_device()) if used_devices() else None
            tensors = meters.enter_context(metering_tensors())
        before = process_memory()
        memory = BlockMemory(meters.enter_context(traced_memory()), tensors, device, before)
        yield memory
    memory.process_after = process_memory()


# ---------------------------------------------------------------- does memory stay behind when a
# function is called again and again?

FEWEST_CALLS = 8
"""The second half is judged, in two parts of at least two calls each."""
FASTER = 1.5
"""Growth that grows by this factor over the second half is not linear."""


@dataclass(frozen=True)
class LeakReport:
    """What was still allocated after each call, in bytes beyond the state before the first one.

    `noise_bytes` is the largest change that a function which does nothing showed in the same loop.
    Judged is the second half of the calls; the first half may fill caches.
    """

    readings: tuple[int, ...]
    noise_bytes: int

    @property
    def growth(self) -> tuple[int, ...]:
        """Bytes that each call left behind; negative where it freed something older."""
        return tuple(after - before for before, after in pairwise((0, *self.readings)))

    @property
    def _later(self) -> tuple[int, ...]:
        return self.growth[len(self.readings) // 2 :]

    @property
    def growth_per_call_bytes(self) -> float:
        """Average growth in the second half of the calls."""
        return sum(self._later) / len(self._later)

    @property
    def pattern(self) -> str:
        """How memory grows: constant, settles, linear, accelerating or in steps."""
        later = self._later
        growing = [step > self.noise_bytes for step in later]
        if not any(growing):
            earlier = self.growth[: len(self.readings) // 2]
            return "settles" if any(step > self.noise_bytes for step in earlier) else "constant"
        if not all(growing):
            return "in steps"
        third = max(1, len(later) // 3)
        is_faster = sum(later[-third:]) > FASTER * sum(later[:third])
        return "accelerating" if is_faster else "linear"

    @property
    def is_leaking(self) -> bool:
        """Whether both parts of the second half grew: a single step may be a cache or a table."""
        later = self._later
        middle = len(later) // 2
        return all(sum(part) > self.noise_bytes for part in (later[:middle], later[middle:]))

    def __str__(self) -> str:
        calls, kept = len(self.readings), self.growth_per_call_bytes
        if self.is_leaking:
            return (
                f"memory grows ({self.pattern}) by {kept:,.0f} bytes per call "
                f"in the second half of {calls} calls"
            )
        return f"no leak in {calls} calls ({self.pattern})"


def detect_leak(function: Callable[[], object], *, calls: int = 20) -> LeakReport:
    """Call `function` repeatedly, and measure after each call what is still allocated.

    Its results are dropped and garbage is collected before each reading. Where torch is imported it
    is called twice as often: watching tensors makes Python objects, so Python's memory
    and that of tensors are read in turn, not together.
    """
    check_count("calls", calls, at_least=FEWEST_CALLS)
    with _older_objects_set_aside():
        idle = _python_bytes(_nothing, calls)
        noise = max(abs(after - before) for before, after in pairwise((0, *idle)))
        readings = _python_bytes(function, calls)
        if "torch" in sys.modules:
            tensors = _tensor_bytes(function, calls)
            readings = [python + torch for python, torch in zip(readings, tensors, strict=True)]
    return LeakReport(tuple(readings), noise)


@contextmanager
def _older_objects_set_aside() -> Iterator[None]:
    """Freeze existing objects, so that a collection takes time for new objects only.

    Objects that were frozen before stay frozen.
    """
    gc.collect()
    is_ours = gc.get_freeze_count() == 0
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()


def _python_bytes(function: Callable[[], object], calls: int) -> Sequence[int]:
    with traced_memory() as memory:
        return _readings(function, calls, lambda: memory.current_bytes)


def _tensor_bytes(function: Callable[[], object], calls: int) -> Sequence[int]:
    """Return the bytes of tensors on the host and on the devices in use, after each call."""
    from tinytorch.profiling.torch import metering_device, metering_tensors

    with metering_device() as device, metering_tensors() as host:
        return _readings(function, calls, lambda: host.current_bytes + device.current_bytes)


def _readings(
    function: Callable[[], object], calls: int, live_bytes: Callable[[], int]
) -> Sequence[int]:
    readings = array("q", bytes(8 * calls))  # made before, so that keeping them allocates nothing
    start = live_bytes()
    for call in range(calls):
        function()
        gc.collect()
        readings[call] = live_bytes() - start
    return readings


def _nothing() -> None:
    pass


# ---------------------------------------------------------------- MemoryProfiler and
# MemoryTracker: what a function or a block allocates


class MemoryTracker:
    """Measure the memory of a block, on the host.

    >>> with MemoryTracker() as tracker:
    ...     kept = bytearray(5 * 2**20)
    >>> round(tracker.peak_usage), round(tracker.current_usage)
    (5, 5)
    """

    def __init__(self) -> None:
        self._memory: BlockMemory | None = None
        self._open: list[tuple[ExitStack, BlockMemory]] = []

    @property
    def memory(self) -> BlockMemory:
        """The meters of the innermost open block, or of the one that ended last."""
        if self._open:
            return self._open[-1][1]
        if self._memory is None:
            raise SettingError("no block was measured yet; use `with` around what allocates")
        return self._memory

    @property
    def peak_usage(self) -> float:
        """The most MB that the block held at once, beyond what was there before it."""
        return self.memory.peak_above_baseline_bytes / MB

    @property
    def current_usage(self) -> float:
        """MB that the block allocated and has not freed."""
        return self.memory.allocated_bytes / MB

    def __enter__(self) -> Self:
        meters = ExitStack()
        memory = meters.enter_context(metering())
        self._open.append((meters, memory))
        return self

    def __exit__(self, *exception: object) -> None:
        meters, self._memory = self._open.pop()
        meters.close()


class MemoryProfiler(MemoryTracker):
    """Measure what a function allocates; as a context manager, what a block does.

    Safe to nest and to reuse: a tracer that was running before keeps running.
    """

    @property
    def peak_memory(self) -> float:
        """The most MB held at once by the last function or block, beyond what was there before."""
        return self.peak_usage

    def profile(
        self,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Call `func` once and give its memory in MB, with its `result`.

        The keys are those of :meth:`BlockMemory.stats`. The result is alive when the final state
        is read, so a function that keeps nothing else allocates its result.
        """
        call = bound_call(func, args, kwargs)
        with metering() as memory:
            result = call()
        self._memory = memory
        return {**memory.stats(), "result": result}

    def print_report(self, stats: Mapping[str, Any], name: str = "Memory") -> None:
        """Print what :meth:`profile` gave."""
        reports = profiling_reports()
        reports.show(reports.render_memory(stats, name))

    def detect_leak(
        self,
        func: Callable[..., Any],
        calls: int = 20,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> LeakReport:
        """Call `func` again and again and say whether memory stays behind, and how it grows."""
        return detect_leak(bound_call(func, args, kwargs), calls=calls)


def profile_memory(func: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Call `func(*args, **kwargs)` once and give its memory, as :meth:`MemoryProfiler.profile`."""
    return MemoryProfiler().profile(func, args, kwargs)
