"""Queries one after the other, and queries all at once: latency and throughput."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from time import perf_counter
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tinytorch.benchmarking.suite_file import Offline, Server, SingleStream
from tinytorch.codec import Coded
from tinytorch.comparison.evidence import too_few_calls
from tinytorch.measure.environment import observe
from tinytorch.measure.estimate import INCONCLUSIVE, Estimate
from tinytorch.measure.samples import Samples, values_needed
from tinytorch.measure.timing import gc_paused, warm_up

WARMUP_SHARE = 0.1
"""The part of the budget that warming up may use."""
LEAST_QUERIES = 5
"""Least number of queries, even if the time budget is used up before."""
ROUNDS, LEAST_ROUNDS = 20, 6
"""Target and minimum number of throughput rounds; a 95% interval needs at least six."""


@dataclass(frozen=True)
class Query:
    """One query to a model. `send` calls it, `finish` waits until a device has done its part."""

    send: Callable[[], object]
    finish: Callable[[], object]

    def answer(self) -> None:
        """Call the model and wait for the answer."""
        self.send()
        self.finish()


def measure_single_stream(query: Query, settings: SingleStream, *, budget_s: float) -> Samples:
    """Measure the latency of each query in seconds, from sending it to its answer.

    The garbage collector is paused, so what it takes is not part of the times.
    """
    times: list[float] = []
    with gc_paused():
        end = perf_counter() + budget_s
        warm_up(query.answer, budget_s=budget_s * WARMUP_SHARE)
        least = min(LEAST_QUERIES, settings.queries)
        before = observe()
        while len(times) < settings.queries:
            start = perf_counter()
            if start >= end and len(times) >= least:
                break
            query.answer()
            times.append(perf_counter() - start)
        after = observe()
    latency = Samples("latency", tuple(times), notes=after.doubts_since(before))
    return latency.with_notes(*too_few_calls(latency))


def measure_offline(
    query: Query, settings: Offline, *, budget_s: float, examples: int | None
) -> Samples:
    """Measure the throughput of rounds of back-to-back queries, in examples per second.

    The device is synchronised only at the end of a round. If the number of `examples` in a query is
    unknown, the unit is queries per second.
    """
    with gc_paused():
        warm_up(query.answer, budget_s=budget_s * WARMUP_SHARE)
        loops = max(1, int(budget_s / ROUNDS / max(_seconds(query, 1), 1e-9)))
        end = perf_counter() + budget_s
        times: list[float] = []
        before = observe()
        while len(times) < LEAST_ROUNDS or (perf_counter() < end and len(times) < 2 * ROUNDS):
            times.append(_seconds(query, loops))
        after = observe()
    done = loops * (examples or 1)
    unit = "queries/s" if examples is None else "examples/s"
    rates = tuple(done / max(seconds, 1e-9) for seconds in times)
    throughput = Samples("throughput", rates, unit, loops, notes=after.doubts_since(before))
    stability = throughput.stability
    return throughput if stability.is_stable else throughput.with_notes(stability.note)


def _seconds(query: Query, loops: int) -> float:
    start = perf_counter()
    for _ in range(loops):
        query.send()
    query.finish()
    return perf_counter() - start


# ---------------------------------------------------------------- which rate to try next:
# doubling, then bisection, then once more to be sure

MEETS, VIOLATES = "meets", "violates"
RESOLUTION = 1.1
"""Bisection ends when the rate that is too high is at most this much higher."""
MOST_HALVINGS, MOST_DOUBLINGS = 12, 20
MOST_TRIALS = 40


@dataclass(frozen=True)
class Tried:
    """A rate in queries per second, and what was seen there."""

    rate: float
    verdict: str


@lru_cache(maxsize=256)
def verdict_limits(queries: int, percentile: float) -> tuple[int, int]:
    """Return the most late queries for the verdict "meets", and the fewest for "violates".

    They are those for which the interval of the percentile, from order statistics, lies below or
    above the bound as a whole. The first is -1 where so few queries cannot show it.

    >>> verdict_limits(368, 99.0), verdict_limits(200, 99.0)
    ((0, 9), (-1, 6))
    """
    ranks = Samples("ranks", tuple(range(queries)), unit="").percentile_interval(percentile)
    most_that_meets = queries - 1 - int(ranks.high) if math.isfinite(ranks.high) else -1
    least_that_violates = queries - int(ranks.low) if math.isfinite(ranks.low) else queries + 1
    return most_that_meets, least_that_violates


def next_rate(tried: Sequence[Tried], first: float) -> float | None:
    """Return the next rate to try, or None when the search is finished.

    A rate that met the bound is believed only once it did so twice: of many rates that are tried,
    one may meet it by luck.
    """
    if not tried:
        return first
    if len(tried) >= MOST_TRIALS:
        return None
    too_high, met = _bracket(tried)
    if too_high is None:
        assert met is not None
        return 2 * met if met < first * 2**MOST_DOUBLINGS else None
    if met is None:
        return too_high / 2 if too_high > first / 2**MOST_HALVINGS else None
    if too_high / met > RESOLUTION:
        return math.sqrt(too_high * met)
    return met if _times_tried(tried, met) < 2 else None


def found_rate(tried: Sequence[Tried]) -> tuple[float | None, float | None, bool]:
    """Return the largest rate that met the bound, the next higher one, and whether the first met
    it twice."""
    too_high, met = _bracket(tried)
    return met, too_high, met is not None and _times_tried(tried, met) >= 2


def _bracket(tried: Sequence[Tried]) -> tuple[float | None, float | None]:
    """Return the lowest rate that failed, and the highest below it that met the bound."""
    too_high = min((each.rate for each in tried if each.verdict != MEETS), default=None)
    below = [
        each.rate
        for each in tried
        if each.verdict == MEETS and (too_high is None or each.rate < too_high)
    ]
    return too_high, max(below, default=None)


def _times_tried(tried: Sequence[Tried], rate: float) -> int:
    return sum(each.rate == rate for each in tried)


# ---------------------------------------------------------------- queries that arrive at random:
# the rate at which hardly any of them waits too long
#
# The latency of a query counts from its scheduled arrival, not from the moment when it was sent
# (no coordinated omission). One worker answers, first come, first served.

BOUND_FACTOR = 5.0
FIRST_SHARE = 0.5
"""The first rate that is tried keeps the worker busy for about this share of the time."""
ALONE_QUERIES, ALONE_SHARE = 200, 0.2
"""How many single queries are timed first, and the part of the budget that they may use."""
SPIN_S = 2e-3
"""The last stretch before an arrival is spent awake: the system wakes sleepers up to so late."""
LEAD_S = 1e-3
LEAST_BOUNDS = 20
"""Least duration of a trial in multiples of the bound, so that a growing queue shows."""
MOST_QUERIES = 20_000
TRIAL_SHARE = 0.125
"""Largest share of the time budget for this duration of one trial."""
FULL_LOAD = 0.98
"""A worker that is needed for this share of the time has queues that outgrow any trial."""
LATE_SHARE = 0.1
"""Arrivals that are later than this share of the bound are noted."""

Array = npt.NDArray[np.float64]


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
class RateTrial(Coded):
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

    also_written = (
        *("rate", "verdict", "latency.count", "late", "planned", "load", "interval.value"),
        *("interval.low", "interval.high", "lateness.median", "lateness.maximum"),
    )
    renames: ClassVar = {
        "latency.count": "queries",
        "interval.value": "latency_s",
        "interval.low": "latency_low_s",
        "interval.high": "latency_high_s",
        "lateness.median": "lateness_median_s",
        "lateness.maximum": "lateness_most_s",
        **dict.fromkeys(("bound_s", "percentile", "latency", "lateness", "service_s")),
    }

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
        return MEETS if is_complete and self.late <= most_that_meets else INCONCLUSIVE

    @property
    def interval(self) -> Estimate:
        return self.latency.percentile_interval(self.percentile)


@dataclass(frozen=True)
class ServerResult(Coded):
    """All rates that were tried, in order; `alone` are single queries on an idle worker."""

    bound_s: float
    bound_is_given: bool
    percentile: float
    trials: tuple[RateTrial, ...]
    alone: Samples
    is_complete: bool
    notes: tuple[str, ...] = ()

    also_written = (
        *("rate", "too_high", "is_confirmed", "is_complete", "bound_s", "bound_is_given"),
        *("percentile", "alone.median", "trials"),
    )
    renames: ClassVar = {"alone.median": "alone_median_s", "alone": None, "notes": None}

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


def measure_server(
    query: Query,
    settings: Server,
    *,
    budget_s: float,
    seed: int = 0,
    timeline: RealTime | None = None,
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
    doubts = list(observe().doubts_since(before, may_wait=True))
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
    timeline: RealTime,
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
    """Return the number of queries of a trial: enough for the verdict and for its duration."""
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
        notes.append("the search was stopped by the time budget; increase it to narrow the rate")
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
