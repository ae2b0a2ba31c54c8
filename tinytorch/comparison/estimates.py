"""How much slower is it? Estimates and intervals for paired log-ratios, one per round.

The interval is exact and asks nothing of the distribution but symmetry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["hodges_lehmann", "signed_rank_interval"]

LARGEST_EXACT = 300
"""Up to so many values the distribution of signed ranks is computed; beyond, it is normal."""

Bounds = tuple[float, float]
EVERYWHERE: Bounds = (-math.inf, math.inf)


def hodges_lehmann(values: Sequence[float]) -> float:
    """Give the median of the means of all pairs: almost as sharp as the mean, and robust."""
    return float(np.median(_pair_means(values)))


def signed_rank_interval(values: Sequence[float], alpha: float) -> Bounds:
    """Give the bounds of the centre that Wilcoxon's signed-rank test does not reject at `alpha`.

    With too few values for so small an `alpha` nothing can be excluded.
    """
    left_out = _signed_rank_cut(len(values), alpha)
    if left_out < 0:
        return EVERYWHERE
    means = np.sort(_pair_means(values))
    return float(means[left_out]), float(means[-1 - left_out])


def _pair_means(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Give the means of all pairs, each value with itself included."""
    numbers = np.asarray(values, dtype=np.float64)
    first, second = np.triu_indices(len(numbers))
    return (numbers[first] + numbers[second]) / 2


@lru_cache(maxsize=512)
def _signed_rank_cut(count: int, alpha: float) -> int:
    """Give how many pair means to leave out at each end, or -1."""
    if count > LARGEST_EXACT:
        from statistics import NormalDist

        mean = count * (count + 1) / 4
        spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return math.floor(mean + NormalDist().inv_cdf(alpha / 2) * spread - 0.5)
    chances = np.ones(1)  # of each sum of positive ranks, rank by rank
    for rank in range(1, count + 1):
        with_rank = np.zeros(len(chances) + rank)
        with_rank[: len(chances)] += chances
        with_rank[rank:] += chances
        chances = with_rank / 2
    return int(np.searchsorted(np.cumsum(chances), alpha / 2, side="right")) - 1
