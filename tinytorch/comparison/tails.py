"""How long the slow calls take: single calls of two functions, in turns, and their percentiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from tinytorch.comparison.rounds import Round
from tinytorch.errors import SettingError
from tinytorch.measure.clocks import WALL, Clock, reading_overhead
from tinytorch.measure.disturbance import observe
from tinytorch.measure.samples import Interval, Samples, values_needed
from tinytorch.measure.timing import gc_paused, warm_up

__all__ = [
    "PERCENTILES",
    "Tail",
    "TailPercentile",
    "calls_of_rounds",
    "least_tails_s",
    "measure_tails",
]

PERCENTILES = (50.0, 90.0, 99.0)
WARMUP_SHARE = 0.1
"""The part of the budget that warming up one of the functions may use."""
LEAST_CALLS = 5
"""So many calls are made even when the budget is used up before."""
OF_ROUNDS = (
    "these are the calls of the rounds, since more would take too long; what they lost while "
    "others had the core is taken off"
)
OVERHEAD_LIMIT = 0.01
"""The share of a call from which on the cost of reading the clock is named."""

Function = Callable[[], object]


@dataclass(frozen=True)
class TailPercentile:
    """A percentile of the times of calls, with its distribution-free interval.

    An end of the interval is infinite where there were too few calls to know it.
    """

    q: float
    value: float
    interval: Interval


@dataclass(frozen=True)
class Tail:
    """The times of single calls, seen from their slow end."""

    samples: Samples
    confidence: float = 0.95

    def percentile(self, q: float) -> TailPercentile:
        """Give a percentile, from 0 to 100, both excluded."""
        interval = self.samples.percentile_interval(q, self.confidence)
        return TailPercentile(q, self.samples.percentile(q), interval)

    @property
    def p50(self) -> TailPercentile:
        return self.percentile(50)

    @property
    def p90(self) -> TailPercentile:
        return self.percentile(90)

    @property
    def p99(self) -> TailPercentile:
        return self.percentile(99)

    @property
    def percentiles(self) -> tuple[TailPercentile, ...]:
        """The median, the 90th and the 99th."""
        return tuple(self.percentile(q) for q in PERCENTILES)


def measure_tails(
    first: Function,
    second: Function,
    *,
    clock: Clock = WALL,
    calls: int | None = None,
    budget_s: float = 2.0,
    rng: np.random.Generator | int = 0,
    names: tuple[str, str] = ("baseline", "candidate"),
) -> tuple[Samples, Samples]:
    """Time single calls of two functions, in pairs of random order; each value is one call.

    It stops after `calls` calls of each, by default as many as the interval of the 99th percentile
    needs, or when `budget_s` is used up. The garbage collector is paused, so what it takes is not
    part of the times. Notes say what the values cannot show.
    """
    wanted = values_needed(PERCENTILES[-1]) if calls is None else calls
    if wanted < 1:
        raise SettingError(f"calls={calls}; it must be at least 1")
    if not budget_s > 0:
        raise SettingError(f"budget_s={budget_s}; it must be positive")
    with gc_paused():
        end = perf_counter() + budget_s
        for function in (first, second):
            warm_up(function, clock, budget_s * WARMUP_SHARE)
        before = observe()
        times = _take_pairs((first, second), clock, wanted, end, np.random.default_rng(rng))
        after = observe()
    doubts = after.doubts_since(before) if clock.is_disturbed_by_host else ()
    overhead = reading_overhead(clock)
    one, other = (
        Samples(name, tuple(values), notes=doubts)
        for name, values in zip(names, times, strict=True)
    )
    return one.with_notes(*_notes(one, overhead)), other.with_notes(*_notes(other, overhead))


def least_tails_s(call_s: tuple[float, float]) -> float:
    """Give what :func:`measure_tails` takes at least, for calls that take so long."""
    return (1 + LEAST_CALLS) * sum(call_s)


def calls_of_rounds(
    rounds: Sequence[Round], *, names: tuple[str, str] = ("baseline", "candidate")
) -> tuple[Samples, Samples]:
    """Give the times of single calls from rounds whose every turn was one call."""
    values = (
        tuple(seconds for each in rounds for seconds in each.baseline),
        tuple(seconds for each in rounds for seconds in each.candidate),
    )
    one, other = (
        Samples(name, own, notes=(OF_ROUNDS,)) for name, own in zip(names, values, strict=True)
    )
    return one.with_notes(*_notes(one, 0.0)), other.with_notes(*_notes(other, 0.0))


def _take_pairs(
    functions: tuple[Function, Function],
    clock: Clock,
    wanted: int,
    end: float,
    rng: np.random.Generator,
) -> tuple[list[float], list[float]]:
    times: tuple[list[float], list[float]] = ([], [])
    least = min(wanted, LEAST_CALLS)
    for pair in range(wanted):
        if pair >= least and perf_counter() >= end:
            break
        begin = int(rng.integers(2))
        for side in (begin, 1 - begin):
            times[side].append(clock.time(functions[side], 1))
    return times


def _notes(samples: Samples, overhead_s: float) -> list[str]:
    notes = []
    unknown = [q for q in PERCENTILES if samples.count < values_needed(q)]
    if unknown:
        ends = ", ".join(f"p{q:g} ({values_needed(q)})" for q in unknown)
        notes.append(
            f"{samples.count} calls are too few for both ends of the intervals of {ends}; "
            "give a longer budget"
        )
    if samples.median < overhead_s / OVERHEAD_LIMIT:
        notes.append("a call is so short that reading the clock is more than 1% of its time")
    return notes
