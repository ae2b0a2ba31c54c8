"""Power laws through what was measured at several sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.measure.samples import Interval, Samples
from tinytorch.measure.scaling import ScalingPrediction, predict_scaling

__all__ = ["LEAST_SIZES", "SizePoint", "Trend", "fit_trend"]

LEAST_SIZES = 3
"""Fewer sizes leave nothing to judge a law by."""
BEND = 0.1
"""Sizes whose exponent differs by more from that of the largest two follow another law."""
ROUNDING = 1e-6
"""Counted numbers may follow a law so exactly that only rounding is left of their interval."""
LAWS = ("constant", "linear", "quadratic", "cubic")
NEARLY = 0.1


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
class Trend:
    """A power law for one quantity, fitted to the points of the sizes in `fitted`.

    Small sizes that follow another law, because fixed costs weigh more there, are left out of it.
    `constant` does not grow and is added to what the law gives. `measured` is the truth, if known.
    """

    quantity: str
    fitted: tuple[int, ...]
    prediction: ScalingPrediction
    constant: float = 0.0
    measured: float | None = None

    @property
    def value(self) -> float:
        return self.prediction.value + self.constant

    @property
    def interval(self) -> Interval:
        found = self.prediction.interval
        return Interval(found.low + self.constant, found.high + self.constant, found.confidence)

    @property
    def holds(self) -> bool | None:
        """Whether what was measured lies in the interval.

        None if nothing was measured, and if the interval is infinite: any number lies in it.
        """
        if self.measured is None or math.isinf(self.interval.high):
            return None
        slack = ROUNDING * abs(self.measured)
        return self.interval.low - slack <= self.measured <= self.interval.high + slack

    @property
    def words(self) -> str:
        """The exponent in words: `about linear`, `between linear and quadratic`."""
        exponent = self.prediction.exponent
        nearest = round(exponent)
        if 0 <= nearest < len(LAWS) and abs(exponent - nearest) <= NEARLY:
            return f"about {LAWS[nearest]}"
        if exponent < 0:
            return "falling"
        below = math.floor(exponent)
        if below >= len(LAWS) - 1:
            return f"more than {LAWS[-1]}"
        return f"between {LAWS[below]} and {LAWS[below + 1]}"

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON but for numbers that are not finite."""
        return {
            **asdict(self),
            "value": self.value,
            "interval": asdict(self.interval),
            "holds": self.holds,
            "words": self.words,
        }


def fit_trend(
    quantity: str, points: Sequence[SizePoint], at: int, truth: SizePoint | None
) -> Trend:
    """Fit a power law to what grows, from the size on from which the points follow it.

    `quantity` is `time`, `FLOPs` or `memory`; `truth` is the point at the size `at`, if known. The
    median of each size is one measurement: the error of the law, which repetition does not make
    smaller, is what the interval has to cover.
    """
    kept = list(points)
    constant = float(points[-1].resident_bytes) if quantity == "memory" else 0.0
    values = {point.size: _value(quantity, point) - constant for point in kept}
    while True:
        sizes = [point.size for point in kept]
        prediction = predict_scaling(sizes, [values[size] for size in sizes], at=at)
        last, before = kept[-1].size, kept[-2].size
        local = math.log(values[last] / values[before]) / math.log(last / before)
        if len(kept) <= LEAST_SIZES or abs(local - prediction.exponent) <= BEND:
            break
        kept = kept[1:]
    measured = _value(quantity, truth) if truth is not None else None
    return Trend(quantity, tuple(sizes), prediction, constant, measured)


def _value(quantity: str, point: SizePoint) -> float:
    values = {
        "time": point.latency.median,
        "FLOPs": float(point.flops),
        "memory": float(point.peak_bytes),
    }
    return values[quantity]
