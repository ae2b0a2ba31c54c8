"""What somebody expects of a candidate's time: shown (True), refuted (False) or open (None)."""

from __future__ import annotations

from tinytorch.comparison.comparison import FASTER, NOT_SHOWN, SAME, SLOWER, Comparison, verdict_of
from tinytorch.comparison.sequential import TimeRatio
from tinytorch.errors import SettingError

__all__ = ["EXPECTATIONS", "NOT_SLOWER", "is_met", "is_met_by", "stays_within"]

NOT_SLOWER = "not-slower"
EXPECTATIONS = (FASTER, SAME, NOT_SLOWER)


def is_met(expected: str, ratio: TimeRatio, *, floor: float, band: float) -> bool | None:
    """Say whether an interval meets one of `EXPECTATIONS`; None when it shows neither.

    `faster` is refuted by an interval that does not reach below the floor, `same` by a difference
    either way, `not-slower` by a slowdown. A candidate is not slower when its interval does not
    reach above the band; how much faster it may be does not matter.
    """
    if expected not in EXPECTATIONS:
        raise SettingError(f"{expected!r} cannot be expected; one of {', '.join(EXPECTATIONS)} can")
    verdict = verdict_of(ratio, floor=floor, band=band)
    if verdict == SLOWER:
        return False
    if expected == NOT_SLOWER:
        return True if verdict in (FASTER, SAME) or ratio.high <= 1 + band else None
    if verdict != NOT_SHOWN:
        return verdict == expected
    is_refuted = expected == FASTER and ratio.low >= 1 / (1 + floor)
    return False if is_refuted else None


def is_met_by(expected: str, comparison: Comparison) -> bool | None:
    """Judge a finished comparison; nothing is shown where typical calls and the mean disagree."""
    if comparison.contradiction:
        return None
    band = comparison.rule.band
    return is_met(expected, comparison.ratio, floor=comparison.floor, band=band)


def stays_within(ratio: TimeRatio, tolerance: float) -> bool | None:
    """Say whether the candidate takes at most `tolerance` more time, as a share of the baseline's.

    >>> stays_within(TimeRatio(1.02, 1.00, 1.04), 0.05)
    True
    """
    if ratio.high <= 1 + tolerance:
        return True
    return False if ratio.low > 1 + tolerance else None
