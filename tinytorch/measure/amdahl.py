"""Amdahl's law: what speeding up a part does for the whole."""

from __future__ import annotations

import math

from tinytorch.errors import SettingError

__all__ = ["ROUNDING", "amdahl"]

ROUNDING = 1e-9
"""A share that is so little above 1 is 1: parts that fill a whole add up to it but for rounding."""


def amdahl(share: float, factor: float = math.inf) -> float:
    """Give the speedup of the whole when a `share` of its time becomes `factor` times faster.

    Without a factor: the most that any improvement of that part can give. A factor below 1 is a
    slowdown of the part.

    >>> round(amdahl(share=0.70), 2)
    3.33
    >>> round(amdahl(share=0.70, factor=2), 2)
    1.54
    """
    if not 0 <= share <= 1 + ROUNDING:
        raise SettingError(f"share={share}; it is a part of the time, between 0 and 1")
    if not factor > 0:
        raise SettingError(f"factor={factor}; it must be positive (2 means twice as fast)")
    share = min(share, 1.0)
    remaining = (1 - share) + share / factor
    return 1 / remaining if remaining else math.inf
