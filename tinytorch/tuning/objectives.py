"""What a candidate is judged by: time, memory, size and accuracy, all against the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tinytorch.comparison.comparison import Comparison

__all__ = ["BASELINE", "OBJECTIVES", "Measured", "Value", "measured_by"]

SAME_BYTES = 0.001
"""Sizes that differ by less are the same: names and headers of a file count, too."""


@dataclass(frozen=True)
class Value:
    """A number and the interval that it lies in; where it was counted, both ends are the number."""

    value: float
    low: float
    high: float

    @classmethod
    def counted(cls, value: float) -> Value:
        """Give a number that has no doubt about it."""
        return cls(value, value, value)

    @property
    def gain(self) -> Value:
        """How many times less it is: 2 where this is half; of 0, infinitely many times."""
        ends = (self.value, self.high, self.low)
        return Value(*(1 / end if end > 0 else math.inf for end in ends))

    @property
    def is_less(self) -> bool:
        """Whether a share is shown to be below 1, by more than what does not matter."""
        return self.high < 1 - SAME_BYTES

    @property
    def is_more(self) -> bool:
        """Whether a share is shown to be above 1, by more than what does not matter."""
        return self.low > 1 + SAME_BYTES

    def is_below(self, other: Value, *, by: float = 0.0) -> bool:
        """Say whether it is shown to be smaller, by more than this share."""
        return self.high < other.low * (1 - by) if by else self.high < other.low


@dataclass(frozen=True)
class Measured:
    """A candidate's time, memory and size as shares of the baseline's, and its accuracy's gain.

    Below 1 is less, and better; `accuracy` is the mean score minus the baseline's, above 0 is
    better. What was not measured is None.
    """

    time: Value | None = None
    memory: Value | None = None
    size: Value | None = None
    accuracy: Value | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON; an end of an interval that is not known is None."""
        return {
            name: value and {key: end if math.isfinite(end) else None for key, end in value.items()}
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Measured:
        """Give back what :meth:`to_dict` wrote."""
        return cls(**{each.name: _value(given.get(each.name)) for each in fields(cls)})


OBJECTIVES = tuple(each.name for each in fields(Measured))
BASELINE = Measured(*(Value.counted(x) for x in (1.0, 1.0, 1.0, 0.0)))
"""The model as it is, against itself."""


def measured_by(comparison: Comparison) -> Measured:
    """Draw from a comparison with the baseline what a candidate is judged by."""
    ratio = comparison.ratio
    return Measured(
        time=Value(ratio.value, ratio.low, ratio.high),
        memory=_share(comparison, lambda each: each.memory_bytes),
        size=_share(comparison, lambda each: each.file_bytes),
        accuracy=_accuracy(comparison),
    )


def _share(comparison: Comparison, of: Any) -> Value | None:
    if comparison.resources is None:
        return None
    before, after = (of(each) for each in comparison.resources)
    if not before or after is None:
        return None
    return Value.counted(after / before)


def _accuracy(comparison: Comparison) -> Value | None:
    accuracy = comparison.accuracy
    if accuracy is None or accuracy.failed:
        return None
    return Value(accuracy.difference, accuracy.low, accuracy.high)


def _value(given: Mapping[str, Any] | None) -> Value | None:
    if given is None:
        return None
    low = -math.inf if given["low"] is None else given["low"]
    return Value(given["value"], low, math.inf if given["high"] is None else given["high"])
