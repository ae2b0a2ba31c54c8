"""What was measured at growing sizes, and which size follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tinytorch.comparison.sequential import TimeRatio, estimate_ratio
from tinytorch.errors import SettingError
from tinytorch.measure.samples import Interval, Samples
from tinytorch.showing import Shown

__all__ = ["Ceiling", "Limit", "Recommendation", "SizeAdvice", "SizeMeasurement"]

CONFIDENCE = 0.95
"""All comparisons with the best size hold together with this."""
UNFINISHED = ("budget", "not tried", "late")
"""What ended a search although larger sizes might run."""


@dataclass(frozen=True)
class SizeMeasurement:
    """What was measured at one size. `items` are the examples or tokens of one call.

    `latency` has seconds per call, round by round; in each round every size had a turn.
    `peak_bytes` is the most that was held at once, parameters and inputs included: by live buffers
    on a processor, by the allocator on a GPU. None where nobody could tell.
    """

    size: int
    items: int
    latency: Samples
    peak_bytes: int | None = None

    @property
    def throughput(self) -> float:
        """Give examples or tokens per second, at the median latency."""
        return self.items / self.latency.median

    @property
    def throughput_interval(self) -> Interval:
        found = self.latency.median_interval(CONFIDENCE)
        return Interval(self.items / found.high, self.items / found.low, found.confidence)

    def to_dict(self) -> dict[str, Any]:
        interval = self.throughput_interval
        return {
            "size": self.size,
            "items": self.items,
            "latency_s": self.latency.median,
            "throughput": self.throughput,
            "throughput_low": interval.low,
            "throughput_high": interval.high,
            "peak_bytes": self.peak_bytes,
            "latency": self.latency.to_dict(),
        }


@dataclass(frozen=True)
class Limit:
    """What ended a search: a word for programs (`memory`, `refused`, `budget`, ...) and a reason.

    The other words are `latency`, `saturated`, `sizes` (no others were asked for), `ended` (its
    process did), `late` (it gave no answer) and `not tried` (it might not have fitted).
    """

    kind: str
    reason: str


@dataclass(frozen=True)
class Ceiling:
    """The largest size that ran within the limits of memory, and the next one that did not.

    0 if there is no such size, and None if no larger one was tried. `limit` says why that one
    failed, or why there was no larger try.
    """

    largest: int
    failed: int | None
    limit: Limit

    @property
    def is_exact(self) -> bool:
        """Whether the very next size fails."""
        return self.failed == self.largest + 1

    @property
    def words(self) -> str:
        if not self.largest and self.failed is None:
            return f"not known; {self.limit.reason}"
        if self.failed is None:
            return f"at least {self.largest:,}; larger ones were not tried: {self.limit.reason}"
        start = f"{self.largest:,}" if self.is_exact else f"at least {self.largest:,}"
        start = start if self.largest else "none of those tried"
        return f"{start}; {self.failed:,} does not: {self.limit.reason}"


@dataclass(frozen=True)
class Recommendation:
    """The size to use, None if no measured one is shown to keep the limits; and why."""

    size: int | None
    reason: str


@dataclass(frozen=True)
class SizeAdvice(Shown):
    """Throughput against latency over a batch size or a sequence length, and what follows.

    `usual` is the size of the example inputs; `unit` what one call works on, `examples` or
    `tokens`. `tolerance` is how much less than the best throughput is as good as the best.
    `limited_by` says why no larger sizes are in the curve. `is_isolated` tells whether a process of
    its own was measured, which may run out of memory without harm.
    """

    name: str
    framework: str
    device: str
    axis: str
    unit: str
    usual: int
    points: tuple[SizeMeasurement, ...]
    ceiling: Ceiling
    limited_by: Limit
    tolerance: float = 0.1
    latency_limit_s: float | None = None
    memory_limit_bytes: int | None = None
    is_isolated: bool = True
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.points:
            raise SettingError(f"advice about {self.name!r} without a measured size")

    def point(self, size: int) -> SizeMeasurement:
        """Give what was measured at a size."""
        return next(each for each in self.points if each.size == size)

    @cached_property
    def best(self) -> int:
        """The size with the highest throughput of those measured, round by round."""
        return self._best(self.points).size

    @cached_property
    def knee(self) -> int:
        """The smallest size that is shown to come within `tolerance` of the best throughput.

        Beyond it calls take longer for almost nothing.
        """
        return self._knee(self.points)

    def slowdown(self, size: int, other: int | None = None) -> TimeRatio:
        """Give the time per item at a size over that at another, the best; below 1 is faster."""
        best = self.point(self.best if other is None else other)
        return self._slowdown(self.point(size), best)

    @property
    def meets_limits(self) -> bool | None:
        """Whether a size keeps the limits: False if all are shown not to, None if nobody knows."""
        found = {self._keeps_limits(point) for point in self.points}
        return True if True in found else None if None in found else False

    @cached_property
    def recommended(self) -> Recommendation:
        """The knee, or where it breaks a limit the knee of the sizes that keep all limits."""
        fitting = [point for point in self.points if self._keeps_limits(point)]
        if not fitting:
            return Recommendation(None, self._why_none())
        size = self._knee(fitting)
        return Recommendation(size, self._why(size, fitting))

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        recommended = self.recommended
        return {
            **{
                name: getattr(self, name)
                for name in ("name", "framework", "device", "axis", "unit", "usual")
            },
            "points": [point.to_dict() for point in self.points],
            "best": self.best,
            "knee": self.knee,
            "tolerance": self.tolerance,
            "recommended": recommended.size,
            "reason": recommended.reason,
            "meets_limits": self.meets_limits,
            "latency_limit_s": self.latency_limit_s,
            "memory_limit_bytes": self.memory_limit_bytes,
            "ceiling": asdict(self.ceiling) | {"is_exact": self.ceiling.is_exact},
            "limited_by": asdict(self.limited_by),
            "is_isolated": self.is_isolated,
            "notes": list(self.notes),
        }

    # ------------------------------------------------------------ judging

    def _knee(self, points: Sequence[SizeMeasurement]) -> int:
        best = self._best(points)
        most = 1 / (1 - self.tolerance)
        near = (p for p in points if p is best or self._slowdown(p, best).high <= most)
        return min(point.size for point in near)

    def _best(self, points: Sequence[SizeMeasurement]) -> SizeMeasurement:
        """Give the size that no other beats in the same rounds; medians mix calm and busy ones."""
        best = max(points, key=lambda point: point.throughput)
        for _ in points:
            rival = min(points, key=lambda point: self._slowdown(point, best).value)
            if rival is best or self._slowdown(rival, best).value >= 1:
                break
            best = rival
        return best

    def _slowdown(self, point: SizeMeasurement, best: SizeMeasurement) -> TimeRatio:
        rounds = min(point.latency.count, best.latency.count)
        seconds = np.array(point.latency.values[:rounds]) / point.items
        others = np.array(best.latency.values[:rounds]) / best.items
        alpha = (1 - CONFIDENCE) / max(1, len(self.points) - 1)
        return estimate_ratio(np.log(seconds / others).tolist(), alpha)

    @property
    def _limits(self) -> list[str]:
        found = {"latency limit": self.latency_limit_s, "memory limit": self.memory_limit_bytes}
        return [name for name, limit in found.items() if limit is not None]

    def _keeps_limits(self, point: SizeMeasurement) -> bool | None:
        verdicts: set[bool | None] = {True}
        if self.latency_limit_s is not None:
            seconds = point.latency.median_interval(CONFIDENCE)
            verdicts.add(_is_below(seconds.low, seconds.high, self.latency_limit_s))
        if self.memory_limit_bytes is not None:
            peak = point.peak_bytes
            verdicts.add(None if peak is None else peak <= self.memory_limit_bytes)
        return False if False in verdicts else None if None in verdicts else True

    def _why(self, size: int, fitting: Sequence[SizeMeasurement]) -> str:
        """Say what speaks for a size among those that keep the limits, and what stays open."""
        limits = _listed(self._limits)
        among = (
            f" among the sizes that keep the {limits}" if len(fitting) < len(self.points) else ""
        )
        if len(fitting) == 1:
            reason = (
                f"the only measured size that keeps the {limits}"
                if among
                else "the only one measured"
            )
        elif size != self._best(fitting).size:
            reason = (
                f"the smallest size shown within {self.tolerance:.0%} of the best throughput{among}"
            )
        else:
            reason = f"the highest throughput{among}"
            if size > fitting[0].size:
                reason += f"; no smaller size is shown to come within {self.tolerance:.0%} of it"
        if limits and not among:
            reason += f"; it keeps the {limits}"
        if self.limited_by.kind in UNFINISHED and self.best == self.points[-1].size and not among:
            reason += "; larger ones, which were not measured, may do better"
        return reason

    def _why_none(self) -> str:
        smallest = self.points[0]
        start = f"no measured size is shown to keep the {_listed(self._limits)}: even"
        facts = []
        if self.latency_limit_s is not None:
            took, limit = smallest.latency.median * 1e3, self.latency_limit_s * 1e3
            facts.append(f"takes {took:.3g} ms, with a limit of {limit:g} ms")
        if self.memory_limit_bytes is not None:
            peak = smallest.peak_bytes
            held = "holds nobody knows how much" if peak is None else f"holds {peak:,} bytes"
            facts.append(f"{held}, with a limit of {self.memory_limit_bytes:,}")
        return f"{start} size {smallest.size} {' and '.join(facts)}"


def _is_below(low: float, high: float, limit: float) -> bool | None:
    """Say whether an interval lies below a limit: None if the limit lies inside of it."""
    return True if high <= limit else False if low > limit else None


def _listed(names: Sequence[str]) -> str:
    return " and the ".join(names)
