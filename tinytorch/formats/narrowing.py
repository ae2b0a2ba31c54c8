"""Narrowing ranges where cutting off the extremes makes everything else more exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinytorch.core.backends.backend import Array

__all__ = ["narrowed_ranges"]

Error = Callable[[Array, Array], Array]
"""Gives the sum of squared errors of each scale for these lower and upper ends."""

MOST_HALVINGS = 10
FINER_STEPS = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
"""Powers of two by which a range is made longer and shorter to find the best one."""

WORTHWHILE = 1 - 1e-3
"""Clipping must save so much of the squared error: the half-step bound is given up for it, and
what rounding errors could feign is far less."""


def narrowed_ranges(
    squared_error: Error, low: Array, high: Array, *, is_symmetric: bool
) -> tuple[Array, Array]:
    """Give the ends, at most as wide as these, that have the least error for each scale."""
    return _Narrowing(squared_error, low, high).run(is_symmetric)


class _Narrowing:
    """A search for the range of each scale that has the least sum of squared errors.

    A narrower range must be worth giving up the half-step bound; what is not, stays as wide.
    """

    def __init__(self, squared_error: Error, low: Array, high: Array) -> None:
        self.squared_error = squared_error
        self.widest = self.low, self.high = low, high
        self.error = squared_error(low, high)

    def run(self, is_symmetric: bool) -> tuple[Array, Array]:
        """Clip both sides at the same distance from zero and then, without symmetry, each alone."""
        self.search(_within)
        if not is_symmetric:
            self.search(lambda low, high, factor: (low, high * factor))
            self.search(lambda low, high, factor: (low * factor, high))
        return self.low, self.high

    def search(self, moved: Callable[[Array, Array, float], tuple[Array, Array]]) -> None:
        """Halve what is moved until that is hopeless, then look about the best."""
        start = self.low, self.high
        for halvings in range(1, MOST_HALVINGS + 1):
            error = self.attempt(*moved(*start, 0.5**halvings))
            if (error >= 2 * self.error).all():
                break  # What is clipped only grows.
        for step in FINER_STEPS:
            start = self.low, self.high
            self.attempt(*moved(*start, 2**-step))
            self.attempt(*moved(*start, 2**step))

    def attempt(self, low: Array, high: Array) -> Array:
        """Keep these ends for the scales that they are better for, and give all their errors."""
        low, high = np.maximum(low, self.widest[0]), np.minimum(high, self.widest[1])
        if (low == self.low).all() and (high == self.high).all():
            return self.error
        error = self.squared_error(low, high)
        is_better = error < WORTHWHILE * self.error
        self.low = np.where(is_better, low, self.low)
        self.high = np.where(is_better, high, self.high)
        self.error = np.where(is_better, error, self.error)
        return error


def _within(low: Array, high: Array, factor: float) -> tuple[Array, Array]:
    reach = factor * np.maximum(-low, high)
    return -reach, reach
