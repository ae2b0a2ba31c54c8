"""Intervals for averages over examples, such as an accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from tinytorch.errors import SettingError
from tinytorch.measure.samples import Interval, Samples
from tinytorch.measure.scaling import student_t_quantile

__all__ = ["mean_interval", "ratio_interval", "share_interval"]


def share_interval(hits: int, count: int, confidence: float = 0.95) -> Interval:
    """Give Wilson's interval for a probability, of which `hits` of `count` trials are known.

    It has a width even when every trial hit or none did, and never leaves 0 to 1.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, 1927.

    >>> interval = share_interval(10, 10)
    >>> round(interval.low, 3), interval.high
    (0.722, 1.0)
    """
    if not 0 <= hits <= count or count < 1:
        raise SettingError(f"{hits} hits of {count}; hits lie between 0 and a count of 1 or more")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = hits / count, z * z / count
    centre = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / count + weight / (4 * count)) / (1 + weight)
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == count else min(1.0, centre + half)
    return Interval(low, high, confidence)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Give an interval for the mean that values like these have in the long run.

    For zeros and ones it is :func:`share_interval`. Otherwise it is Student's, which is exact for
    normal values and close for some thirty or more of any that are not very skewed. A single value
    says nothing about others: confidence 0.
    """
    samples = Samples("scores", tuple(values), unit="")
    if all(value in (0.0, 1.0) for value in samples.values):
        return share_interval(round(sum(samples.values)), samples.count, confidence)
    if samples.count == 1:
        return Interval(samples.mean, samples.mean, 0.0)
    reach = student_t_quantile((1 + confidence) / 2, samples.count - 1)
    half = reach * samples.std / math.sqrt(samples.count)
    return Interval(samples.mean - half, samples.mean + half, confidence)


def ratio_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, Interval]:
    """Give the median of first over second, pair by pair, and its interval.

    Pairs are neighbours in time, so that what disturbs the machine meets both. The interval is
    that of :meth:`Samples.median_interval`: nothing is assumed about the distribution.
    """
    ratios = tuple(one / other for one, other in zip(first, second, strict=True))
    samples = Samples("ratios", ratios, unit="")
    return samples.median, samples.median_interval()
