"""Sequential testing: rounds until the verdict is known, interim analyses that share the error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from tinytorch.codec import Coded
from tinytorch.errors import SettingError
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import observe
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.interleaving import (
    FEWEST,
    InterimAnalyses,
    Pace,
    Round,
    Side,
    find_pace,
    hodges_lehmann,
    refine_pace,
    signed_rank_interval,
    take_round,
)
from tinytorch.measure.timing import gc_paused

__all__ = ["Rule", "TimedRounds", "estimate_ratio", "time_until_known"]

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
        for name, value in vars(self).items():
            if not isinstance(value, int | float | None):
                raise SettingError(f"{name}={value!r}; it must be a number such as 0.01")
        if self.floor is not None and not 0 <= self.floor < 1:
            raise SettingError(f"floor={self.floor}; it must be a share such as 0.005")
        if not 0 < self.band < 1:
            raise SettingError(f"band={self.band}; it must be a share such as 0.01")
        if not 0.5 <= self.confidence < 1:
            raise SettingError(f"confidence={self.confidence}; it must be a share such as 0.95")
        if not 0 < self.budget_s < math.inf:
            raise SettingError(f"budget_s={self.budget_s}; measuring needs some seconds")
        if self.precision is not None and not self.precision > 0:
            raise SettingError(f"precision={self.precision}; it must be a share such as 0.02")


@dataclass(frozen=True)
class TimedRounds(Coded):
    """What was timed until the answer was known, or the budget spent.

    `alpha` is the error of the last interim analysis, so that it holds together with those before.
    """

    rounds: tuple[Round, ...]
    alpha: float
    pace: Pace
    seconds_used: float
    doubts: tuple[str, ...]


def estimate_ratio(log_ratios: Sequence[float], alpha: float) -> Estimate:
    """Estimate candidate over baseline time from one log-ratio per round, with the error `alpha`.

    Below 1 the candidate is faster.
    """
    centre = hodges_lehmann(log_ratios)
    low, high = signed_rank_interval(log_ratios, alpha)
    half = NARROWEST / 2
    return Estimate(
        math.exp(centre),
        math.exp(min(low, centre - half)),
        math.exp(max(high, centre + half)),
        coverage=1 - alpha,
        n=len(log_ratios),
    )


def time_until_known(
    baseline: Side,
    candidate: Side,
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
    rounds: list[Round] = []
    with gc_paused():
        before = observe()
        pace = find_pace(baseline, candidate, budget_s=rule.budget_s)
        end, began = started + rule.budget_s, perf_counter()
        now, looks, alpha = began, None, allowed
        while True:
            rounds.append(take_round(baseline, candidate, pace=pace, rng=rng))
            count, before_round, now = len(rounds), now, perf_counter()
            if between:
                between()
            if progress:
                progress.describe(f"{candidate.name} against {baseline.name}: round {count}")
            if count == PLANNED_AFTER:
                # Rounds may take longer than they should; so will those to come.
                delay = (now - began) / count / pace.round_s
                pace = refine_pace(pace, rounds, budget_s=rule.budget_s)
                looks = InterimAnalyses(count + int((end - now) / pace.round_s / delay), allowed)
            is_over = count >= FEWEST and now + (now - before_round) / 2 > end
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


def _ratio(rounds: Sequence[Round], alpha: float) -> Estimate:
    return estimate_ratio([each.log_ratio for each in rounds], alpha)


def _are_elsewhere(*sides: Side) -> bool:
    return any(not side.runs_here for side in sides)
