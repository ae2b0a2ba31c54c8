"""Raw repeated measurements of one thing, and the statistics that are computed from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from tinytorch.codec import Coded
from tinytorch.errors import SettingError, check_number
from tinytorch.measure.estimate import Estimate

MILD_FENCE, SEVERE_FENCE = 1.5, 3.0
"""Tukey's fences, in interquartile ranges beyond the quartiles."""
MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""
SPREAD_LIMIT = 0.05
DRIFT_LIMIT = 0.03
"""Relative spread and drift from which on values are called unstable."""
ROUNDING = 1e-12
"""Relative error of a sum of probabilities; a tail that is larger by less is not larger."""
ENOUGH_TO_JUDGE = 4
"""Fewer values say nothing about stability: each half needs two."""


@dataclass(frozen=True)
class Outliers:
    """How many values lie outside of Tukey's fences. They are counted, never dropped."""

    low_severe: int
    low_mild: int
    high_mild: int
    high_severe: int

    @property
    def total(self) -> int:
        return self.low_severe + self.low_mild + self.high_mild + self.high_severe


@dataclass(frozen=True)
class Stability:
    """Whether the values of a measurement stayed where they were.

    `relative_spread` is the robust standard deviation (from the median absolute deviation) over
    the median, `drift` the relative change of the median from the first half to the last.
    """

    is_stable: bool
    relative_spread: float
    drift: float
    note: str


@dataclass(frozen=True)
class Samples(Coded):
    """Raw repeated measurements of one thing, in base units, in the order of the runs.

    `loops` is how many calls each value averages over.
    """

    name: str
    values: tuple[float, ...]
    unit: str = "s"
    loops: int = 1
    notes: tuple[str, ...] = ()

    strict = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(float(value) for value in self.values))
        object.__setattr__(self, "notes", tuple(self.notes))
        label = f"samples of {self.name!r}" if self.name else "samples"
        if not self.values:
            raise SettingError(f"{label} without a value; measure at least once")
        for position, value in enumerate(self.values):
            if not math.isfinite(value):
                raise SettingError(
                    f"{label} hold {value} at position {position}; drop or replace it"
                )
        if self.loops < 1:
            raise SettingError(f"{label} with loops={self.loops}; it must be at least 1")

    @cached_property
    def _sorted(self) -> npt.NDArray[np.float64]:
        return np.sort(np.array(self.values))

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float:
        return float(np.median(self._sorted))

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / self.count

    @property
    def std(self) -> float:
        """The standard deviation of the sample (n - 1); 0 for a single value."""
        return float(self._sorted.std(ddof=1)) if self.count > 1 else 0.0

    @property
    def minimum(self) -> float:
        return float(self._sorted[0])

    @property
    def maximum(self) -> float:
        return float(self._sorted[-1])

    def percentile(self, q: float) -> float:
        """Return the q-th percentile, from 0 to 100, interpolating linearly."""
        check_number("percentile", q, least=0, most=100)
        return float(np.percentile(self._sorted, q))

    def median_interval(self, confidence: float = 0.95) -> Estimate:
        """Return the median and an interval for the true one, from order statistics.

        It assumes independent values and nothing about their distribution. The coverage is the
        smallest possible one that reaches `confidence`; where there are too few values for that,
        the interval spans all of them and says which coverage it really has.
        """
        check_number("confidence", confidence, above=0, below=1)
        rank, coverage = _median_ranks(self.count, confidence)
        ordered = self._sorted
        low, high = float(ordered[rank]), float(ordered[-1 - rank])
        return Estimate(self.median, low, high, coverage, self.count)

    def percentile_interval(self, q: float, confidence: float = 0.95) -> Estimate:
        """Return a percentile and a two-sided interval for the true one, from order statistics.

        It assumes independent values and nothing about their distribution, and each end misses in
        at most half of what `confidence` leaves. Where there are too few values for an end, as for
        the 99th percentile of less than 368 values, that end is infinite; :func:`values_needed`
        says how many it takes. The interval for the 50th is :meth:`median_interval`, which in that
        case spans all values instead, with less coverage.
        """
        _check_percentile(q, confidence)
        below, upto, coverage = _percentile_ranks(self.count, q / 100, confidence)
        ordered = self._sorted
        low = float(ordered[below]) if below >= 0 else -math.inf
        high = float(ordered[upto]) if upto < self.count else math.inf
        # With a low confidence both ends may lie on one side of the interpolated value.
        value = min(max(self.percentile(q), low), high)
        return Estimate(value, low, high, coverage, self.count)

    @property
    def outliers(self) -> Outliers:
        first, third = np.percentile(self._sorted, (25, 75))
        mild, severe = MILD_FENCE * (third - first), SEVERE_FENCE * (third - first)
        values = self._sorted
        low_severe, high_severe = values < first - severe, values > third + severe
        low_mild = (values < first - mild) & ~low_severe
        high_mild = (values > third + mild) & ~high_severe
        return Outliers(
            *(int(each.sum()) for each in (low_severe, low_mild, high_mild, high_severe))
        )

    @property
    def stability(self) -> Stability:
        spread = _ratio(
            MAD_TO_SIGMA * float(np.median(abs(self._sorted - self.median))), self.median
        )
        half = self.count // 2
        if self.count < ENOUGH_TO_JUDGE:
            note = f"too few values ({self.count}) to judge stability"
            return Stability(False, spread, 0.0, note)
        first = float(np.median(self.values[:half]))
        drift = _ratio(float(np.median(self.values[-half:])) - first, first)
        # The difference of two medians moves by itself; only what exceeds that is a drift.
        by_chance = 3 * 1.25 * spread * math.sqrt(2 / half)
        has_drift = abs(drift) > max(DRIFT_LIMIT, by_chance)
        if has_drift:
            note = f"unstable: the values drift by {drift:+.1%} from the first half to the last"
        elif abs(spread) > SPREAD_LIMIT:
            note = f"unstable: the values spread by {spread:.1%} around their median"
        else:
            note = f"stable: spread {spread:.1%}, drift {drift:+.1%}"
        return Stability(not has_drift and abs(spread) <= SPREAD_LIMIT, spread, drift, note)

    def scaled(self, factor: float, unit: str) -> Samples:
        """Return the same measurements in another unit."""
        return replace(self, values=tuple(value * factor for value in self.values), unit=unit)

    def with_notes(self, *notes: str) -> Samples:
        """Return the same measurements with more notes."""
        return replace(self, notes=(*self.notes, *notes))


def values_needed(q: float, confidence: float = 0.95) -> int:
    """Return how many values an interval of the q-th percentile with two finite ends needs.

    >>> values_needed(99), values_needed(90), values_needed(50)
    (368, 36, 6)
    """
    _check_percentile(q, confidence)
    rarer = min(q, 100 - q) / 100
    # All values may lie on one side of the percentile: the chance of that must be small enough.
    needed = math.log((1 - confidence) / 2) / math.log1p(-rarer)
    return max(1, math.ceil(needed * (1 - ROUNDING)))


def _check_percentile(q: float, confidence: float) -> None:
    check_number("percentile", q, above=0, below=100)
    check_number("confidence", confidence, above=0, below=1)


def _ratio(part: float, whole: float) -> float:
    if whole == 0:
        return 0.0 if part == 0 else math.copysign(math.inf, part)
    return part / whole


@lru_cache(maxsize=256)
def _median_ranks(count: int, confidence: float) -> tuple[int, float]:
    """Return how many values to leave out at each end, and the coverage of what remains.

    The interval misses the median when at most `rank` of the values lie on one side of it, and
    the values on a side follow a binomial distribution with probability one half.
    """
    # Twenty standard deviations below the middle nothing is left to add up, even for huge counts.
    start = max(0, count // 2 - 10 * math.isqrt(count))
    total = 2**count
    rank, coverage, tail, ways = 0, 1 - 2 / total, 0, math.comb(count, start)
    for below in range(start, count // 2):
        tail += ways
        reached = 1 - 2 * tail / total
        if reached < confidence:
            break
        rank, coverage = below, reached
        ways = ways * (count - below) // (below + 1)
    return rank, max(0.0, coverage)


@lru_cache(maxsize=256)
def _percentile_ranks(count: int, share: float, confidence: float) -> tuple[int, int, float]:
    """Return the positions of the ends among the sorted values, and the coverage between them.

    The number of values below the percentile follows a binomial distribution. The end at a
    position `p` lies above the percentile when at most `p` values lie below that, and at or
    below it otherwise; positions beyond the values stand for infinity.
    """
    chances = _binomial(count, share)
    allowed = (1 - confidence) / 2 * (1 + ROUNDING)
    lower_tails = np.cumsum(chances)  # at most k values below
    upper_tails = np.cumsum(chances[::-1])[::-1]  # at least k values below
    below = int(np.searchsorted(lower_tails, allowed, side="right")) - 1
    # An end at a position misses when all values up to it, itself included, lie below.
    upto = int(np.count_nonzero(upper_tails[1:] > allowed))
    missed = (lower_tails[below] if below >= 0 else 0.0) + (
        upper_tails[upto + 1] if upto < count else 0.0
    )
    return below, upto, max(0.0, 1 - float(missed))


def _binomial(count: int, share: float) -> npt.NDArray[np.float64]:
    """Compute the binomial probabilities of 0 to `count`, from the ratios of neighbours."""
    k = np.arange(count)
    steps = np.log((count - k) / (k + 1)) + (math.log(share) - math.log1p(-share))
    logarithms = np.concatenate([[0.0], np.cumsum(steps)])
    weights: npt.NDArray[np.float64] = np.exp(logarithms - logarithms.max())
    return weights / weights.sum()


def student_t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution, by bisection of its distribution."""
    check_number("probability", probability, above=0, below=1)
    check_number("freedom", freedom, least=1)
    if probability < 0.5:
        return -student_t_quantile(1 - probability, freedom)
    low, high = 0.0, 1.0
    while _student_t_below(high, freedom) < probability:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        if _student_t_below(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def _student_t_below(t: float, freedom: int) -> float:
    """Return the probability below `t`, by the finite series (Abramowitz and Stegun, 26.7.3-4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine_squared = math.cos(angle) ** 2
    term, total = 1.0, 0.0
    start = freedom % 2
    for step in range(start, freedom - 1, 2):
        total += term
        term *= cosine_squared * (step + 1) / (step + 2)
    if start:
        inner = angle + math.sin(angle) * math.cos(angle) * total
        return 0.5 + inner / math.pi
    return 0.5 + math.sin(angle) * total / 2
