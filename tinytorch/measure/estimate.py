"""Estimate: a value with its interval, and what an interval says about a limit.

Every value with an interval in the project is an :class:`Estimate`, and every verdict on time is
one of ``faster``, ``slower``, ``same`` and ``inconclusive``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from tinytorch.codec import Coded
from tinytorch.errors import SettingError

FASTER: Final = "faster"
SLOWER: Final = "slower"
SAME: Final = "same"
INCONCLUSIVE: Final = "inconclusive"
ROUNDING: Final = 1e-12
"""Relative error of sums and quotients that are the same but for their order."""
FORMERLY: Final = {"not shown": INCONCLUSIVE}
"""Verdict in records of former versions -> the verdict of today."""


@dataclass(frozen=True)
class Estimate(Coded):
    """A value and the interval that holds the true one with probability `coverage`.

    `n` is the number of independent observations. A counted value has no uncertainty: both ends
    are the value, `coverage` is 1 and `n` is 0. An end may be infinite.
    """

    value: float
    low: float
    high: float
    coverage: float = 0.95
    n: int = 0

    none_means: ClassVar = {"low": -math.inf, "high": math.inf}

    def __post_init__(self) -> None:
        # Ends that were computed another way than the value may miss it by a rounding error.
        if self.value < self.low and math.isclose(self.value, self.low, rel_tol=ROUNDING):
            object.__setattr__(self, "low", self.value)
        if self.value > self.high and math.isclose(self.value, self.high, rel_tol=ROUNDING):
            object.__setattr__(self, "high", self.value)
        if not self.low <= self.value <= self.high:
            raise SettingError(
                f"{self.value} lies outside of its interval {self.low} to {self.high}"
            )

    @classmethod
    def counted(cls, value: float) -> Self:
        """Return an exact value, counted rather than measured."""
        return cls(value, value, value, coverage=1.0)

    def __iter__(self) -> Iterator[float]:
        """Yield both ends: ``low, high = estimate``."""
        yield from (self.low, self.high)

    @property
    def ends(self) -> dict[str, float]:
        """The interval alone, as the JSON of predictions and medians has it."""
        return {"low": self.low, "high": self.high, "confidence": self.coverage}

    @property
    def confidence(self) -> float:
        """The coverage under its former name."""
        warnings.warn("Estimate.confidence is called coverage", DeprecationWarning, stacklevel=2)
        return self.coverage

    @property
    def inverse(self) -> Estimate:
        """The reciprocal of a positive quantity, such as the speedup of a time ratio.

        >>> Estimate(0.5, 0.25, 1.0).inverse
        Estimate(value=2.0, low=1.0, high=4.0, coverage=0.95, n=0)
        """
        ends = (self.value, self.high, self.low)
        value, low, high = (1 / end if end > 0 else math.inf for end in ends)
        return Estimate(value, low, high, self.coverage, self.n)

    def scaled(self, factor: float) -> Self:
        """Return the same quantity in a unit that is `factor` times smaller."""
        value, low, high = (end * factor for end in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high)

    def is_below(self, limit: float) -> bool | None:
        """Return whether the true value is at most `limit`; None where the interval holds both.

        >>> Estimate(1.02, 1.00, 1.04).is_below(1.05)
        True
        >>> Estimate(1.02, 1.00, 1.04).is_below(1.03) is None
        True
        """
        if self.high <= limit:
            return True
        return False if self.low > limit else None

    def is_less_than(self, other: Estimate | float, *, by: float = 0.0) -> bool:
        """Return whether all of the interval lies below `other`, by more than the share `by`."""
        low = other.low if isinstance(other, Estimate) else other
        return self.high < low * (1 - by)

    def is_more_than(self, other: Estimate | float, *, by: float = 0.0) -> bool:
        """Return whether all of the interval lies above `other`, by more than the share `by`."""
        high = other.high if isinstance(other, Estimate) else other
        return self.low > high * (1 + by)

    def is_apart_from(self, other: Estimate) -> bool:
        """Return whether the two intervals have no value in common."""
        return self.is_less_than(other) or self.is_more_than(other)


def time_verdict(ratio: Estimate, *, floor: float, band: float) -> str:
    """Return the verdict on a time ratio, candidate over baseline.

    Beyond the minimum effect `floor` the candidate is faster or slower; an interval inside of the
    equivalence band is the same; anything else is inconclusive.

    >>> time_verdict(Estimate(0.8, 0.7, 0.9), floor=0.01, band=0.02)
    'faster'
    """
    if ratio.low > 1 + floor:
        return SLOWER
    if ratio.high < 1 / (1 + floor):
        return FASTER
    if ratio.low >= 1 / (1 + band) and ratio.high <= 1 + band:
        return SAME
    return INCONCLUSIVE


def read_verdict(written: str) -> str:
    """Return a verdict or an outcome of a record, whatever version wrote it."""
    return FORMERLY.get(written, written)
