"""Clocks: what tells how long some calls of a function took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from tinytorch.errors import SettingError

__all__ = ["CPU_TIME", "WALL", "Clock", "ColdClock", "StandardClock", "reading_overhead"]

Function = Callable[[], object]


class Clock(Protocol):
    """Anything that can time a function."""

    @property
    def name(self) -> str:
        """Give the word that reports use."""

    @property
    def resolution_s(self) -> float:
        """Give the smallest difference that the clock can show."""

    @property
    def is_disturbed_by_host(self) -> bool:
        """Say whether what else the processor does is part of the time; not so on a device."""

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


def reading_overhead(clock: Clock = WALL, readings: int = 100) -> float:
    """Measure the seconds that a clock shows for a function that does nothing.

    This is what every reading adds to what it measures. The median, because a single reading may
    be disturbed, but never less than what the clock can tell apart.
    """
    if readings < 1:
        raise SettingError(f"readings={readings}; it must be at least 1")
    if isinstance(clock, ColdClock):
        clock = clock.clock  # caches do not change how long reading it takes
    clock.time(_nothing, 1)
    seen = sorted(clock.time(_nothing, 1) for _ in range(readings))
    return max(seen[readings // 2], clock.resolution_s)


def _nothing() -> None:
    pass
