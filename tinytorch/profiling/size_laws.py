"""Laws through numbers at several sizes: exact ones for counts, fitted ones for measurements.

A trend is what a law says about time, FLOPs or memory at another size.

Every law is a sum of terms ``coefficient * size ** power``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tinytorch.codec import Coded
from tinytorch.core.kernels.backend import matmul
from tinytorch.errors import SettingError, check_number
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Samples, student_t_quantile

Terms = tuple[tuple[float, float], ...]
Array = npt.NDArray[np.float64]

CONFIDENCE = 0.95
LEAST_SIZES = 3
"""Fewer sizes leave nothing to judge a law by."""
ENOUGH_FOR_THREE = 5
"""With fewer sizes a law of three terms explains noise as well as growth."""
BEND = 0.1
"""Sizes whose exponent differs by more from that of the largest two follow another law."""
SUPPORTS = ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2))
"""Powers of a polynomial, the simplest first."""
EXACT, POWER = "exact polynomial", "power law"
FIXED = "fixed part"
CLEARLY = 0.8
"""Another law replaces the power law where its error is at most this share of the other's."""
RIVAL = 3.0
"""Laws are distinguished if their errors differ by more than this share, over the sizes to spare.

Chosen by simulation (see the tests): smaller ones let intervals miss too often.
"""
NO_ERROR = 1e-9
"""Smaller relative errors are rounding."""
LEAST_NOISE = 0.005
"""Relative errors of medians below this do not make one more credible than another."""
STEPS = 6
"""Relative errors depend on the fit itself; this many repetitions converge."""


@dataclass(frozen=True)
class Law(Coded):
    """A law for the numbers at the sizes `fitted`, and where it expects one at another size.

    `interval` is a prediction interval: None if nothing is left to judge the law by, without width
    if the law is exact. `exponent` is the local one at the largest size, which for a power law is
    the same everywhere. `error` is by how much sizes are missed that are left out one by one, the
    root of the mean square of the relative differences. `rivals` are laws that miss by about as
    much; the interval covers theirs too.
    """

    name: str
    terms: Terms
    fitted: tuple[int, ...]
    interval: Estimate | None
    exponent: float
    exponent_interval: Estimate | None
    formula: str = ""
    error: float | None = None
    power_law_error: float | None = None
    rivals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    also_written = ("interval.ends", "exponent_interval.ends")
    renames: ClassVar = {
        "interval.ends": "interval",
        "interval": None,
        "exponent_interval.ends": "exponent_interval",
        "exponent_interval": None,
    }

    @property
    def is_exact(self) -> bool:
        return self.name == EXACT

    def value(self, size: float) -> float:
        """Return what the law says about a size."""
        return _sum(self.terms, size)


def _sum(terms: Terms, size: float) -> float:
    return math.fsum(coefficient * size**power for coefficient, power in terms)


def _growth(terms: Terms) -> Terms:
    """Return the derivative by the logarithm of the size."""
    return tuple((coefficient * power, power) for coefficient, power in terms)


# ---------------------------------------------------------------- counts, which have no noise


def exact_polynomial(
    sizes: Sequence[int], counts: Sequence[int], *, at: int, constant: int = 0
) -> Law | None:
    """Return the simplest polynomial of degree two at most that gives all counts to the last digit.

    None if there is no such polynomial, or no size to spare that confirms it. `constant` is a part
    of the counts that does not grow; it is in the formula, but neither in the terms nor in the
    exponent.
    """
    grown = [Fraction(count - constant) for count in counts]
    for powers in SUPPORTS:
        used = len(powers)
        if len(sizes) < max(LEAST_SIZES, used + 1):
            continue
        found = _solve([[Fraction(n) ** p for p in powers] for n in sizes[-used:]], grown[-used:])
        pairs = list(zip(found, powers, strict=True))
        told = [sum((c * n**p for c, p in pairs), Fraction(0)) for n in (*sizes, at)]
        if told[:-1] == grown and told[-1] > 0:
            terms = tuple((float(c), float(p)) for c, p in pairs)
            exponent = _sum(_growth(terms), sizes[-1]) / _sum(terms, sizes[-1])
            value = float(told[-1])
            return Law(
                EXACT,
                terms,
                tuple(sizes),
                interval=Estimate.counted(value),
                exponent=exponent,
                exponent_interval=Estimate.counted(exponent),
                formula=_formula(pairs, constant),
            )
    return None


def _solve(rows: list[list[Fraction]], values: Sequence[Fraction]) -> list[Fraction]:
    """Solve a small system without rounding. Powers of different sizes never depend on another."""
    rows = [[*row, value] for row, value in zip(rows, values, strict=True)]
    for column in range(len(rows)):
        pivot = rows[column] = [item / rows[column][column] for item in rows[column]]
        for index, row in enumerate(rows):
            if index != column:
                rows[index] = [a - row[column] * b for a, b in zip(row, pivot, strict=True)]
    return [row[-1] for row in rows]


def _formula(pairs: list[tuple[Fraction, int]], constant: int) -> str:
    coefficients = {power: coefficient for coefficient, power in pairs}
    coefficients[0] = coefficients.get(0, Fraction(0)) + constant
    letters = {0: "", 1: " n", 2: " n^2"}
    written = ""
    for power, coefficient in sorted(coefficients.items()):
        if coefficient:
            sign = "-" if coefficient < 0 else "+"
            written += f" {sign} {_number(abs(coefficient))}{letters[power]}"
    first, rest = written[:3], written[3:]
    return f"-{rest}" if first == " - " else rest


def _number(number: Fraction) -> str:
    whole = f"{number.numerator:,}"
    return whole if number.denominator == 1 else f"{whole}/{number.denominator:,}"


# ---------------------------------------------------------------- a power law alone

NOTABLE_DIFFERENCE = 0.15
"""A local exponent that differs from the fitted one by more bends away from a power law."""
FAR = 10.0
"""Beyond this many times the largest size a power law is more hope than evidence."""


@dataclass(frozen=True)
class ScalingPrediction:
    """What ``value = factor * size ** exponent``, fitted to measurements, gives at a size.

    `interval` is where a new measurement at that size is expected (a prediction interval),
    `residuals` are natural logarithms of measured over fitted, value by value.
    """

    at: float
    value: float
    interval: Estimate
    exponent: float
    exponent_interval: Estimate
    factor: float
    residuals: tuple[float, ...]
    notes: tuple[str, ...] = ()


def predict_scaling(
    sizes: Sequence[float],
    values: Sequence[float] | Sequence[Sequence[float]],
    *,
    at: float,
    confidence: float = 0.95,
) -> ScalingPrediction:
    """Fit a power law by least squares on logarithms and say what it gives at size `at`.

    `values` has one measurement per size, or a list of repeated ones. The intervals assume errors
    of equal relative size, and a power law also at `at`; a note says when the largest sizes do not
    follow the fit. Two measurements determine the law without a rest to judge it by, so their
    intervals are infinite.

    >>> found = predict_scaling([128, 256, 512], [10, 40, 160], at=2048)
    >>> round(found.value), round(found.exponent, 6)
    (2560, 2.0)
    """
    x, y = _logarithms(sizes, values, at)
    check_number("confidence", confidence, above=0, below=1)
    center, spread = x.mean(), float(((x - x.mean()) ** 2).sum())
    exponent = float(((x - center) * y).sum() / spread)
    intercept = float(y.mean() - exponent * center)
    residuals = y - (intercept + exponent * x)
    freedom = len(x) - 2
    distance = math.log(at) - center
    predicted = intercept + exponent * math.log(at)
    if freedom:
        sigma = math.sqrt(float((residuals**2).sum()) / freedom)
        reach = student_t_quantile((1 + confidence) / 2, freedom) * sigma
        of_exponent = reach / math.sqrt(spread)
        of_value = reach * math.sqrt(1 + 1 / len(x) + distance**2 / spread)
    else:
        of_exponent = of_value = math.inf
    return ScalingPrediction(
        at=float(at),
        value=_exp(predicted),
        interval=Estimate(
            _exp(predicted),
            _exp(predicted - of_value),
            _exp(predicted + of_value),
            confidence,
            len(x),
        ),
        exponent=exponent,
        exponent_interval=Estimate(
            exponent, exponent - of_exponent, exponent + of_exponent, confidence, len(x)
        ),
        factor=_exp(intercept),
        residuals=tuple(float(each) for each in residuals),
        notes=_bends(x, y, exponent, at),
    )


def _logarithms(
    sizes: Sequence[float], values: Sequence[float] | Sequence[Sequence[float]], at: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Check everything and give the logarithms, one pair for each measurement."""
    if len(sizes) != len(values):
        raise SettingError(f"{len(sizes)} sizes but {len(values)} values; give one per size")
    repeated = [np.atleast_1d(np.asarray(value, dtype=float)).ravel() for value in values]
    if any(len(each) == 0 for each in repeated):
        raise SettingError("a size without a value; measure it or leave it out")
    x = np.repeat(np.asarray(sizes, dtype=float), [len(each) for each in repeated])
    y = np.concatenate(repeated) if repeated else np.empty(0)
    if len(set(x.tolist())) < 2:
        raise SettingError(f"sizes {list(sizes)}; a trend needs at least two different sizes")
    for name, numbers in (("size", x), ("value", y), ("at", np.array([float(at)]))):
        wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
        if len(wrong):
            raise SettingError(f"{name} {wrong[0]:g}; a power law needs positive numbers")
    return np.log(x), np.log(y)


def _bends(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], exponent: float, at: float
) -> tuple[str, ...]:
    notes = []
    sizes = np.unique(x)
    if len(x) == 2:
        notes.append("two measurements leave nothing to estimate the error from: no interval")
    before, last = (float(np.median(y[x == size])) for size in sizes[-2:])
    local = (last - before) / float(sizes[-1] - sizes[-2])
    if len(sizes) > 2 and abs(local - exponent) > NOTABLE_DIFFERENCE:
        notes.append(
            f"not a pure power law: between the two largest sizes the exponent is {local:.2f}, "
            f"in the fit {exponent:.2f}; measure nearer to the size that you ask about"
        )
    largest, smallest = math.exp(sizes[-1]), math.exp(sizes[0])
    if at > FAR * largest or at < smallest / FAR:
        notes.append(f"{at:g} is far from the measured sizes, {smallest:g} to {largest:g}")
    return tuple(notes)


def tail_power_law(sizes: Sequence[int], values: Sequence[float], *, at: int) -> Law:
    """Fit a power law to the sizes from which on the values follow one."""
    start = 0
    while True:
        kept, numbers = sizes[start:], values[start:]
        found = predict_scaling(kept, numbers, at=at, confidence=CONFIDENCE)
        local = math.log(numbers[-1] / numbers[-2]) / math.log(kept[-1] / kept[-2])
        if len(kept) <= LEAST_SIZES or abs(local - found.exponent) <= BEND:
            break
        start += 1
    left_out = ", ".join(map(str, sizes[:start]))
    bend = [f"smaller sizes follow another law: {left_out} not in the fit"] if start else []
    is_judged = len(kept) >= LEAST_SIZES
    return Law(
        POWER,
        ((found.factor, found.exponent),),
        tuple(kept),
        interval=found.interval if is_judged else None,
        exponent=found.exponent,
        exponent_interval=found.exponent_interval if is_judged else None,
        notes=(*bend, *found.notes) if is_judged else (),
    )


# ---------------------------------------------------------------- measurements, which have noise


@dataclass(frozen=True)
class _Fit:
    """A law with its errors: relative ones, that is, of natural logarithms."""

    name: str
    terms: Terms
    exponent: float
    error: float
    reach: float
    exponent_reach: float


def fit_law(
    sizes: Sequence[int],
    values: Sequence[float],
    *,
    at: int,
    noise: Sequence[float] | None = None,
    work: Terms | None = None,
) -> Law:
    """Fit several laws to measurements, and take the one that tells best what it has not seen.

    These are a power law and, with a fixed part that is not negative, laws that grow with the
    `work` (the FLOPs), with the size, and with the size and its square. `noise` is the relative
    error of each value; noisier ones weigh less. A law is judged by the sizes that are left out of
    the fit, one by one. The interval rests on that error too, and spans those of all laws that
    cannot be told from the best.
    """
    trial = _Trial(np.asarray(sizes, float), np.asarray(values, float), at, *_weights(sizes, noise))
    power = trial.power_law()
    if len(sizes) < LEAST_SIZES:
        why = "two sizes leave nothing to estimate the error from: no interval"
        return Law(
            POWER, power.terms, tuple(sizes), None, power.exponent, None, notes=(why, *_far(trial))
        )
    fits = [power, *trial.laws_with_a_fixed_part(work)]
    best = min(fits, key=lambda fit: fit.error)
    if power.error < NO_ERROR or best.error > CLEARLY * power.error:
        best = power
    limit = (1 + RIVAL / (len(sizes) - 2)) * best.error
    rivals = [fit for fit in fits if fit is not best and fit.error <= limit]
    logs = [(math.log(_sum(fit.terms, at)), fit.reach) for fit in (best, *rivals)]
    low = min(middle - reach for middle, reach in logs)
    high = max(middle + reach for middle, reach in logs)
    exponent, reach = best.exponent, best.exponent_reach
    return Law(
        best.name,
        best.terms,
        tuple(sizes),
        interval=Estimate(_exp(logs[0][0]), _exp(low), _exp(high), CONFIDENCE, len(sizes)),
        exponent=exponent,
        exponent_interval=Estimate(
            exponent, exponent - reach, exponent + reach, CONFIDENCE, len(sizes)
        ),
        error=best.error,
        power_law_error=power.error,
        rivals=tuple(fit.name for fit in rivals),
        notes=_far(trial),
    )


def _weights(sizes: Sequence[int], noise: Sequence[float] | None) -> tuple[Array, float]:
    """Return what each value weighs, 1 unless it is noisier than usual, and the usual noise."""
    errors = np.zeros(len(sizes)) if noise is None else np.asarray(noise, float)
    usual = float(np.median(errors))
    scale = max(usual, LEAST_NOISE) ** 2
    return np.minimum(1.0, 2 * scale / (errors**2 + scale)), usual


@dataclass(frozen=True)
class _Trial:
    """Measurements that laws are fitted to, by weighted least squares of relative errors."""

    sizes: Array
    values: Array
    at: int
    weights: Array
    noise: float

    def power_law(self) -> _Fit:
        x, y = np.log(self.sizes), np.log(self.values)
        design = np.stack([np.ones_like(x), x], axis=1)  # (sizes, 2)
        intercept, exponent = self._least_squares(design, y)
        residuals = y - (intercept + exponent * x)
        there = np.array([1.0, math.log(self.at)])
        errors = self._judge(design, residuals, there, np.array([0.0, 1.0]))
        terms = ((_exp(float(intercept)), float(exponent)),)
        return _Fit(POWER, terms, float(exponent), *errors)

    def laws_with_a_fixed_part(self, work: Terms | None) -> Iterator[_Fit]:
        one: Terms = ((1.0, 0.0),)
        size: Terms = ((1.0, 1.0),)
        square: Terms = ((1.0, 2.0),)
        tried: dict[str, Sequence[Terms]] = {f"{FIXED} + FLOPs": (one, work)} if work else {}
        if not work or any(power not in (0.0, 1.0) for _, power in work):
            tried[f"{FIXED} + size"] = (one, size)
        if len(self.sizes) >= ENOUGH_FOR_THREE:
            tried[f"{FIXED} + size + size^2"] = (one, size, square)
        for name, parts in tried.items():
            fit = self._sum_of_parts(name, parts)
            if fit is not None:
                yield fit

    def _sum_of_parts(self, name: str, parts: Sequence[Terms]) -> _Fit | None:
        """Fit how much there is of each part; None if the best would be less than nothing."""
        # In units of what they are at the largest size, so that numbers are of like magnitude.
        parts = [_scaled(part, 1 / _sum(part, self.sizes[-1])) for part in parts]
        columns = np.array([[_sum(part, n) for part in parts] for n in self.sizes])
        fitted = self.values
        for _ in range(STEPS):
            shares = self._least_squares(columns / fitted[:, None], self.values / fitted)
            if (shares <= 0).any():
                return None
            fitted = matmul(columns, shares)
        terms = tuple(
            term
            for part, share in zip(parts, shares, strict=True)
            for term in _scaled(part, float(share))
        )
        there = np.array([_sum(part, self.at) for part in parts]) / _sum(terms, self.at)
        growth = np.array([_sum(_growth(part), self.sizes[-1]) for part in parts])
        exponent = float(matmul(growth, shares) / fitted[-1])
        slope = (growth - exponent * columns[-1]) / fitted[-1]  # of the exponent, by the shares
        residuals = np.log(self.values / fitted)
        errors = self._judge(columns / fitted[:, None], residuals, there, slope)
        return _Fit(name, terms, exponent, *errors)

    def _least_squares(self, design: Array, values: Array) -> Array:
        root = np.sqrt(self.weights)
        found = np.linalg.lstsq(design * root[:, None], values * root, rcond=None)[0]
        return found.astype(np.float64)

    def _judge(
        self, design: Array, residuals: Array, there: Array, slope: Array
    ) -> tuple[float, float, float]:
        """Return the error at sizes left out, and the reach of prediction and exponent."""
        freedom = len(design) - design.shape[1]
        if freedom < 1:
            return math.inf, math.inf, math.inf
        covariance = np.linalg.pinv(matmul((design * self.weights[:, None]).T, design))
        leverage = self.weights * np.einsum("ij,jk,ik->i", design, covariance, design)
        missed = residuals / np.maximum(1 - leverage, NO_ERROR)
        error = math.sqrt(float(np.average(missed**2, weights=self.weights)))
        spread = math.sqrt(float((self.weights * residuals**2).sum()) / freedom)
        # A law that was chosen for its small residuals has smaller ones than a new value will have.
        sigma = max(spread, error, self.noise)
        reach = student_t_quantile((1 + CONFIDENCE) / 2, freedom) * sigma
        of_value = reach * math.sqrt(1 + float(matmul(matmul(there, covariance), there)))
        return error, of_value, reach * math.sqrt(float(matmul(matmul(slope, covariance), slope)))


def _scaled(terms: Terms, factor: float) -> Terms:
    return tuple((factor * coefficient, power) for coefficient, power in terms)


def _far(trial: _Trial) -> tuple[str, ...]:
    smallest, largest = trial.sizes[0], trial.sizes[-1]
    if trial.at <= FAR * largest:
        return ()
    return (f"{trial.at} is far from the measured sizes, {smallest:g} to {largest:g}",)


def _exp(number: float) -> float:
    return math.exp(number) if number < 709 else math.inf


# ---------------------------------------------------------------- how time, FLOPs and memory grow
# with a size, from what was measured at several

ROUNDING = 1e-6
"""Numbers may follow a law so exactly that only rounding is left of their interval."""
WIDEST = 10.0
"""An interval whose ends differ by a larger factor would contain almost anything."""
RESOLVED = 0.5
"""An exponent that is not known better than this has no words."""
NOT_RESOLVED = "not resolved by these measurements"
LAWS = ("constant", "linear", "quadratic", "cubic")
NEARLY = 0.1
NORMAL_REACH = 1.96
"""Standard errors from the middle of a 95% interval to its ends."""


@dataclass(frozen=True)
class SizePoint:
    """What was measured and counted at one size.

    `peak_bytes` are those of live buffers; `resident_bytes` of them are parameters and buffers of
    the model, whatever the size.
    """

    size: int
    latency: Samples
    flops: int
    peak_bytes: int
    resident_bytes: int
    not_counted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trend(Coded):
    """What a law through the measured sizes says about one quantity at the size `at`.

    `constant` does not grow and is added to what the law gives. `measured` is the truth, if known.
    """

    quantity: str
    at: int
    law: Law
    constant: int = 0
    measured: float | None = None

    also_written = ("value", "interval.ends", "law.is_exact", "is_shown", "holds", "words", "notes")
    renames: ClassVar = {"interval.ends": "interval"}

    @property
    def value(self) -> float:
        return self.value_at(self.at)

    def value_at(self, size: float) -> float:
        """Return what the law says about any size."""
        return self.law.value(size) + self.constant

    @property
    def interval(self) -> Estimate | None:
        """Where a measurement is expected; None if nothing is left to judge the law by."""
        found = self.law.interval
        if found is None:
            return None
        value, low, high = (x + self.constant for x in (found.value, found.low, found.high))
        return replace(found, value=value, low=low, high=high)

    @property
    def is_shown(self) -> bool:
        """Whether the interval is narrow enough to be a prediction."""
        return self.interval is not None and self.interval.high <= WIDEST * self.interval.low

    @property
    def holds(self) -> bool | None:
        """Whether what was measured lies in the interval.

        None if nothing was measured, and if the interval is missing or so wide that a number in it
        shows nothing.
        """
        if self.measured is None or self.interval is None or not self.is_shown:
            return None
        slack = ROUNDING * abs(self.measured)
        return self.interval.low - slack <= self.measured <= self.interval.high + slack

    @property
    def exponent_reach(self) -> float:
        """How far the interval of the exponent reaches to both sides, infinite without one."""
        found = self.law.exponent_interval
        return math.inf if found is None else found.high - self.law.exponent

    @property
    def words(self) -> str:
        """The exponent in words: `about linear`, `between linear and quadratic`."""
        if self.exponent_reach > RESOLVED:
            return NOT_RESOLVED
        exponent = self.law.exponent
        nearest = round(exponent)
        if 0 <= nearest < len(LAWS) and abs(exponent - nearest) <= NEARLY:
            return f"about {LAWS[nearest]}"
        if exponent < 0:
            return "falling"
        below = math.floor(exponent)
        if below >= len(LAWS) - 1:
            return f"more than {LAWS[-1]}"
        return f"between {LAWS[below]} and {LAWS[below + 1]}"

    @property
    def notes(self) -> tuple[str, ...]:
        """The law, its error on sizes that were left out, and notes."""
        doubts = tuple(f"{self.quantity}: {note}" for note in self.law.notes)
        if self.interval is not None and not self.is_shown:
            wide = f"inconclusive: the interval spans more than a factor of {WIDEST:g}"
            doubts = (f"{self.quantity}: {wide}", *doubts)
        if self.words == NOT_RESOLVED:
            doubts = (f"{self.quantity}: the exponent is {NOT_RESOLVED}", *doubts)
        return (*self._law_in_words(), *doubts)

    def _law_in_words(self) -> tuple[str, ...]:
        law, sizes = self.law, self.law.fitted
        if law.is_exact:
            verb, unit = ("follows", " bytes") if self.quantity == "memory" else ("follow", "")
            where = f"exactly at all {len(sizes)} sizes"
            return (f"{self.quantity} {verb} {law.formula}{unit} {where}",)
        if law.error is None:
            return ()
        words = f"{self.quantity} follows: {law.name}; leave-one-out error {law.error:.1%}"
        if law.name != POWER and law.power_law_error is not None:
            words += f", of a power law {law.power_law_error:.1%}"
            words += f"; the exponent is that at {sizes[-1]}"
        if law.rivals:
            words += f"; indistinguishable model: {', '.join(law.rivals)}"
        return (words,)


def fit_trend(
    quantity: str,
    points: Sequence[SizePoint],
    at: int,
    truth: SizePoint | None,
    *,
    flops: Trend | None = None,
) -> Trend:
    """Find the law that a quantity follows.

    `quantity` is `time`, `FLOPs` or `memory`; `truth` is the point at the size `at`, if known.
    Counts are exact, and so is a polynomial through them that leaves nothing over; if there is
    none, they get a power law. Time is fitted by the median of each size; `flops` is the trend of
    the FLOPs, which time may follow.
    """
    sizes = [point.size for point in points]
    constant = points[-1].resident_bytes if quantity == "memory" else 0
    measured = _value(quantity, truth) if truth is not None else None
    values = [_value(quantity, point) for point in points]
    if quantity == "time":
        work = flops.law.terms if flops and flops.law.is_exact else None
        noise = [_noise(point.latency) for point in points]
        law: Law | None = fit_law(sizes, values, at=at, noise=noise, work=work)
    else:
        law = exact_polynomial(sizes, [int(value) for value in values], at=at, constant=constant)
    if law is None:
        law = tail_power_law(sizes, [value - constant for value in values], at=at)
    return Trend(quantity, at, law, constant, measured)


def _value(quantity: str, point: SizePoint) -> float:
    values = {
        "time": point.latency.median,
        "FLOPs": point.flops,
        "memory": point.peak_bytes,
    }
    return values[quantity]


def _noise(latency: Samples) -> float:
    """Return the relative standard error of the median, from its interval."""
    found = latency.median_interval()
    return math.log(found.high / found.low) / (2 * NORMAL_REACH)
