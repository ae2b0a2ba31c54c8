"""Extrapolating over sizes: a power law fitted to measurements, with honest intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tinytorch.errors import SettingError
from tinytorch.measure.estimate import Estimate

__all__ = ["FAR", "ScalingPrediction", "predict_scaling", "student_t_quantile"]

NOTABLE_DIFFERENCE = 0.15
"""A local exponent that differs from the fitted one by more bends away from a power law."""
FAR = 10.0
"""Beyond so many times the largest size a power law is more hope than evidence."""


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
    if not 0 < confidence < 1:
        raise SettingError(f"confidence={confidence}; it must lie between 0 and 1")
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
        notes=_notes(x, y, exponent, at),
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


def _notes(
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


def _exp(number: float) -> float:
    return math.exp(number) if number < 709 else math.inf


def student_t_quantile(probability: float, freedom: int) -> float:
    """Give the quantile of Student's t distribution, by bisection of its distribution function."""
    if not 0 < probability < 1:
        raise SettingError(f"probability={probability}; it must lie between 0 and 1")
    if freedom < 1:
        raise SettingError(f"freedom={freedom}; it must be at least 1")
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
    """Give the probability below `t`, by the finite series (Abramowitz and Stegun, 26.7.3-4)."""
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
