"""When to look at the values that came in so far, and how much each look may err.

Whoever looks again and again, and stops when something shows, errs more often than each look alone.
Later looks see the values of earlier ones too, so their errors overlap: each may err with more than
its share of the allowed error, though with far less than all of it. The level of a look is found so
that the intervals of all looks hold together with 1 - allowed (repeated confidence intervals, after
Pocock, 1977, and Jennison and Turnbull, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from tinytorch.core.backends.products import matmul

__all__ = ["FEWEST", "FIRST", "Looks", "common_level"]

FIRST = 9
"""The first look. With nine values the widest interval errs with 0.4%."""
FEWEST = 6
"""With six values the widest interval, from the smallest to the largest, still covers 96.9%."""
GROWTH, MOST = 1.4, 12
RESERVE = 2
"""Planned are looks up to so many times the expected number of values: estimates of time err."""
GRID = 161


class Looks:
    """The looks at about `expected` values whose intervals all hold with 1 - `allowed`.

    `level` is how much each of them may err but for the last one, which is there when time is up.
    """

    def __init__(self, expected: int, allowed: float) -> None:
        self.counts = _planned_counts(max(FIRST, expected))
        self.level = common_level(self.counts, allowed)
        self._allowed = allowed

    def is_due(self, count: int) -> bool:
        return count in self.counts

    def is_last(self, count: int) -> bool:
        return count >= self.counts[-1]

    def last_level(self, count: int) -> float:
        """Give how much the last look may err: all that the looks before it have left.

        When time is up, the looks that were planned for later have not spent their part.
        """
        before = tuple(each for each in self.counts if each < count)
        return _last_level(before, self.level, count, self._allowed)


@lru_cache(maxsize=64)
def common_level(counts: tuple[int, ...], allowed: float) -> float:
    """Give the error of each look at which all of them together err with `allowed`."""
    return _level_for(allowed, lambda level: _chance_to_leave(counts, (level,) * len(counts)))


@lru_cache(maxsize=64)
def _last_level(before: tuple[int, ...], level: float, count: int, allowed: float) -> float:
    levels = (level,) * len(before)
    return _level_for(allowed, lambda last: _chance_to_leave((*before, count), (*levels, last)))


def _level_for(allowed: float, chance: Callable[[float], float]) -> float:
    """Give the largest level, up to `allowed`, at which the chance to err is not above it."""
    if chance(allowed) <= 1.01 * allowed:  # one look; the grid is not finer
        return allowed
    low, high = allowed / 100, allowed
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if chance(middle) <= allowed else (low, middle)
    return low


def _planned_counts(expected: int) -> tuple[int, ...]:
    most = RESERVE * expected
    growth = max(GROWTH, (most / FIRST) ** (1 / (MOST - 1)))
    counts = [FIRST]
    while counts[-1] < most:
        counts.append(math.ceil(counts[-1] * growth))
    return tuple(counts)


def _chance_to_leave(counts: tuple[int, ...], levels: tuple[float, ...]) -> float:
    """Give the probability that a random walk leaves its tunnel at one of the looks.

    The sum of so many independent values is a random walk; the tunnel is what a look at each of
    the levels leaves open. Followed is the density of walks that are still inside.
    """
    widths = [NormalDist().inv_cdf(1 - level / 2) for level in levels]
    inside = np.linspace(-1, 1, GRID)
    step = inside[1] - inside[0]
    # On positions in units of the tunnel's half width at each look.
    density = np.exp(-((widths[0] * inside) ** 2) / 2) * widths[0] / math.sqrt(2 * math.pi)
    for look in range(1, len(counts)):
        before, now = (widths[each] * math.sqrt(counts[each]) for each in (look - 1, look))
        spread = math.sqrt(counts[look] - counts[look - 1])
        jumps = (now * inside[:, None] - before * inside[None, :]) / spread
        chances = np.exp(-(jumps**2) / 2) * now / spread / math.sqrt(2 * math.pi)
        density = matmul(chances, density * _trapezoid) * step
    return 1 - float(matmul(density, _trapezoid)) * step


_trapezoid = np.ones(GRID)
_trapezoid[[0, -1]] = 0.5
