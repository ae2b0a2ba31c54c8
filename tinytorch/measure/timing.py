"""Timing a function: warm-up, calibrated loops, no garbage collection, raw values kept."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from tinytorch.errors import SettingError
from tinytorch.measure.clocks import WALL, Clock, reading_overhead
from tinytorch.measure.device_clock import times_single_calls
from tinytorch.measure.disturbance import observe
from tinytorch.measure.samples import Samples

__all__ = ["calibrate_loops", "gc_paused", "measure_time", "warm_up"]

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
"""A reading so many times longer than needed is believed alone: no disturbance lasts so long."""

_pause_lock = threading.Lock()
_pause_depth = 0
_was_enabled = False


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collect garbage, then keep the collector off inside the block.

    Blocks may be nested and may overlap in threads: the outermost collects, and the last one to
    leave restores the collector as it was, also after an exception.
    """
    global _pause_depth, _was_enabled
    with _pause_lock:
        _pause_depth += 1
        if _pause_depth == 1:
            _was_enabled = gc.isenabled()
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
    """Give the seconds per call of `function`, value by value.

    Without `runs` values are taken until `budget_s` is used, at least `min_runs` and at most
    `max_runs`, and each averages over so many calls that reading the clock stays below 0.1% of it.
    With a clock that waits for a device each value is one call, however short.
    With `runs` exactly so many values are taken, each of one call unless `inner_loops` says more.
    Without `warmup` the function is called until two readings in a row agree. Whatever speaks
    against the values (steal time, displacement, load, drift) is in the notes.
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
    """Call `function` until two readings in a row agree, and give the number of calls.

    It gives up after `budget_s`, or a hundred calls: some functions never settle.
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
    """Give the number of calls that hides the clock's own cost: below 0.1% of their time.

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
        if count is not None and count < 1:
            raise SettingError(f"{name}={count}; it must be at least 1")
    if warmup is not None and warmup < 0:
        raise SettingError(f"warmup={warmup}; it cannot be negative")
    if max_runs < min_runs:
        raise SettingError(f"max_runs={max_runs} is less than min_runs={min_runs}")
    if not budget_s > 0:
        raise SettingError(f"budget_s={budget_s}; it must be positive")
