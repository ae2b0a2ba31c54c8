"""Queries that arrive at random: the rate at which hardly any of them waits too long.

The latency of a query counts from the moment when it was due to arrive, not from the moment when
somebody got round to sending it. One worker answers, first come, first served.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tinytorch.measure.disturbance import observe
from tinytorch.measure.samples import Interval, Samples, values_needed
from tinytorch.measure.timing import gc_paused
from tinytorch.perf.benchmarking.rate_search import (
    MEETS,
    NOT_SHOWN,
    VIOLATES,
    Tried,
    found_rate,
    next_rate,
    verdict_limits,
)
from tinytorch.perf.benchmarking.scenario_settings import Server, SingleStream
from tinytorch.perf.benchmarking.scenarios import Query, measure_single_stream

__all__ = ["RateTrial", "RealTime", "ServerResult", "Timeline", "measure_server", "try_rate"]

BOUND_FACTOR = 5.0
FIRST_SHARE = 0.5
"""The first rate that is tried keeps the worker busy for about so much of the time."""
ALONE_QUERIES, ALONE_SHARE = 200, 0.2
"""How many single queries are timed first, and the part of the budget that they may use."""
SPIN_S = 2e-3
"""The last stretch before an arrival is spent awake: the system wakes sleepers up to so late."""
LEAD_S = 1e-3
LEAST_BOUNDS = 20
"""A trial lasts for so many times the bound, or a queue that only grows would fit into it."""
MOST_QUERIES = 20_000
TRIAL_SHARE = 0.125
"""The part of the budget that lasting so long may take for one trial."""
FULL_LOAD = 0.98
"""A worker that is needed so much of the time has queues that outgrow any trial."""
LATE_SHARE = 0.1
"""Arrivals that are later than this share of the bound are named as a doubt."""

Array = npt.NDArray[np.float64]


class Timeline(Protocol):
    """Time as a trial sees it."""

    def now(self) -> float:
        """Give the seconds."""

    def wait_until(self, moment: float) -> None:
        """Return at that moment, or at once when it is over."""


class RealTime:
    """The clock on the wall: asleep while there is time, awake shortly before."""

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        left = moment - time.perf_counter()
        if left > SPIN_S:
            time.sleep(left - SPIN_S)
        while time.perf_counter() < moment:
            pass


@dataclass(frozen=True)
class RateTrial:
    """What was seen at one rate, in queries per second.

    `latency` has the seconds from the scheduled arrival to the answer, `lateness` those from the
    arrival to the start for queries that found the worker idle: the error of our own schedule,
    which is part of the latency. `service_s` is the median time from start to answer. A trial ends
    early once it cannot turn out well any more.
    """

    rate: float
    bound_s: float
    percentile: float
    planned: int
    latency: Samples
    lateness: Samples | None
    service_s: float

    @property
    def load(self) -> float:
        """The share of the time that the worker is needed; from 1 on the queue grows for ever.

        From the median, since a short trial may meet a disturbance that makes up most of its mean.
        """
        return self.rate * self.service_s

    @cached_property
    def late(self) -> int:
        """How many queries took longer than the bound."""
        return sum(each > self.bound_s for each in self.latency.values)

    @property
    def verdict(self) -> str:
        """Whether the interval of the percentile lies below or above the bound as a whole.

        A rate that the worker cannot keep up with violates any bound, if only later.
        """
        most_that_meets, least_that_violates = verdict_limits(self.planned, self.percentile)
        if self.late >= least_that_violates or self.load >= FULL_LOAD:
            return VIOLATES
        is_complete = self.latency.count == self.planned
        return MEETS if is_complete and self.late <= most_that_meets else NOT_SHOWN

    @property
    def interval(self) -> Interval:
        return self.latency.percentile_interval(self.percentile)

    def to_dict(self) -> dict[str, Any]:
        """Give a summary, ready for JSON."""
        return {
            "rate": self.rate,
            "verdict": self.verdict,
            "queries": self.latency.count,
            "late": self.late,
            "planned": self.planned,
            "load": self.load,
            "latency_s": self.latency.percentile(self.percentile),
            "latency_low_s": self.interval.low,
            "latency_high_s": self.interval.high,
            "lateness_median_s": self.lateness.median if self.lateness else None,
            "lateness_most_s": self.lateness.maximum if self.lateness else None,
        }


@dataclass(frozen=True)
class ServerResult:
    """All rates that were tried, in order; `alone` are single queries, with nobody waiting."""

    bound_s: float
    bound_is_given: bool
    percentile: float
    trials: tuple[RateTrial, ...]
    alone: Samples
    is_complete: bool
    notes: tuple[str, ...] = ()

    @property
    def rate(self) -> float | None:
        """The largest rate that was shown to meet the bound."""
        return self._found[0]

    @property
    def too_high(self) -> float | None:
        """The smallest rate that was not."""
        return self._found[1]

    @property
    def is_confirmed(self) -> bool:
        """Whether the rate met the bound twice."""
        return self._found[2]

    @property
    def trial(self) -> RateTrial | None:
        """The last trial of that rate."""
        return next((each for each in reversed(self.trials) if each.rate == self.rate), None)

    @cached_property
    def _found(self) -> tuple[float | None, float | None, bool]:
        return found_rate([Tried(each.rate, each.verdict) for each in self.trials])

    def to_dict(self) -> dict[str, Any]:
        """Give everything but the single latencies, ready for JSON."""
        return {
            "rate": self.rate,
            "too_high": self.too_high,
            "is_confirmed": self.is_confirmed,
            "is_complete": self.is_complete,
            "bound_s": self.bound_s,
            "bound_is_given": self.bound_is_given,
            "percentile": self.percentile,
            "alone_median_s": self.alone.median,
            "trials": [each.to_dict() for each in self.trials],
        }


def measure_server(
    query: Query,
    settings: Server,
    *,
    budget_s: float,
    seed: int = 0,
    timeline: Timeline | None = None,
) -> ServerResult:
    """Search the largest rate that meets the bound, and keep every rate that was tried.

    The search ends when the budget is used up, at least one rate is tried.
    """
    timeline = timeline or RealTime()
    end = timeline.now() + budget_s
    alone = measure_single_stream(
        query, SingleStream(queries=ALONE_QUERIES), budget_s=budget_s * ALONE_SHARE
    )
    given = settings.latency_bound_ms
    bound_s = BOUND_FACTOR * alone.median if given is None else given / 1e3
    rng = np.random.default_rng(seed)
    trials: list[RateTrial] = []
    before = observe()
    while True:
        tried = [Tried(each.rate, each.verdict) for each in trials]
        rate = next_rate(tried, FIRST_SHARE / max(alone.median, 1e-9))
        if rate is None:
            break
        planned = _queries_at(rate, settings, min(LEAST_BOUNDS * bound_s, budget_s * TRIAL_SHARE))
        if trials and timeline.now() + planned / rate > end:
            break
        arrivals = np.cumsum(rng.exponential(1 / rate, planned))
        with gc_paused():
            trials.append(
                try_rate(
                    query.answer,
                    arrivals,
                    rate=rate,
                    bound_s=bound_s,
                    percentile=settings.percentile,
                    timeline=timeline,
                )
            )
    doubts = [note for note in observe().doubts_since(before) if "computed in only" not in note]
    found = ServerResult(
        bound_s, given is not None, settings.percentile, tuple(trials), alone, rate is None
    )
    return _with_notes(found, doubts)


def try_rate(
    answer: Callable[[], object],
    arrivals: Array,
    *,
    rate: float,
    bound_s: float,
    percentile: float,
    timeline: Timeline,
) -> RateTrial:
    """Answer queries that are due at these seconds, as far as it takes to know the verdict."""
    _, hopeless = verdict_limits(len(arrivals), percentile)
    latencies: list[float] = []
    lateness: list[float] = []
    services: list[float] = []
    late = 0
    free = timeline.now()
    start = free + LEAD_S
    for arrival in arrivals:
        due = start + float(arrival)
        was_idle = free < due
        if was_idle:
            timeline.wait_until(due)
        begin = timeline.now()
        answer()
        free = timeline.now()
        latencies.append(free - due)
        services.append(free - begin)
        if was_idle:
            lateness.append(begin - due)
        late += latencies[-1] > bound_s
        if late >= hopeless:
            break
    return RateTrial(
        rate=rate,
        bound_s=bound_s,
        percentile=percentile,
        planned=len(arrivals),
        latency=Samples("latency", tuple(latencies)),
        lateness=Samples("lateness", tuple(lateness)) if lateness else None,
        service_s=float(np.median(services)),
    )


def _queries_at(rate: float, settings: Server, lasting_s: float) -> int:
    """Give how many queries a trial needs: for the verdict, and to last long enough."""
    return max(settings.queries_per_rate, min(MOST_QUERIES, math.ceil(lasting_s * rate)))


def _with_notes(found: ServerResult, doubts: list[str]) -> ServerResult:
    notes = list(doubts)
    planned, share = found.trials[-1].planned, found.percentile
    if not found.bound_is_given:
        notes.append(f"the bound is {BOUND_FACTOR:g} times the median of single queries here")
    if verdict_limits(planned, share)[0] < 0:
        notes.append(
            f"{planned} queries per rate cannot show that {share:g}% of them meet a bound; "
            f"it takes {values_needed(share)}"
        )
    if not found.is_complete:
        notes.append("the budget ended before the search did; a larger one narrows it down")
    trial = found.trial
    if trial is not None and trial.planned / trial.rate < LEAST_BOUNDS / 2 * found.bound_s:
        notes.append(
            f"{trial.planned} queries lasted for {trial.planned / trial.rate / found.bound_s:.2g} "
            "times the bound only: longer queues were not seen"
        )
    errors = [each.lateness.percentile(99) for each in found.trials if each.lateness]
    if errors and max(errors) > LATE_SHARE * found.bound_s:
        notes.append(
            f"arrivals were up to {max(errors) * 1e3:.3g} ms late (99th percentile), which is part "
            "of the latencies"
        )
    return replace(found, notes=tuple(notes))
