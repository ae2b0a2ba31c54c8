"""The roofline: what limits a piece of work, computing or moving bytes?

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tinytorch.errors import SettingError, check_number


@dataclass(frozen=True)
class Bound:
    """Where a piece of work stands under the roof.

    Rates are FLOP/s, two per multiply-accumulate; `bandwidth` is bytes/s and `intensity` FLOP per
    byte moved. Nothing is clamped: work that beats its roof shows that bytes, FLOPs or the ceiling
    were counted wrongly, or that a cache helped.
    """

    achieved: float
    peak: float
    bandwidth: float
    intensity: float

    def __post_init__(self) -> None:
        for name in ("achieved", "intensity"):
            check_number(name, getattr(self, name), least=0)
        for name in ("peak", "bandwidth"):
            check_number(name, getattr(self, name), above=0)

    @property
    def ridge(self) -> float:
        """The ridge point: the FLOP per byte from which on work is compute-bound."""
        return self.peak / self.bandwidth

    @property
    def bound(self) -> Literal["memory", "compute"]:
        return "memory" if self.intensity < self.ridge else "compute"

    @property
    def is_memory_bound(self) -> bool:
        return self.bound == "memory"

    @property
    def is_compute_bound(self) -> bool:
        return self.bound == "compute"

    @property
    def attainable(self) -> float:
        """The attainable FLOP/s at this intensity."""
        return min(self.peak, self.bandwidth * self.intensity)

    @property
    def efficiency(self) -> float:
        """The share of the machine's peak that was achieved."""
        return self.achieved / self.peak

    @property
    def of_attainable(self) -> float:
        """The share of the attainable rate that was achieved; NaN where that is 0."""
        return self.achieved / self.attainable if self.attainable else math.nan

    def __str__(self) -> str:
        if not self.intensity:
            return "memory-bound: it moves bytes and computes nothing"
        return f"{self.bound}-bound at {self.efficiency:.0%} efficiency"


def classify_bound(achieved: float, peak: float, bandwidth: float, intensity: float) -> Bound:
    """Return whether work is memory-bound or compute-bound, and at what efficiency.

    `achieved` and `peak` in FLOP/s, `bandwidth` in bytes/s, `intensity` in FLOP per byte.

    >>> str(classify_bound(achieved=5e9, peak=100e9, bandwidth=50e9, intensity=0.1))
    'memory-bound at 5% efficiency'
    """
    return Bound(float(achieved), float(peak), float(bandwidth), float(intensity))


# ---------------------------------------------------------------- amdahl's law: what speeding up a
# part does for the whole

ROUNDING = 1e-9
"""A share that is so little above 1 is 1: parts that fill a whole add up to it but for rounding."""


def amdahl(share: float, factor: float = math.inf) -> float:
    """Return the speedup of the whole when a `share` of its time becomes `factor` times faster.

    Without a factor: the most that any improvement of that part can give. A factor below 1 is a
    slowdown of the part.

    >>> round(amdahl(share=0.70), 2)
    3.33
    >>> round(amdahl(share=0.70, factor=2), 2)
    1.54
    """
    check_number("share", share, least=0, most=1 + ROUNDING)
    if not factor > 0:
        raise SettingError(f"factor={factor}; it must be positive (2 means twice as fast)")
    share = min(share, 1.0)
    remaining = (1 - share) + share / factor
    return 1 / remaining if remaining else math.inf
