"""Tiers: how much of the reference's accuracy has to be left, and whether it is."""

from __future__ import annotations

import math

import numpy as np

from tinytorch.comparison.accuracy import (
    INCONCLUSIVE,
    NOT_WORSE,
    WORSE,
    AccuracyComparison,
    compare_accuracy,
)
from tinytorch.competition.events import Event
from tinytorch.workloads.workload import Scores

__all__ = ["KEPT", "LOST", "compare_in_tier", "tier_margin", "tier_verdict"]

KEPT, LOST = "kept", "lost"
SAME_ANSWER = 1e-3
"""Scores that differ by less than this share of the margin come from the same answer, rounded."""


def tier_margin(event: Event, tier: float, reference_score: float) -> float:
    """Give by how much the mean score may drop in a tier.

    For accuracy it is a share of the reference's. For a log-likelihood, the perplexity may grow to
    1 / tier of the reference's.
    """
    if event.metric == "accuracy":
        return (1 - tier) * reference_score
    return -math.log(tier)


def compare_in_tier(event: Event, tier: float, ours: Scores, theirs: Scores) -> AccuracyComparison:
    """Hold the scores of an entry against the reference's, with the margin of a tier."""
    margin = tier_margin(event, tier, float(ours.mean()))
    return compare_accuracy(ours, theirs, margin=margin, metric=event.metric)


def tier_verdict(found: AccuracyComparison) -> str:
    """Say whether the tier is `kept`, `lost` or `inconclusive`.

    It is kept by non-inferiority, or where all texts are found as likely as by the reference: then
    the bound only says how few texts there are, and a thousand would not be enough for 99.9%.
    That digits are read alike says less, so there the bound decides.
    """
    if found.verdict == NOT_WORSE or _is_same(found):
        return KEPT
    return LOST if found.verdict == WORSE else INCONCLUSIVE


def _is_same(found: AccuracyComparison) -> bool:
    if found.failed or found.is_binary:
        return False
    apart = np.abs(np.subtract(found.candidate_scores, found.baseline_scores))
    return bool(apart.max() <= SAME_ANSWER * found.margin)
