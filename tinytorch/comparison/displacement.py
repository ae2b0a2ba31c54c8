"""How much of a time other processes had the core, as far as the operating system tells."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from time import perf_counter_ns, process_time_ns, sleep, thread_time_ns
from typing import Any

from tinytorch.comparison.rounds import Reading
from tinytorch.measure.clocks import Clock

__all__ = ["Stopwatch"]

DISPLACED_SHARE = 0.02
"""Less than this share of a turn is within the accuracy of the counters."""
OTHERS_SHARE, OTHERS_S = 0.01, 4e-6
"""Processor time of other threads, as a share of the turn and on top of it, that means nothing:
reading the two clocks one after the other takes a few microseconds."""
CALIBRATIONS = 51
SHORT_S = 1e-4


class Stopwatch:
    """Times calls with a clock, and tells what they lost to other processes.

    A thread that did not wait by its own will (sleep, read, take a lock) and yet was not computing
    all the time was displaced. Where the calls did wait, other threads of this process computed (it
    may have waited for them), or the system does not count that, nothing is known: the time is
    theirs.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._counts_waits = clock.is_disturbed_by_host and _are_waits_counted()
        self._extra_s = self._reading_cost() if self._counts_waits else 0.0

    def time(self, function: Callable[[], object], loops: int) -> Reading:
        """Call a function `loops` times."""
        if not self._counts_waits:
            return Reading(self.clock.time(function, loops))
        waits, of_all, computing = _waits(), process_time_ns(), thread_time_ns()
        seconds = self.clock.time(function, loops)
        computing = thread_time_ns() - computing
        by_others = (process_time_ns() - of_all - computing) * 1e-9
        if by_others > OTHERS_SHARE * seconds + OTHERS_S or _waits() != waits:
            return Reading(seconds)
        lost_s = seconds - computing * 1e-9 + self._extra_s
        return Reading(seconds, lost_s if lost_s > DISPLACED_SHARE * seconds else 0.0)

    def _reading_cost(self) -> float:
        """Give how much more processor time than time an undisturbed reading shows."""
        extra = []
        for _ in range(CALIBRATIONS):
            computing, started = thread_time_ns(), perf_counter_ns()
            passed = perf_counter_ns() - started
            extra.append(thread_time_ns() - computing - passed)
        return sorted(extra)[CALIBRATIONS // 2] * 1e-9


def _waits() -> int | None:
    """Give how often this thread has waited by its own will; None where nobody counts."""
    if _usage is None:
        return None
    waits: int = _usage(_of_thread).ru_nvcsw
    return waits


@cache
def _are_waits_counted() -> bool:
    """Try whether the system counts a wait, and processor time finely; some only look as if."""
    before = _waits()
    if before is None:
        return False
    sleep(SHORT_S)
    waited = _waits() != before
    computing, started = thread_time_ns(), perf_counter_ns()
    while perf_counter_ns() - started < SHORT_S * 1e9:
        pass
    return waited and thread_time_ns() > computing


def _usage_of_thread() -> tuple[Any, Any]:
    try:
        resource = importlib.import_module("resource")
        return resource.getrusage, resource.RUSAGE_THREAD
    except (ImportError, AttributeError):  # Windows has no module, macOS does not count threads.
        return None, None


_usage, _of_thread = _usage_of_thread()
