"""Watching what values an array takes, batch by batch, and choosing the range to quantize it by.

A :class:`RangeObserver` sees arrays one after another and keeps little: exact extremes and moments,
moving averages, and a histogram. :func:`choose_range` decides by these statistics which range is
worth having values for; what lies outside will be clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytorch.core.kernels.backend import Array, matmul
from tinytorch.errors import SettingError
from tinytorch.formats.affine import affine_parameters, check_finite, checked_array, value_limits

METHODS = ("minmax", "moving_average", "percentile", "mse", "entropy")

BINS = 2048
BLOCK = 1 << 16
"""Elements that are worked on at once, in float64, so that this stays in the cache."""

SMALLEST_EXPONENT = -1000
DIGITS = 40
"""Bins are no narrower than the largest number times 2**-DIGITS: their indices stay small."""

FACTORS = 2.0 ** -(np.arange(0, 8, 1 / 12))
"""Shares of the observed range that are tried: 1 down to less than 1%, in steps of 6%."""

FINE_FACTORS = 2.0 ** np.linspace(1 / 12, -1 / 12, 17)
ROUNDS = 2


@dataclass(frozen=True, eq=False)
class RangeStatistics:
    """What was seen of an array: `count` elements in `batches`, of them `zeros` exactly zero.

    low, high, mean and std (of all elements, not of a sample) are exact but for rounding;
    moving_low and moving_high are moving averages of the extremes of each batch. All are NaN as
    long as nothing was seen. Bin i of the histogram counts elements from (first_bin + i) *
    bin_width on; the width is a power of two.
    """

    count: int
    batches: int
    zeros: int
    low: float
    high: float
    mean: float
    std: float
    moving_low: float
    moving_high: float
    histogram: Array
    first_bin: int
    bin_width: float

    @property
    def summary(self) -> dict[str, float]:
        """The statistics that a plan shows."""
        return {
            "values": self.count,
            "low": self.low,
            "high": self.high,
            "mean": self.mean,
            "std": self.std,
        }

    @property
    def edges(self) -> Array:
        """The ends of the bins: one more than there are bins."""
        return (self.first_bin + np.arange(len(self.histogram) + 1)) * self.bin_width

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists, ready for JSON. What is not known is None."""
        names = ("low", "high", "mean", "std", "moving_low", "moving_high")
        used = np.trim_zeros(self.histogram, "b")
        return {
            "count": self.count,
            "batches": self.batches,
            "zeros": self.zeros,
            **{name: getattr(self, name) if self.count else None for name in names},
            "histogram": used.tolist(),
            "first_edge": self.first_bin * self.bin_width,
            "bin_width": self.bin_width,
        }


class RangeObserver:
    """Keeps statistics of the arrays that it is updated with.

    `momentum` is the weight of a new batch in the moving averages; the first 1 / momentum batches
    weigh the same, so that a short calibration is not ruled by its first batch. But for these, the
    order of batches and their sizes do not matter.
    """

    def __init__(self, *, momentum: float = 0.01) -> None:
        if not 0 < momentum <= 1:
            raise SettingError(f"momentum={momentum}; it is a share above 0 and up to 1")
        self._momentum = momentum
        self._count = self._batches = self._zeros = 0
        self._low, self._high = math.inf, -math.inf
        self._mean = self._squares = 0.0  # the sum of squared distances from the mean
        self._moving_low = self._moving_high = math.nan
        self._bins = _Bins()

    def update(self, array: Any) -> None:
        """See one batch. An empty one counts as none; NaN and infinity are errors."""
        array = checked_array(array)
        if not array.size:
            return
        with np.errstate(invalid="ignore"):
            low, high = np.asarray(array.min()), np.asarray(array.max())
        check_finite(array, low, high)
        self._see_extremes(float(low), float(high))
        flat = array.ravel(order="K")
        for first in range(0, flat.size, BLOCK):
            self._see_block(flat[first : first + BLOCK].astype(np.float64))

    def _see_extremes(self, low: float, high: float) -> None:
        self._batches += 1
        weight = max(self._momentum, 1 / self._batches)
        if self._batches == 1:
            self._moving_low, self._moving_high = low, high
        self._moving_low += weight * (low - self._moving_low)
        self._moving_high += weight * (high - self._moving_high)
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._bins.reach(self._low, self._high)

    def _see_block(self, block: Array) -> None:
        self._zeros += block.size - int(np.count_nonzero(block))
        self._bins.add(block)
        seen, count = self._count, self._count + block.size
        with np.errstate(over="ignore"):
            mean = float(block.mean())
            block -= mean
            apart = mean - self._mean
            self._mean += apart * (block.size / count)
            np.square(block, out=block)  # no dot(): waking BLAS's threads takes longer
            self._squares += float(block.sum()) + apart**2 * (seen * block.size / count)
        self._count = count

    @property
    def statistics(self) -> RangeStatistics:
        """What was seen so far; later batches do not change it."""
        is_known = self._count > 0
        return RangeStatistics(
            count=self._count,
            batches=self._batches,
            zeros=self._zeros,
            low=self._low if is_known else math.nan,
            high=self._high if is_known else math.nan,
            mean=self._mean if is_known else math.nan,
            std=math.sqrt(self._squares / self._count) if is_known else math.nan,
            moving_low=self._moving_low,
            moving_high=self._moving_high,
            histogram=self._bins.counts.copy(),
            first_bin=self._bins.first,
            bin_width=2.0**self._bins.exponent,
        )


class _Bins:
    """Counts in bins whose width is a power of two, and whose edges are its multiples.

    The width is the smallest that suffices for the extremes. When these move apart it doubles, and
    bins merge in pairs: so counts are always what they would be, had the width been this one from
    the beginning.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.exponent, self.first = SMALLEST_EXPONENT, 0

    def reach(self, low: float, high: float) -> None:
        """Make room for numbers between these."""
        exponent = max(self.exponent, _lowest_exponent(low, high))
        while (
            math.floor(math.ldexp(high, -exponent))
            - (first := math.floor(math.ldexp(low, -exponent)))
            >= BINS
        ):
            exponent += 1
        used = np.flatnonzero(self.counts)
        doublings = min(exponent - self.exponent, 63)
        moved = np.zeros(BINS, np.int64)
        np.add.at(moved, ((self.first + used) >> doublings) - first, self.counts[used])
        self.counts, self.exponent, self.first = moved, exponent, first

    def add(self, numbers: Array) -> None:
        """Count float64 numbers that there is room for."""
        indices = np.floor(numbers * math.ldexp(1, -self.exponent)).astype(np.int64) - self.first
        self.counts += np.bincount(indices, minlength=BINS)


def _lowest_exponent(low: float, high: float) -> int:
    """Return the exponent of the smallest sufficient bin width."""
    largest, span = max(abs(low), abs(high)), high / 2 - low / 2
    lowest = SMALLEST_EXPONENT
    if largest:
        lowest = max(lowest, math.frexp(largest)[1] - DIGITS)
    if span:
        lowest = max(lowest, math.frexp(span)[1] - BINS.bit_length() + 1)
    return lowest


# ---------------------------------------------------------------- choosing


def choose_range(
    statistics: RangeStatistics,
    method: str = "mse",
    *,
    bits: int = 8,
    symmetric: bool = False,
    percentile: float = 99.99,
) -> tuple[float, float]:
    """Return the range to quantize by: it contains zero, and is within the observed range.

    minmax: the whole observed range. moving_average: the average extremes of batches.
    percentile: 99.99 leaves out the lowest 0.01% and the highest 0.01% (symmetric: the 0.01% that
    are farthest from zero). mse: the least squared error of rounding and clipping. entropy: the
    least loss of information, after Migacz, *8-bit inference with TensorRT* (2017): the
    Kullback-Leibler divergence of the histogram, clipped, from what is left of it.

    For a symmetric quantization the farther end is what counts.

    >>> observer = RangeObserver()
    >>> observer.update([1.0, 2.0])
    >>> observer.update([-3.0, 4.0])
    >>> (
    ...     choose_range(observer.statistics, "minmax"),
    ...     choose_range(observer.statistics, "moving_average"),
    ... )
    ((-3.0, 4.0), (-1.0, 3.0))
    """
    value_limits(bits, symmetric)
    if method not in METHODS:
        raise SettingError(f"method={method!r}; choose one of {', '.join(METHODS)}")
    if not 50 < percentile <= 100:
        raise SettingError(f"percentile={percentile}; it lies above 50 and is at most 100")
    if not statistics.count:
        raise SettingError("no range can be chosen before anything was seen; update the observer")
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    if method == "moving_average":
        return _between(low, high, (statistics.moving_low, statistics.moving_high))
    if method == "percentile":
        return _between(low, high, _percentiles(statistics, percentile / 100, symmetric))
    if method == "minmax" or low == high:
        return low, high
    judge = _squared_errors if method == "mse" else _divergences
    return _least(
        lambda lows, highs: judge(statistics, lows, highs, bits=bits, symmetric=symmetric),
        (low, high),
        symmetric=symmetric,
    )


def _between(low: float, high: float, ends: tuple[float, float]) -> tuple[float, float]:
    """Return ends that contain zero, but nothing beyond low and high."""
    return max(low, min(ends[0], 0.0)), min(high, max(ends[1], 0.0))


def _percentiles(statistics: RangeStatistics, share: float, symmetric: bool) -> tuple[float, float]:
    """Return the numbers that `share` of all lie above, and below; within bins by interpolation."""
    bins, counts = statistics.first_bin + np.arange(BINS + 1), statistics.histogram
    if symmetric:
        # Zero is an edge, so a bin of negative numbers lies exactly upon one of positive numbers.
        folded = np.maximum(bins[:-1], -bins[1:])
        bins = folded.min() + np.arange(BINS + 1)
        counts = np.bincount(folded - bins[0], counts, minlength=BINS)
    high = _quantile(bins, counts, share)
    low = -high if symmetric else -_quantile(-bins[::-1], counts[::-1], share)
    return low * statistics.bin_width, high * statistics.bin_width


def _quantile(edges: Array, counts: Array, share: float) -> float:
    below = np.concatenate([[0], np.cumsum(counts)])
    return float(np.interp(share * below[-1], below, edges))


Judge = Callable[[Array, Array], Array]


def _least(judge: Judge, widest: tuple[float, float], *, symmetric: bool) -> tuple[float, float]:
    """Search for the ends that are judged best.

    Both are cut off at the same distance from zero first, then, without symmetry, each is moved
    alone while the other stays. What is best so far is always among what is tried, and comes first:
    it is left only for what is better.
    """
    low, high = widest
    reach = max(-low, high)

    def best(lows: Array, highs: Array) -> tuple[float, float]:
        lows, highs = np.broadcast_arrays(np.maximum(lows, low), np.minimum(highs, high))
        index = int(np.argmin(judge(lows, highs)))
        return float(lows[index]), float(highs[index])

    found = best(-reach * FACTORS, reach * FACTORS)
    if symmetric:
        distance = max(-found[0], found[1]) * FINE_FACTORS
        return best(-distance, distance)
    for factors in (*[FACTORS] * ROUNDS, FINE_FACTORS):
        about = widest if factors is FACTORS else found
        found = best(np.array([found[0]]), np.append(found[1], about[1] * factors))
        found = best(np.append(found[0], about[0] * factors), np.array([found[1]]))
    return found


def _inexact(statistics: RangeStatistics) -> Array:
    """Return the histogram without the zeros, which every range holds exactly."""
    counts = statistics.histogram.astype(np.float64)
    if statistics.zeros:
        counts[-statistics.first_bin] -= statistics.zeros
    return counts


def _squared_errors(
    statistics: RangeStatistics, lows: Array, highs: Array, *, bits: int, symmetric: bool
) -> Array:
    """Return the expected sum of squared errors for each range.

    With u = x / scale, the error of rounding and clipping is u - n, where n is the nearest whole
    number that there is a value for; its square has the integral n / 12 + (u - n)**3 / 3. Within a
    bin numbers count as evenly spread.
    """
    counts = _inexact(statistics)
    used = np.flatnonzero(counts)
    counts, edges = counts[used[0] : used[-1] + 1], statistics.edges[used[0] : used[-1] + 2]
    lowest, highest = value_limits(bits, symmetric)
    scale, zero_point = affine_parameters(lows, highs, bits=bits, symmetric=symmetric)
    step = scale.astype(np.float64)[:, None]
    offset = zero_point[:, None]
    ends = edges / step  # (ranges, edges)
    whole = np.minimum(np.maximum(np.rint(ends), lowest - offset), highest - offset)
    ends -= whole
    integral = whole / 12 + ends * ends * ends / 3
    width = statistics.bin_width / step
    return matmul(np.diff(integral) / width * step**2, counts)


def _divergences(
    statistics: RangeStatistics, lows: Array, highs: Array, *, bits: int, symmetric: bool
) -> Array:
    """Return the Kullback-Leibler divergence for each range, infinity where it is undefined.

    That is where there are fewer bins than quantized values.
    """
    counts = _inexact(statistics)
    edges = statistics.edges
    centers = (edges[:-1] + edges[1:]) / 2
    lowest, highest = value_limits(bits, symmetric)
    scales, zero_points = affine_parameters(lows, highs, bits=bits, symmetric=symmetric)
    widest = scales.max()
    divergences = np.full(len(scales), np.inf)
    for index, (scale, zero_point) in enumerate(zip(scales, zero_points, strict=True)):
        if scale < statistics.bin_width and scale != widest:
            continue
        values = np.rint(centers / np.float64(scale)) + int(zero_point)
        divergences[index] = _divergence(counts, values.astype(np.int64) - lowest, highest - lowest)
    return divergences


def _divergence(counts: Array, values: Array, highest: int) -> float:
    """Compare a clipped histogram with what is left of it in values from 0 to `highest`.

    What lies outside is clipped into the last bins, but values do not know that it came from
    there: so clipping costs, as does spreading a value evenly over the bins that it stands for.
    """
    inside = np.flatnonzero((values >= 0) & (values <= highest) & (counts > 0))
    if not len(inside):
        return math.inf
    held, own = values[inside], counts[inside]
    clipped = own.copy()
    clipped[0] += counts[: inside[0]].sum()
    clipped[-1] += counts[inside[-1] + 1 :].sum()
    spread = np.bincount(held, own) / np.maximum(np.bincount(held), 1)
    there = clipped / clipped.sum()
    left = spread[held] / own.sum()
    return float(np.sum(there * np.log(there / left)))
