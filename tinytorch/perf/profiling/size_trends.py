"""How time, FLOPs and memory grow with a size, from what was measured at several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.measure.samples import Interval, Samples
from tinytorch.perf.profiling.size_laws import (
    POWER,
    Law,
    exact_polynomial,
    fit_law,
    tail_power_law,
)

__all__ = ["NOT_RESOLVED", "SizePoint", "Trend", "fit_trend"]

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
class Trend:
    """What a law through the measured sizes says about one quantity at the size `at`.

    `constant` does not grow and is added to what the law gives. `measured` is the truth, if known.
    """

    quantity: str
    at: int
    law: Law
    constant: int = 0
    measured: float | None = None

    @property
    def value(self) -> float:
        return self.value_at(self.at)

    def value_at(self, size: float) -> float:
        """Give what the law says about any size."""
        return self.law.value(size) + self.constant

    @property
    def interval(self) -> Interval | None:
        """Where a measurement is expected; None if nothing is left to judge the law by."""
        found = self.law.interval
        if found is None:
            return None
        return Interval(found.low + self.constant, found.high + self.constant, found.confidence)

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
        """Which law it is, how well it tells what it has not seen, and what to doubt."""
        doubts = tuple(f"{self.quantity}: {note}" for note in self.law.notes)
        if self.interval is not None and not self.is_shown:
            wide = f"its interval is wider than a factor of {WIDEST:g}: nothing is shown"
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
        words = f"{self.quantity} follows: {law.name}; a size left out is missed by {law.error:.1%}"
        if law.name != POWER and law.power_law_error is not None:
            words += f", by a power law by {law.power_law_error:.1%}"
            words += f"; the exponent is that at {sizes[-1]}"
        if law.rivals:
            words += f"; not told apart, and covered by the interval: {', '.join(law.rivals)}"
        return (words,)

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON but for numbers that are not finite."""
        return {
            **asdict(self),
            "value": self.value,
            "interval": asdict(self.interval) if self.interval else None,
            "is_exact": self.law.is_exact,
            "is_shown": self.is_shown,
            "holds": self.holds,
            "words": self.words,
            "notes": list(self.notes),
        }


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
    """Give the relative standard error of the median, from its interval."""
    found = latency.median_interval()
    return math.log(found.high / found.low) / (2 * NORMAL_REACH)
