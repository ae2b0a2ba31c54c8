"""Limits that a model has to keep to: so many milliseconds, so many megabytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.rounds import LATENCY
from tinytorch.errors import SettingError
from tinytorch.measure.samples import Samples
from tinytorch.tuning.attempt import Attempt
from tinytorch.tuning.objectives import Value

__all__ = ["LIMITS", "LimitCheck", "check_limits", "checked_limits"]

MEGABYTE = 1e6
LEAST_COVERAGE = 0.95
"""Of so few rounds that an interval holds with less, nothing is shown."""
KEPT, BROKEN, NOT_SHOWN = "kept", "broken", "not shown"
LIMITS = {
    "latency_ms": "median time of a call, in milliseconds",
    "memory_mb": "most memory alive at once, in 10^6 bytes",
    "size_mb": "size of the file, in 10^6 bytes",
}
"""Name of a limit -> what it limits."""


@dataclass(frozen=True)
class LimitCheck:
    """One limit, what was measured, and whether it is kept, broken or not shown."""

    limit: str
    most: float
    value: float | None
    low: float | None
    high: float | None
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON; an end of an interval that is not known is None."""
        return asdict(self) | {"high": None if self.high == math.inf else self.high}


def checked_limits(limits: Mapping[str, float] | None) -> dict[str, float]:
    """Give the limits, after refusing those that nobody knows or that make no sense."""
    for name, most in (limits or {}).items():
        if name not in LIMITS:
            raise SettingError(f"no limit is called {name!r}; there are {', '.join(LIMITS)}")
        if not 0 < most < math.inf:
            raise SettingError(f"the limit {name}={most!r} must be a positive number")
    return {name: float(most) for name, most in (limits or {}).items()}


def check_limits(
    attempt: Attempt | None, limits: Mapping[str, float], *, of_baseline: bool = False
) -> tuple[LimitCheck, ...]:
    """Check each limit against what an attempt's comparison has measured."""
    comparison = attempt.comparison if attempt else None
    side = 0 if of_baseline else 1
    return tuple(
        _check(name, most, _value(name, comparison, side) if comparison else None)
        for name, most in limits.items()
    )


def _check(name: str, most: float, value: Value | None) -> LimitCheck:
    if value is None:
        return LimitCheck(name, most, None, None, None, NOT_SHOWN)
    verdict = KEPT if value.high <= most else BROKEN if value.low > most else NOT_SHOWN
    return LimitCheck(name, most, value.value, value.low, value.high, verdict)


def _value(name: str, comparison: Comparison, side: int) -> Value | None:
    if name == "latency_ms":
        # Turns of a round share memory and a moment: only rounds are independent of each other.
        found = comparison.rounds_of(LATENCY)
        if not found:
            return None
        rounds = [(each.baseline, each.candidate)[side] for each in found]
        samples = Samples("rounds", tuple(median(each) for each in rounds))
        interval = samples.median_interval()
        low, high = interval.low, interval.high
        if interval.confidence < LEAST_COVERAGE:
            low, high = 0.0, math.inf
        return Value(*(1e3 * x for x in (samples.median, low, high)))
    if comparison.resources is None:
        return None
    resources = comparison.resources[side]
    nbytes = resources.memory_bytes if name == "memory_mb" else resources.file_bytes
    return None if nbytes is None else Value.counted(nbytes / MEGABYTE)
