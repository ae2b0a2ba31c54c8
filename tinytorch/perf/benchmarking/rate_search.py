"""Which rate to try next: doubling, then bisection, then once more to be sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tinytorch.measure.samples import Samples

__all__ = ["MEETS", "NOT_SHOWN", "VIOLATES", "Tried", "found_rate", "next_rate", "verdict_limits"]

MEETS, VIOLATES, NOT_SHOWN = "meets", "violates", "not shown"
RESOLUTION = 1.1
"""Bisection ends when the rate that is too high is at most so much higher."""
MOST_HALVINGS, MOST_DOUBLINGS = 12, 20
MOST_TRIALS = 40


@dataclass(frozen=True)
class Tried:
    """A rate in queries per second, and what was seen there."""

    rate: float
    verdict: str


@lru_cache(maxsize=256)
def verdict_limits(queries: int, percentile: float) -> tuple[int, int]:
    """Give how many late queries still show that a bound is met, and how many that it is not.

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
    """Give the next rate to try, or None when the search is at its end.

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
    """Give the largest rate that met the bound, the next one that did not, and whether the first
    met it twice."""
    too_high, met = _bracket(tried)
    return met, too_high, met is not None and _times_tried(tried, met) >= 2


def _bracket(tried: Sequence[Tried]) -> tuple[float | None, float | None]:
    """Give the lowest rate that failed, and the highest below it that never did."""
    too_high = min((each.rate for each in tried if each.verdict != MEETS), default=None)
    below = [
        each.rate
        for each in tried
        if each.verdict == MEETS and (too_high is None or each.rate < too_high)
    ]
    return too_high, max(below, default=None)


def _times_tried(tried: Sequence[Tried], rate: float) -> int:
    return sum(each.rate == rate for each in tried)
