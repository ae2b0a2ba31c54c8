"""Sequential testing: rounds until the verdict is known, interim analyses that share the error.

Two sides are compared with :func:`time_until_known`, finished calls of several with :func:`race`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Generic, TypeVar

import numpy as np

from tinytorch.codec import Coded
from tinytorch.errors import check_number
from tinytorch.measure import interleaving
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import observe
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.timing import WALL, gc_paused

PLANNED_AFTER = 8
"""Rounds after which it is known how long they take and how noisy they are."""
NARROWEST = 0.001
"""No interval is narrower than this: what moves a program by less is not under our control."""


@dataclass(frozen=True)
class Rule:
    """When a difference counts. Shares of the baseline's time: 0.01 is one percent.

    An interval beyond `floor` is a difference, one inside of `band` is none. `floor` None means
    0.5%, or 1% when a side cannot be built anew. `precision` asks for more than a verdict: the
    interval must not reach further than this share from the estimate.
    """

    floor: float | None = None
    band: float = 0.01
    confidence: float = 0.95
    budget_s: float = 2.0
    precision: float | None = None

    def __post_init__(self) -> None:
        if self.floor is not None:
            check_number("floor", self.floor, least=0, below=1)
        check_number("band", self.band, above=0, below=1)
        check_number("confidence", self.confidence, least=0.5, below=1)
        check_number("budget_s", self.budget_s, above=0)
        if self.precision is not None:
            check_number("precision", self.precision, above=0)


@dataclass(frozen=True)
class TimedRounds(Coded):
    """What was timed until the answer was known, or the budget spent.

    `alpha` is the error of the last interim analysis, so that it holds together with those before.
    """

    rounds: tuple[interleaving.Round, ...]
    alpha: float
    pace: interleaving.Pace
    seconds_used: float
    doubts: tuple[str, ...]


def estimate_ratio(log_ratios: Sequence[float], alpha: float) -> Estimate:
    """Estimate candidate over baseline time from one log-ratio per round, with the error `alpha`.

    Below 1 the candidate is faster.
    """
    centre = interleaving.hodges_lehmann(log_ratios)
    low, high = interleaving.signed_rank_interval(log_ratios, alpha)
    half = NARROWEST / 2
    return Estimate(
        math.exp(centre),
        math.exp(min(low, centre - half)),
        math.exp(max(high, centre + half)),
        coverage=1 - alpha,
        n=len(log_ratios),
    )


def time_until_known(
    baseline: interleaving.Side,
    candidate: interleaving.Side,
    rule: Rule,
    *,
    is_known: Callable[[Estimate], bool],
    rng: np.random.Generator,
    progress: Progress | None = None,
    between: Callable[[], None] | None = None,
) -> TimedRounds:
    """Take rounds until an interim analysis knows the answer, or the budget is spent.

    At least six rounds are taken, however long they take: fewer are inconclusive.
    `between` is called after each of them.
    """
    started = perf_counter()
    allowed = 1 - rule.confidence
    rounds: list[interleaving.Round] = []
    with gc_paused():
        before = observe()
        pace = interleaving.find_pace(baseline, candidate, budget_s=rule.budget_s)
        end, began = started + rule.budget_s, perf_counter()
        now, looks, alpha = began, None, allowed
        while True:
            rounds.append(interleaving.take_round(baseline, candidate, pace=pace, rng=rng))
            count, before_round, now = len(rounds), now, perf_counter()
            if between:
                between()
            if progress:
                progress.describe(f"{candidate.name} against {baseline.name}: round {count}")
            if count == PLANNED_AFTER:
                # Rounds may take longer than they should; so will those to come.
                delay = (now - began) / count / pace.round_s
                pace = interleaving.refine_pace(pace, rounds, budget_s=rule.budget_s)
                looks = interleaving.InterimAnalyses(
                    count + int((end - now) / pace.round_s / delay), allowed
                )
            is_over = count >= interleaving.FEWEST and now + (now - before_round) / 2 > end
            if is_over or (looks and looks.is_last(count)):
                alpha = looks.last_level(count) if looks else allowed
                break
            if looks and looks.is_due(count) and is_known(_ratio(rounds, looks.level)):
                alpha = looks.level
                break
        doubts = observe().doubts_since(
            before, is_computing=not _are_elsewhere(baseline, candidate)
        )
    return TimedRounds(tuple(rounds), alpha, pace, perf_counter() - started, doubts)


def _ratio(rounds: Sequence[interleaving.Round], alpha: float) -> Estimate:
    return estimate_ratio([each.log_ratio for each in rounds], alpha)


def _are_elsewhere(*sides: interleaving.Side) -> bool:
    return any(not side.runs_here for side in sides)


# ---------------------------------------------------------------- several at once: which of some
# calls is faster than the one to start from

TURN_S, MOST_LOOPS = 1e-4, 1000
"""The length of a turn; most of what disturbs lasts longer, and so meets all alike."""
FEWEST_ROUNDS, MOST_ROUNDS = interleaving.FIRST, 100
FIRST_READINGS, FIRST_READINGS_S = 5, 0.1
"""Single calls of each before the first round; fewer of what takes longer than this."""
WARMED_BELOW_S = 1e-3
"""Calls shorter than this are made once before each turn: the others have filled the caches, and
their threads may still be waiting for work."""

Named = TypeVar("Named", bound=Hashable)


@dataclass(frozen=True)
class Raced(Generic[Named]):
    """Seconds per call of each, round by round, and the reason why others have no more turns.

    A difference counts when its interval, which errs with `alpha`, lies beyond `floor`.
    """

    default: Named
    times: Mapping[Named, Sequence[float]]
    left_out: Mapping[Named, str] = field(default_factory=dict)
    alpha: float = 0.05
    floor: float = 0.02

    @property
    def start(self) -> Named:
        """The default, or the fastest where that has no times and so needs no further evidence."""
        if self.default in self.times:
            return self.default
        return min(self.times, key=lambda name: float(np.median(self.times[name])))

    def ratio(self, name: Named, other: Named | None = None) -> Estimate:
        """Return the time of one over that of another, by default of the one to start from."""
        below = self.times[self.start if other is None else other]
        return estimate_ratio(np.log(np.divide(self.times[name], below)).tolist(), self.alpha)

    @property
    def ratios(self) -> dict[Named, Estimate]:
        start = self.start
        return {name: self.ratio(name, start) for name in self.times if name != start}

    @property
    def fastest(self) -> Named:
        """The fastest of those that are conclusively faster than the one to start from, or that."""
        found = {name: each.value for name, each in self.ratios.items() if self._is_faster(each)}
        return min(found, key=found.__getitem__) if found else self.start

    @property
    def is_decided(self) -> bool:
        """Whether each is known to be faster by more than the floor, or known not to be."""
        return not any(each.low <= 1 - self.floor <= each.high for each in self.ratios.values())

    def _is_faster(self, ratio: Estimate) -> bool:
        return ratio.high < 1 - self.floor


def race(
    calls: Mapping[Named, Callable[[], object]],
    *,
    default: Named,
    rng: np.random.Generator,
    budget_s: float,
    hopeless: float,
    kept: Collection[Named] = (),
    floor: float = 0.02,
    confidence: float = 0.95,
    warmed_below_s: float = WARMED_BELOW_S,
) -> Raced[Named]:
    """Let calls take turns in random order until an interim analysis decides about each.

    What takes `hopeless` times as long as the fastest at first is not timed further, unless it is
    in `kept`. No round begins after `budget_s`, but for the first nine. All intervals hold together
    with `confidence`.
    """
    with gc_paused(collect=False):
        first = {name: _shortest(call) for name, call in calls.items()}
        slowness = {name: seconds / min(first.values()) for name, seconds in first.items()}
        left_out = {
            name: f"a call took {times:.1f} times as long at first"
            for name, times in slowness.items()
            if times > hopeless and name not in kept
        }
        loops = {
            name: min(MOST_LOOPS, max(1, round(TURN_S / seconds)))
            for name, seconds in first.items()
            if name not in left_out
        }
        looks = interleaving.InterimAnalyses(
            MOST_ROUNDS // interleaving.RESERVE, (1 - confidence) / max(1, len(loops) - 1)
        )
        times: dict[Named, list[float]] = {name: [] for name in loops}
        found = Raced(default, times, left_out, looks.level, floor)
        for number, name in interleaving.interleave(
            loops, rng=rng, at_least=FEWEST_ROUNDS, at_most=MOST_ROUNDS, budget_s=budget_s
        ):
            is_new = all(len(taken) == number for taken in times.values())
            if is_new and looks.is_due(number) and found.is_decided:
                break
            if first[name] < warmed_below_s:
                calls[name]()
            times[name].append(_seconds(calls[name], loops[name]))
    return found


def _shortest(call: Callable[[], object]) -> float:
    readings = [_seconds(call, 1)]
    while len(readings) < FIRST_READINGS and sum(readings) < FIRST_READINGS_S:
        readings.append(_seconds(call, 1))
    return min(readings)


def _seconds(call: Callable[[], object], loops: int) -> float:
    reading = _watch().time(call, loops)
    return max(reading.seconds - reading.lost_s, 1e-9) / loops


@cache
def _watch() -> interleaving.Stopwatch:
    return interleaving.Stopwatch(WALL)
