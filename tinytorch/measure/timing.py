"""Clocks and timing: warm-up, calibrated loops, no garbage collection, raw values kept."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from time import monotonic, perf_counter
from types import FrameType, TracebackType
from typing import Any, Protocol

import numpy as np

from tinytorch.errors import BackendError, MeasurementError, SettingError, check_number
from tinytorch.measure.environment import cache_levels, observe
from tinytorch.measure.samples import Samples

# ---------------------------------------------------------------- clocks: what tells how long some
# calls of a function took

Function = Callable[[], object]


class Clock(Protocol):
    """Anything that can time a function."""

    @property
    def name(self) -> str:
        """The name shown in reports."""

    @property
    def resolution_s(self) -> float:
        """The smallest difference that the clock can show."""

    @property
    def is_disturbed_by_host(self) -> bool:
        """Whether other load on the processor is part of the time; not so on a device."""

    def time(self, function: Function, loops: int) -> float:
        """Call `function` `loops` times and give the seconds for all calls together."""


@dataclass(frozen=True)
class StandardClock:
    """A clock of the operating system, read in whole nanoseconds."""

    name: str
    read_ns: Callable[[], int]
    resolution_s: float
    is_disturbed_by_host: bool = True

    def time(self, function: Function, loops: int) -> float:
        """Call `function` `loops` times and give the seconds for all calls together.

        What Python spends on calling it, about 20 nanoseconds each, is part of the time.
        """
        read_ns = self.read_ns
        if loops == 1:
            start = read_ns()
            function()
            return (read_ns() - start) * 1e-9
        counter = repeat(None, loops)
        start = read_ns()
        for _ in counter:
            function()
        return (read_ns() - start) * 1e-9


WALL = StandardClock("wall", time.perf_counter_ns, time.get_clock_info("perf_counter").resolution)
CPU_TIME = StandardClock(
    "cpu", time.process_time_ns, time.get_clock_info("process_time").resolution
)
"""Seconds that this process spent on all its cores; waiting does not count."""


@dataclass(frozen=True)
class ColdClock:
    """A clock that times calls one by one, each after `flush` has emptied the caches.

    What emptying them takes is not part of the time; what reading the clock takes is, every time.
    """

    clock: Clock
    flush: Callable[[], None]

    @property
    def name(self) -> str:
        return self.clock.name

    @property
    def resolution_s(self) -> float:
        return self.clock.resolution_s

    @property
    def is_disturbed_by_host(self) -> bool:
        return self.clock.is_disturbed_by_host

    def time(self, function: Function, loops: int) -> float:
        """Call `function` `loops` times and give the seconds for all calls together."""
        seconds = 0.0
        for _ in range(loops):
            self.flush()
            seconds += self.clock.time(function, 1)
        return seconds


READINGS = 100


def reading_overhead(clock: Clock = WALL) -> float:
    """Measure the seconds that a clock shows for a function that does nothing.

    This is what every reading adds to what it measures. The median, because a single reading may
    be disturbed, but never less than what the clock can tell apart.
    """
    if isinstance(clock, ColdClock):
        clock = clock.clock  # caches do not change how long reading it takes
    clock.time(_nothing, 1)
    seen = sorted(clock.time(_nothing, 1) for _ in range(READINGS))
    return max(seen[READINGS // 2], clock.resolution_s)


def _nothing() -> None:
    pass


# ---------------------------------------------------------------- a clock that waits for the GPU,
# in programs that use one

UNSEEN_SHARE, UNSEEN_S = 0.1, 1e-4
"""Work that continues this long, as a share of a call and at least, after its stream is done."""


@dataclass(frozen=True)
class DeviceClock:
    """The wall clock, read only when every CUDA device that the program uses is idle.

    Calls return before a device has done its work. Each one is waited for, so that the time is the
    latency that a caller sees; with `is_sustained` only the last one is, which is throughput.
    Without a device in use there is nothing to wait for, and both are the same.
    """

    is_sustained: bool = False

    name = "wall"
    resolution_s = WALL.resolution_s
    is_disturbed_by_host = True  # it is the program that gives a device its work

    def time(self, function: Function, loops: int) -> float:
        """Return the seconds of `loops` calls together, until the devices are done too."""
        devices = used_devices()  # asking takes longer than some kernels, so not while timing
        wait_for_devices(devices)
        if not devices:
            # The first call may be what starts CUDA.
            return WALL.time(lambda: _in_a_row(function, loops), 1)
        if self.is_sustained:
            return WALL.time(lambda: _in_a_row(function, loops, devices), 1)

        def call_and_wait() -> None:
            function()
            wait_for_devices(devices)

        return WALL.time(call_and_wait, loops)


def _in_a_row(function: Function, loops: int, devices: tuple[int, ...] = ()) -> None:
    for _ in range(loops):
        function()
    wait_for_devices(devices or used_devices())


def times_single_calls(clock: Clock) -> bool:
    """Return whether a clock waits for a device after every call: latency needs no inner loops."""
    return isinstance(clock, DeviceClock) and not clock.is_sustained and bool(used_devices())


def fitting_clock() -> Clock:
    """Return the wall clock, or one that synchronises once torch, and maybe a GPU, is in use."""
    return DeviceClock() if "torch" in sys.modules else WALL


def used_devices() -> tuple[int, ...]:
    """Return the CUDA devices on which this program holds memory; () where CUDA is not in use."""
    cuda = running_cuda()
    if cuda is None:
        return ()
    return tuple(each for each in range(cuda.device_count()) if cuda.memory_reserved(each))


def wait_for_devices(devices: tuple[int, ...]) -> None:
    """Return when these devices have done what they were given."""
    cuda = running_cuda() if devices else None
    if cuda is not None:
        for device in devices:
            cuda.synchronize(device)


def running_cuda() -> Any:
    """Return `torch.cuda` if torch is imported and CUDA is initialised, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def has_unseen_work(function: Function, device: str) -> bool:
    """Return whether a call leaves work on a device that its current stream does not wait for.

    Events on the stream would not see that work, and show a time that is too short.
    """
    cuda = running_cuda()
    if cuda is None:
        return False
    cuda.synchronize(device)
    started = perf_counter()
    function()
    cuda.current_stream(device).synchronize()
    seen = perf_counter()
    cuda.synchronize(device)
    return perf_counter() - seen > max(UNSEEN_S, UNSEEN_SHARE * (seen - started))


# ---------------------------------------------------------------- timing a function: warm-up,
# calibrated loops, no garbage collection, raw values kept

OVERHEAD_LIMIT = 0.001
"""The share of a value that reading the clock may make up."""
WARMUP_SHARE = 0.25
"""The part of the budget that warming up may use."""
WARMUP_MOST = 100
AGREEMENT = 0.10
"""Two readings agree when they differ by less than this share of the smaller one."""
CALIBRATION_TRIES = 20
MOST_GROWTH = 10.0
BEYOND_DOUBT = 1000
"""A reading longer than needed by this factor is believed alone: disturbances are shorter."""

_pause_lock = threading.Lock()
_pause_depth = 0
_was_enabled = False


@contextmanager
def gc_paused(*, collect: bool = True) -> Iterator[None]:
    """Collect garbage, then keep the collector off inside the block.

    Short measurements do not afford to `collect`. Blocks may be nested and may overlap in threads:
    the outermost collects, and the last one to leave restores the collector, also after
    an exception.
    """
    global _pause_depth, _was_enabled
    with _pause_lock:
        _pause_depth += 1
        if _pause_depth == 1:
            _was_enabled = gc.isenabled()
            if collect:
                gc.collect()
            gc.disable()
    try:
        yield
    finally:
        with _pause_lock:
            _pause_depth -= 1
            if _pause_depth == 0 and _was_enabled:
                gc.enable()


def measure_time(
    function: Callable[[], object],
    *,
    name: str = "",
    runs: int | None = None,
    warmup: int | None = None,
    budget_s: float = 1.0,
    clock: Clock = WALL,
    min_runs: int = 5,
    max_runs: int = 1000,
    inner_loops: int | None = None,
) -> Samples:
    """Return the seconds per call of `function`, value by value.

    Without `runs` values are taken until `budget_s` is used, at least `min_runs` and at most
    `max_runs`, and each averages over enough calls that reading the clock stays below 0.1% of it.
    With a clock that waits for a device each value is one call, however short.
    With `runs` exactly `runs` values are taken, each of one call unless `inner_loops` says more.
    Without `warmup` the function is called until two readings in a row agree. Disturbances
    (steal time, preemption, load, drift) are in the notes.
    """
    _check(runs, warmup, budget_s, min_runs, max_runs, inner_loops)
    with gc_paused():
        if warmup is None:
            warm_up(function, clock, budget_s * WARMUP_SHARE)
        for _ in range(warmup or 0):
            function()
        loops = inner_loops or (1 if runs is not None else calibrate_loops(function, clock))
        before = observe()
        values = _take_values(
            lambda: clock.time(function, loops) / loops,
            at_least=min_runs if runs is None else runs,
            at_most=max_runs if runs is None else runs,
            until=perf_counter() + budget_s,
        )
        after = observe()
    doubts = after.doubts_since(before) if clock.is_disturbed_by_host else ()
    samples = Samples(name, values, loops=loops, notes=doubts)
    stability = samples.stability
    return samples if stability.is_stable else samples.with_notes(stability.note)


def warm_up(function: Callable[[], object], clock: Clock = WALL, budget_s: float = 0.25) -> int:
    """Call `function` until two readings in a row agree, and return the number of calls.

    It stops after `budget_s`, or a hundred calls: some functions never become stable.
    """
    end = perf_counter() + budget_s
    previous = clock.time(function, 1)
    for calls in range(2, WARMUP_MOST + 1):
        if perf_counter() >= end:
            return calls - 1
        reading = clock.time(function, 1)
        if _agree(previous, reading):
            return calls
        previous = reading
    return WARMUP_MOST


def calibrate_loops(function: Callable[[], object], clock: Clock = WALL) -> int:
    """Return the number of calls that hides the clock's own cost: below 0.1% of their time.

    A number of loops is believed only after two readings that agree; one alone may have met a
    disturbance, and would leave far too few loops. Where calls run on a device that each of them is
    waited for, the number is 1: waiting is part of the latency.
    """
    if times_single_calls(clock):
        return 1
    enough = reading_overhead(clock) / OVERHEAD_LIMIT
    loops = 1
    for _ in range(CALIBRATION_TRIES):
        first = clock.time(function, loops)
        if first >= BEYOND_DOUBT * enough:
            break
        second = clock.time(function, loops)
        shorter = min(first, second)
        if shorter >= enough and _agree(first, second):
            break
        if shorter < enough:
            needed = enough / shorter if shorter > 0 else MOST_GROWTH
            loops = max(loops + 1, math.ceil(loops * min(needed * 1.2, MOST_GROWTH)))
    return loops


def _agree(first: float, second: float) -> bool:
    return abs(first - second) <= AGREEMENT * min(first, second)


def _take_values(
    take: Callable[[], float], *, at_least: int, at_most: int, until: float
) -> tuple[float, ...]:
    values: list[float] = []
    while len(values) < at_most:
        if len(values) >= at_least and perf_counter() >= until:
            break
        values.append(take())
    return tuple(values)


def _check(
    runs: int | None,
    warmup: int | None,
    budget_s: float,
    min_runs: int,
    max_runs: int,
    inner_loops: int | None,
) -> None:
    counts = {"runs": runs, "min_runs": min_runs, "max_runs": max_runs, "inner_loops": inner_loops}
    for name, count in counts.items():
        if count is not None:
            check_number(name, count, least=1)
    check_number("warmup", warmup or 0, least=0)
    if max_runs < min_runs:
        raise SettingError(f"max_runs={max_runs} is less than min_runs={min_runs}")
    check_number("budget_s", budget_s, above=0)


# ---------------------------------------------------------------- emptying the caches of a
# processor or a device, so that a call finds nothing of its own there

WARM, COLD = "warm", "cold"
CACHES = (WARM, COLD)
TIMES_THE_CACHE = 2
"""So many times what the caches hold is read: no line is then likely to be left."""

Flush = Callable[[], None]


def cache_flush(device: str) -> Flush:
    """Return a function that replaces the contents of the caches of `cpu` or of a device.

    On a CUDA device it is its L2 cache, overwritten on the current stream. On a processor a buffer
    larger than all its caches is read: by PyTorch's threads, once torch is imported, so that
    the caches of their cores are emptied too, else by this thread alone.
    """
    if "torch" not in sys.modules:
        return processor_flush()
    from tinytorch.measure.ceilings_torch import device_flush, threaded_flush

    return threaded_flush(flushed_bytes()) if device == "cpu" else device_flush(device)


def processor_flush() -> Flush:
    """Return a function that reads more than the caches hold, in this thread."""
    # Written once, so that it is distinct memory and not the one page of zeros.
    words = np.ones(flushed_bytes() // 8, np.int64)

    def flush() -> None:
        words.sum()

    return flush


def flushed_bytes() -> int:
    """Return the bytes to read on this processor; raise where its cache sizes are unknown."""
    affinity = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    levels = cache_levels(affinity)
    if not levels:
        raise BackendError(
            "this system does not say how large its caches are, so they cannot be emptied for "
            'sure; compare with cache="warm"'
        )
    return TIMES_THE_CACHE * sum(level.total_bytes for level in levels.values())


# ---------------------------------------------------------------- giving up on a function that
# does not return

SOONEST_S = 1e-6
"""A timer that is set to zero would never ring."""
AGAIN_S = 0.5
"""Seconds until it rings again: a handler that caught the first ring must not go on for ever."""


def can_limit_time() -> bool:
    """Return whether a function in this thread can be interrupted: Unix, main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return hasattr(signal, "setitimer") and is_main


LONGER = "allow more with a longer timeout"


class _TimeIsUpError(BaseException):
    """Ends a block from within. It is no Exception, because functions catch these and go on."""


class time_limit:
    """Raise a MeasurementError when the block takes longer than this; None is no limit.

    The block is interrupted between two steps of the interpreter, also where it catches every
    Exception; a call into a library that never comes back is not. For that, compare targets in
    separate processes. A timer that was already running continues afterwards; inside of a limit
    that ends sooner, that one holds.
    """

    def __init__(self, seconds: float | None, name: str, *, remedy: str = LONGER) -> None:
        self._seconds, self._name, self._remedy = seconds, name, remedy
        self._is_set = self._has_rung = False

    def __enter__(self) -> None:
        if self._seconds is None or not can_limit_time() or _ends_sooner(self._seconds):
            return
        self._started = monotonic()
        self._timer_before = signal.setitimer(signal.ITIMER_REAL, 0)
        self._previous: Any = signal.signal(signal.SIGALRM, self._ring)
        self._is_set = True
        signal.setitimer(signal.ITIMER_REAL, self._seconds, AGAIN_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_set:
            return
        self._put_back()
        # A block that caught the ring and returned, or raised something else, took too long too.
        is_ours = error is None or isinstance(error, Exception | _TimeIsUpError)
        if self._has_rung and is_ours:
            cause = error if isinstance(error, Exception) else None
            raise MeasurementError(
                f"{self._name} did not return within {self._seconds:.3g} s and was interrupted; "
                f"{self._remedy}"
            ) from cause

    def _put_back(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous)
        left, interval = self._timer_before
        if left:  # An outer limit is set, too; one that has passed rings immediately.
            left = max(SOONEST_S, left - (monotonic() - self._started))
            signal.setitimer(signal.ITIMER_REAL, left, interval)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        # Entering and leaving this block must not be interrupted halfway; it rings again.
        while frame is not None:
            if frame.f_globals is globals() and frame.f_locals.get("self") is self:
                return
            frame = frame.f_back
        self._has_rung = True
        raise _TimeIsUpError


def _ends_sooner(seconds: float) -> bool:
    """Return whether a limit that was set before ends within so many seconds."""
    handler = signal.getsignal(signal.SIGALRM)
    is_ours = getattr(handler, "__func__", None) is time_limit._ring
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    return is_ours and 0 < left <= seconds
