"""Sides of a comparison that tell what they took, on a clock that only they move."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from tinytorch.comparison import sequential
from tinytorch.measure import interleaving as rounds
from tinytorch.measure.interleaving import Reading


class ToldTime:
    """A clock that stands still unless somebody says how long something took."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ScriptedSide:
    """A side whose calls take what `call_s()` says; `events` keeps what was asked of it."""

    runs_here = True
    warms_itself = True
    untimed_call_s = 0.0
    slow_call_s = 0.0
    device_timing: str | None = None

    def __init__(
        self,
        name: str,
        call_s: Callable[[], float],
        *,
        clock: ToldTime | None = None,
        can_rebuild: bool = True,
        build_s: float = 0.0,
        least_turn_s: float = 0.0,
        on_build: Callable[[], None] = lambda: None,
        lost_s: Callable[[float], float] = lambda seconds: 0.0,
    ) -> None:
        self.name, self.call_s, self.clock = name, call_s, clock or ToldTime()
        self.can_rebuild, self.build_s, self.least_turn_s = can_rebuild, build_s, least_turn_s
        self.on_build, self.lost_s = on_build, lost_s
        self.events: list[tuple[str, ...] | tuple[str, int, int]] = []

    def release(self) -> None:
        self.events.append(("release",))

    def build(self) -> None:
        self.events.append(("build",))
        self.on_build()
        self.clock.now += self.build_s

    def time(self, loops: int, *, before: int = 0) -> Reading:
        self.events.append(("time", loops, before))
        for _ in range(before):
            self.clock.now += self.call_s()
        seconds = sum(self.call_s() for _ in range(loops))
        lost_s = self.lost_s(seconds)
        self.clock.now += seconds + lost_s
        return Reading(seconds + lost_s, lost_s)


class Undisturbed:
    """Counters of a machine on which nothing else happens."""

    def doubts_since(self, earlier: object, **settings: object) -> tuple[str, ...]:
        return ()


def use_told_time(patch: pytest.MonkeyPatch, clock: ToldTime) -> None:
    """Let the comparer read this clock, and leave out what would take real time."""
    patch.setattr(rounds, "perf_counter", clock)
    patch.setattr(sequential, "perf_counter", clock)
    patch.setattr(sequential, "gc_paused", nullcontext)
    patch.setattr(sequential, "observe", Undisturbed)
