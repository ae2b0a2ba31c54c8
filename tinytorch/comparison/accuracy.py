"""Is a candidate as accurate as the baseline? Paired non-inferiority on scores per example."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.codec import Coded
from tinytorch.errors import SettingError, check_number
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.measure.samples import student_t_quantile

# ---------------------------------------------------------------- bounds for the difference of two
# shares that were observed on the same examples
#
# T. Tango, "Equivalence test and confidence interval for the difference in proportions for the
# paired-sample design", Statistics in Medicine 17, 1998: a score interval, which keeps a width
# where the two agree on every example. Here with a continuity correction, because without one its
# one-sided error exceeds what it promises (6.7% instead of 5% for 269 examples and a margin of 1%).

CONTINUITY = 0.5
"""Half of the step by which gained minus lost can change."""


def paired_difference_bounds(
    gained: float, lost: float, count: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the lower and the upper one-sided bound of a difference of paired shares.

    Of `count` examples the second side has `gained` that the first side has not, and has `lost`
    some that the first one has. Each bound holds with `confidence` on its own. Rates that are
    continued to another count need not give whole numbers.
    """
    if gained < 0 or lost < 0 or count < 1 or gained + lost > count:
        raise SettingError(f"{gained} gained and {lost} lost of {count}; that cannot be")
    check_number("confidence", confidence, above=0.5, below=1)
    low = _lower_bound(gained, lost, count, confidence)
    return low, -_lower_bound(lost, gained, count, confidence)


def untouched_share_bound(count: int, confidence: float) -> float:
    """Return the exact upper bound of the share of cases unseen among `count`."""
    return -math.expm1(math.log1p(-confidence) / count)


def _lower_bound(gained: float, lost: float, count: int, confidence: float) -> float:
    if gained == lost == 0:  # the exact bound, which is closer than the approximation
        return -untouched_share_bound(count, confidence)
    limit = NormalDist().inv_cdf(confidence)
    low, high = -1.0, (gained - lost) / count
    while (middle := (low + high) / 2) not in (low, high):
        if _score(gained, lost, count, middle) > limit:
            low = middle
        else:
            high = middle
    return low


def _score(gained: float, lost: float, count: int, difference: float) -> float:
    """Return how many standard errors the observed difference lies above an assumed one."""
    excess = gained - lost - count * difference - CONTINUITY
    variance = count * (
        2 * _lost_share(gained, lost, count, difference) + difference * (1 - difference)
    )
    if variance <= 0:
        return math.copysign(math.inf, excess)
    return excess / math.sqrt(variance)


def _lost_share(gained: float, lost: float, count: int, difference: float) -> float:
    """Return the most likely share of lost examples under an assumed difference of the shares."""
    linear = (2 * count - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    root = math.sqrt(max(0.0, linear * linear - 8 * count * constant))
    return (root - linear) / (4 * count)


# ---------------------------------------------------------------- is a candidate as accurate as
# the baseline? Paired non-inferiority on scores per example

NOT_WORSE, WORSE = "not worse", "worse"

SKEW_FACTOR = 25
"""Cochran's rule: a mean is close to normal from 25 times its squared skewness values on."""
MOST_FREEDOM = 2000
"""Beyond, Student's quantile changes by less than 0.1%; the larger one is used."""
FEW_EXAMPLES = 30
"""With fewer, a long tail of the differences may hide."""
MOST_FEW = 30
"""Of so many losses and more, the normal distribution knows the frequency."""
ALIKE = 1e-6
"""Differences that spread by less than this share of the largest possible one are the same."""
ROUNDED = 1e-5
"""A share that is a hair above 1, as a cosine of float32 may be, is one."""
UNSEEN_TIMES = 20
"""How many times the largest difference an example may lose unseen, where scores have no end."""
OTHER_SCALE = 20
"""From this factor on, scores beside ones between 0 and 1 are likely percentages."""
MOST_EXAMPLES = 10**9
"""No number of examples is named beyond."""
ROUND_MARGINS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1)
"""Margins that a person would choose; a larger one is not suggested."""


@dataclass(frozen=True)
class AccuracyComparison(Coded):
    """The scores of two models on the same examples, higher is better, and what follows.

    The candidate is *not worse* when `low`, the one-sided lower bound of its mean score minus the
    baseline's, lies above ``-margin``; *worse* when the upper bound `high` lies below; otherwise
    it is *inconclusive*: the examples are too few. Each bound holds with `confidence` on its own.
    `margin` is in the unit of the scores: 0.01 is one percentage point for scores of 0 and 1.
    """

    baseline_scores: tuple[float, ...]
    candidate_scores: tuple[float, ...]
    margin: float = 0.01
    confidence: float = 0.95
    metric: str = "accuracy"

    also_written = ("verdict", "examples_needed", "metric")
    nonfinite = "text"

    def __post_init__(self) -> None:
        baseline = _as_scores("baseline", self.baseline_scores)
        candidate = _as_scores("candidate", self.candidate_scores)
        object.__setattr__(self, "baseline_scores", _as_tuple(baseline))
        object.__setattr__(self, "candidate_scores", _as_tuple(candidate))
        if len(baseline) != len(candidate):
            raise SettingError(
                f"{len(baseline)} scores of the baseline but {len(candidate)} of the candidate; "
                "score both on the same examples, in the same order"
            )
        check_number("margin", self.margin, least=0)
        check_number("confidence", self.confidence, above=0.5, below=1)
        _check_baseline(baseline)
        _check_scale(baseline, candidate)

    # ------------------------------------------------------------ what was observed

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.baseline_scores)

    @property
    def baseline_mean(self) -> float:
        return _mean(self.baseline_scores)

    @property
    def candidate_mean(self) -> float:
        """Mean score of the candidate; NaN when one of its scores is no finite number."""
        return _mean(self.candidate_scores) if self.failed == 0 else math.nan

    @property
    def difference(self) -> float:
        """Mean score of the candidate minus that of the baseline."""
        return _mean(self._differences.tolist()) if self.failed == 0 else math.nan

    @cached_property
    def failed(self) -> int:
        """Examples for which the candidate's score is no finite number."""
        return int((~np.isfinite(self.candidate_scores)).sum())

    @cached_property
    def is_binary(self) -> bool:
        """Whether every score is 0 or 1."""
        return set(self.baseline_scores) | set(self.candidate_scores) <= {0.0, 1.0}

    @property
    def gained(self) -> int | None:
        """Examples that only the candidate has right; None unless scores are 0 and 1."""
        return int((self._differences > 0).sum()) if self.is_binary else None

    @property
    def lost(self) -> int | None:
        """Examples that only the baseline has right; None unless scores are 0 and 1."""
        return int((self._differences < 0).sum()) if self.is_binary else None

    @cached_property
    def _differences(self) -> npt.NDArray[np.float64]:
        return np.array(self.candidate_scores) - np.array(self.baseline_scores)

    # ------------------------------------------------------------ what follows

    @property
    def low(self) -> float:
        """One-sided lower bound of the difference."""
        return self._bounds[0]

    @property
    def high(self) -> float:
        """One-sided upper bound of the difference."""
        return self._bounds[1]

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        return (-math.inf, -math.inf) if self.failed else self._bounds_of(self.n)

    def _bounds_of(self, count: int) -> tuple[float, float]:
        """Return both bounds if what was observed had been observed on `count` examples."""
        if self.is_binary:
            gained, lost = ((each or 0) * count / self.n for each in (self.gained, self.lost))
            lost = min(lost, count - gained)  # rounding may add up to more than all
            return paired_difference_bounds(gained, lost, count, confidence=self.confidence)
        low, high = (
            _lower_bound_of_mean(each, self._reach, self.confidence, count)
            for each in (self._differences, -self._differences)
        )
        return low, -high

    @cached_property
    def _reach(self) -> float:
        """How much an example may lose that was not seen.

        Scores between 0 and 1 may fall to 0. Others, which have no end, may lose many times the
        largest difference that was seen, but not more than their range; all of it where nothing
        differs.
        """
        both = self.baseline_scores + self.candidate_scores
        low, high = min(both), max(both)
        if low < high and _are_shares(np.array(self.baseline_scores)):
            return high - min(low, 0.0)
        largest = float(np.abs(self._differences).max())
        is_same = largest <= ALIKE * (high - low)
        return high - low if is_same else min(high - low, UNSEEN_TIMES * largest)

    @property
    def verdict(self) -> str:
        """`not worse`, `worse` or `inconclusive`; a candidate without a score is worse."""
        return WORSE if self.failed else self._verdict_of((self.low, self.high))

    def _verdict_of(self, bounds: tuple[float, float]) -> str:
        low, high = bounds
        if high < -self.margin:
            return WORSE
        return NOT_WORSE if low > -self.margin else INCONCLUSIVE

    @cached_property
    def examples_needed(self) -> int | None:
        """How many examples would decide if the observed rates or spread continued.

        None where the verdict is known, or where no number would decide: the observed difference
        is the margin itself.
        """
        if self.verdict != INCONCLUSIVE:
            return None
        few, many = self.n, 2 * self.n
        while self._verdict_of(self._bounds_of(many)) == INCONCLUSIVE:
            few, many = many, 2 * many
            if few > MOST_EXAMPLES:
                return None
        while many - few > 1:
            middle = (few + many) // 2
            if self._verdict_of(self._bounds_of(middle)) == INCONCLUSIVE:
                few = middle
            else:
                many = middle
        return many

    @property
    def evidence(self) -> str:
        """What the scores show: ``0 lost, 1 gained of 168 (95% bound -1.32%, margin 1%)``."""
        if self.failed:
            return f"{self.failed} of {self.n} scores are no finite numbers"
        worst = self.high if self.verdict == WORSE else self.low
        write = _percent if self.is_binary else _number
        bounds = f"{self.confidence:.0%} bound {write(worst)}, margin {write(self.margin)}"
        if self.is_binary:
            return f"{self.lost} lost, {self.gained} gained of {self.n} ({bounds})"
        return f"difference {self.difference:+.3g} ({bounds}, n={self.n})"

    @property
    def remedy(self) -> str:
        """How many examples would decide, and under which assumption; or nothing."""
        if self.verdict != INCONCLUSIVE:
            return ""
        if self.examples_needed is None:
            return "more examples would not help: the observed difference equals the margin"
        if not self._differences.any():
            return f"{self.examples_needed} examples would decide if nothing is lost"
        found = f"that it is {WORSE if self.difference < -self.margin else NOT_WORSE}"
        seen = "these rates continue" if self.is_binary else "this spread continues"
        return f"about {self.examples_needed} examples would establish {found} if {seen}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before believing the numbers."""
        if self.failed:
            first = int(np.flatnonzero(~np.isfinite(self.candidate_scores))[0])
            return (
                f"{self.failed} of {self.n} scores of the candidate are not finite, the first "
                f"({self.candidate_scores[first]}) for example {first}; that counts as worse",
            )
        alike = ALIKE * self._reach
        notes = [_about_differences(self._differences, alike=alike, is_binary=self.is_binary)]
        notes.append(_about_smaller_scale(self.baseline_scores, self.candidate_scores))
        return tuple(note for note in notes if note)

    # ------------------------------------------------------------ storing


def is_equally_good(accuracy: AccuracyComparison, *, has_same_outputs: bool) -> bool:
    """Return whether outputs and scores are the same: then no sample is too small to tell."""
    return has_same_outputs and accuracy.baseline_scores == accuracy.candidate_scores


def compare_accuracy(
    baseline_scores: npt.ArrayLike,
    candidate_scores: npt.ArrayLike,
    *,
    margin: float = 0.01,
    confidence: float = 0.95,
    metric: str = "accuracy",
) -> AccuracyComparison:
    """Compare scores per example of two models, higher is better; see AccuracyComparison.

    Scores of 0 and 1 get a score interval for paired shares, which never takes a few examples
    without a difference for certainty. Others get Student's interval for the mean difference.

    >>> found = compare_accuracy([1, 0, 1, 1] * 100, [1, 0, 1, 1] * 100)
    >>> found.verdict, round(found.low, 4)
    ('not worse', -0.0075)
    """
    baseline = _as_scores("baseline", baseline_scores)
    candidate = _as_scores("candidate", candidate_scores)
    return AccuracyComparison(_as_tuple(baseline), _as_tuple(candidate), margin, confidence, metric)


# ---------------------------------------------------------------- how many examples it takes


def examples_if_nothing_is_lost(margin: float, *, confidence: float = 0.95) -> int | None:
    """Return the fewest examples that establish a margin when no answer changes; None for 0.

    >>> examples_if_nothing_is_lost(0.01)
    299
    """
    if margin <= 0:
        return None
    if margin >= 1:
        return 1
    return math.floor(math.log1p(-confidence) / math.log1p(-margin)) + 1


def about_sample_size(
    scores: npt.ArrayLike, *, margin: float, confidence: float = 0.95, setting: str = "margin"
) -> str:
    """Return what these examples cannot establish whatever the candidate, or what decides, or "".

    Scores between 0 and 1 need a minimum even when no answer changes: an unseen example may lose
    all of its score. For scores without bounds no number can be told before a candidate is scored;
    how far its differences may spread at the most can. `setting` names what sets the margin.
    """
    values = _as_scores("baseline", scores)
    count = len(values)
    examples = "1 example" if count == 1 else f"{count} examples"
    is_binary = not set(values.tolist()) - {0.0, 1.0}
    if count == 1 and not is_binary:
        return "1 example cannot establish any margin; score more examples"
    if not _are_shares(values):
        spread = margin * math.sqrt(count) / _student(confidence, min(count - 1, MOST_FREEDOM))
        return (
            f"{examples} with scores that have no bounds establish a margin of {margin:g} only if "
            f"a candidate's differences spread by less than about {spread:.2g} (standard deviation)"
        )
    reach = 1.0 if is_binary else float(values.max())
    reached = untouched_share_bound(count, confidence) * reach
    if reached < margin:
        return ""
    needed = examples_if_nothing_is_lost(margin / reach, confidence=confidence)
    ways = [] if needed is None else [f"at least {needed} are needed if nothing is lost"]
    if rounder := next((each for each in ROUND_MARGINS if each > reached), None):
        ways.append(f"{setting} {100 * rounder:g}%")
    return f"{examples} cannot establish a {100 * margin:g}% margin; {', or '.join(ways)}".rstrip(
        "; "
    )


def _are_shares(baseline: npt.NDArray[np.float64]) -> bool:
    """Return whether scores lie between 0 and 1, where an example can lose no more than its own."""
    return bool(baseline.min() >= 0 and baseline.max() <= 1 + ROUNDED)


# ---------------------------------------------------------------- bounds of a mean


def _lower_bound_of_mean(
    differences: npt.NDArray[np.float64], reach: float, confidence: float, count: int
) -> float:
    """Return a one-sided lower bound of the mean of differences, as if seen on `count` examples.

    It is the lowest of three. Student's, or the one that also knows about skewness (P. Hall, "On
    the removal of skewness by transformation", J. R. Statist. Soc. B 54, 1992), where that is
    lower. What it would be if the largest losses that were seen were as frequent as their number
    allows. And what it would be if the examples that may not have turned up lost `reach`: no test
    that sees no such loss knows better.
    """
    mean = float(differences.mean())
    if count == 1 or reach == 0:
        return -math.inf
    unseen = mean - untouched_share_bound(count, confidence) * reach
    if np.ptp(differences) <= ALIKE * reach:
        return unseen
    return min(
        unseen,
        _bound_of_usual(differences, confidence, count),
        _bound_of_few(differences, confidence, count),
    )


def _bound_of_usual(differences: npt.NDArray[np.float64], confidence: float, count: int) -> float:
    """Return Student's bound or Hall's: right where no few examples make up the mean."""
    reach = _student(confidence, min(count - 1, MOST_FREEDOM)) / math.sqrt(count)
    skewness = _skewness(differences)
    if skewness < 0:
        bent = _cube_root_less_one(skewness * (reach - skewness / (6 * count)))
        reach = max(reach, 3 / skewness * bent)
    spread = float(differences.std()) * math.sqrt(count / (count - 1))
    return float(differences.mean()) - reach * spread


def _bound_of_few(differences: npt.NDArray[np.float64], confidence: float, count: int) -> float:
    """Return the bound if the k largest losses were more frequent, for the k where it is lowest.

    Their frequency has Poisson's upper bound, with the quantile of E. B. Wilson and M. M. Hilferty
    ("The distribution of chi-square", PNAS 17, 1931).
    """
    n = len(differences)
    most = min(MOST_FEW * n // count, n - 1)
    if not most:
        return math.inf
    seen = np.arange(1, most + 1)
    sums = np.cumsum(np.sort(np.partition(differences, most - 1)[:most]))
    falls = sums / seen - (differences.sum() - sums) / (n - seen)  # of those, below the others
    rate = seen * (count / n) + 1
    root = 1 - 1 / (9 * rate) + NormalDist().inv_cdf(confidence) / (3 * np.sqrt(rate))
    more = np.maximum(rate * root**3 / count - seen / n, 0)
    return float(differences.mean() + (more * falls).min())


def _cube_root_less_one(more: float) -> float:
    """Compute the cube root of 1 + `more`, less 1, accurately for small numbers."""
    if more > -0.5:
        return math.expm1(math.log1p(more) / 3)
    return float(np.cbrt(1 + more)) - 1


@lru_cache(maxsize=64)
def _student(confidence: float, freedom: int) -> float:
    return student_t_quantile(confidence, freedom)


def _is_too_skewed(skewness: float, count: int) -> bool:
    return count < SKEW_FACTOR * skewness**2


def _skewness(values: npt.NDArray[np.float64]) -> float:
    centred = values - values.mean()
    spread = float(np.abs(centred).max())
    if spread == 0:
        return 0.0
    scaled = centred / spread
    return float((scaled**3).mean() / (scaled**2).mean() ** 1.5)


# ---------------------------------------------------------------- checks and notes


def _as_scores(side: str, scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    try:
        array = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise SettingError(f"the scores of the {side} are no numbers: {error}") from error
    if array.ndim != 1:
        raise SettingError(
            f"the scores of the {side} have shape {array.shape}; one number per example is needed"
        )
    if not len(array):
        raise SettingError(f"the {side} has no scores; evaluate it on at least one example")
    return array


def _as_tuple(scores: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """Convert scores to Python floats.

    Right and wrong are the same two objects for all examples: many comparisons of many examples
    are held at once, and this takes a quarter of the memory.
    """
    if not ((scores == 0) | (scores == 1)).all():
        return tuple(scores.tolist())
    return tuple(map((0.0, 1.0).__getitem__, scores.astype(np.uint8).tobytes()))


def _check_baseline(baseline: npt.NDArray[np.float64]) -> None:
    wrong = np.flatnonzero(~np.isfinite(baseline))
    if len(wrong):
        raise SettingError(
            f"the baseline's score of example {wrong[0]} is {baseline[wrong[0]]}; fix the "
            "evaluation, or leave the example out for both sides"
        )


def _check_scale(baseline: npt.NDArray[np.float64], candidate: npt.NDArray[np.float64]) -> None:
    """Refuse a candidate in percent beside a baseline in fractions: it would always pass."""
    finite = candidate[np.isfinite(candidate)]
    is_fraction = bool((baseline >= 0).all() and (baseline <= 1).all() and baseline.any())
    if is_fraction and len(finite) and finite.max() >= OTHER_SCALE * baseline.max():
        raise SettingError(
            f"the scores are on different scales: up to {baseline.max():g} for the baseline, up "
            f"to {finite.max():g} for the candidate; is one of them in percent?"
        )


def _about_smaller_scale(baseline: tuple[float, ...], candidate: tuple[float, ...]) -> str:
    is_fraction = min(candidate) >= 0 and 0 < max(candidate) <= 1
    if is_fraction and max(baseline) >= OTHER_SCALE * max(candidate):
        return (
            f"the scores of the baseline go up to {max(baseline):g}, those of the candidate to "
            f"{max(candidate):g}; is one of them in percent?"
        )
    return ""


def _about_differences(
    differences: npt.NDArray[np.float64], *, alike: float, is_binary: bool
) -> str:
    count = len(differences)
    if count == 1:
        return "n=1: inconclusive; score more examples"
    if np.ptp(differences) <= alike:
        seen = "all scores differ alike" if differences.any() else "no score differs"
        return f"{seen} on {count} examples; the bound covers unseen examples"
    if is_binary:
        return ""
    if _is_too_skewed(_skewness(differences), count):
        return (
            f"few of the {count} examples dominate the mean difference: approximate bounds; "
            "score more examples"
        )
    if count < FEW_EXAMPLES:
        return f"n={count} may miss a long tail of losses; score more examples"
    return ""


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _mean(scores: Any) -> float:
    return math.fsum(scores) / len(scores)
