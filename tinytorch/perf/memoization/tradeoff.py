"""What a key-value cache costs in memory, and what it saves in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinytorch.comparison.comparison import FASTER, Comparison
from tinytorch.showing import Shown

__all__ = ["CachePoint", "CacheTradeoff"]


@dataclass(frozen=True)
class CachePoint:
    """One more token after a text of `length` - 1: with a cache, and by computing all anew.

    `cache_bytes` are really held by a cache with room for `length` tokens. In `comparison` the
    baseline is without cache, the candidate with it.
    """

    length: int
    cache_bytes: int
    comparison: Comparison

    @property
    def plain_s(self) -> float:
        """Give the median seconds of a step without cache."""
        return self.comparison.baseline.median

    @property
    def cached_s(self) -> float:
        """Give the median seconds of a step with the cache."""
        return self.comparison.candidate.median

    @property
    def saved_s(self) -> float:
        """Give the seconds that the cache saves on this token; below 0 it costs them."""
        return self.plain_s - self.cached_s

    @property
    def speedup(self) -> float:
        """Give the time without cache over that with it."""
        return self.comparison.speedup

    @property
    def verdict(self) -> str:
        """Say what is shown: `faster` is that the cache makes the step faster."""
        return self.comparison.verdict

    def to_dict(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "cache_bytes": self.cache_bytes,
            "plain_s": self.plain_s,
            "cached_s": self.cached_s,
            "saved_s": self.saved_s,
            "speedup": self.speedup,
            "speedup_low": self.comparison.speedup_low,
            "verdict": self.verdict,
            "comparison": self.comparison.to_dict(),
        }


@dataclass(frozen=True)
class CacheTradeoff(Shown):
    """Cache bytes against time saved, at growing lengths of the text."""

    name: str
    backend: str
    batch_size: int
    points: tuple[CachePoint, ...]
    largest_difference: float
    """Between the logits with and without cache, over all lengths."""
    notes: tuple[str, ...] = ()

    @property
    def break_even(self) -> int | None:
        """Give the shortest measured length from which on the cache is shown to be faster.

        None when it is not, at the longest one.
        """
        found = None
        for point in reversed(self.points):
            if point.verdict != FASTER:
                break
            found = point.length
        return found

    @property
    def plain_total_s(self) -> float:
        """Estimate a whole generation without cache, from the first to the last measured length.

        Like all totals, it adds up the steps between, which are taken from the straight lines
        through the measured ones.
        """
        return self._total(lambda point: point.plain_s)

    @property
    def cached_total_s(self) -> float:
        """Estimate the same generation with the cache."""
        return self._total(lambda point: point.cached_s)

    @property
    def saved_total_s(self) -> float:
        """Estimate the seconds that the cache saves on a whole generation."""
        return self.plain_total_s - self.cached_total_s

    def _total(self, seconds: Callable[[CachePoint], float]) -> float:
        total = seconds(self.points[0])
        for before, after in zip(self.points, self.points[1:], strict=False):
            steps = after.length - before.length
            first, last = seconds(before), seconds(after)
            # The steps after `before`, up to and with `after`, on a straight line.
            total += steps * first + (last - first) * (steps + 1) / 2
        return total

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        return {
            "name": self.name,
            "backend": self.backend,
            "batch_size": self.batch_size,
            "points": [point.to_dict() for point in self.points],
            "largest_difference": self.largest_difference,
            "break_even": self.break_even,
            "plain_total_s_estimated": self.plain_total_s,
            "cached_total_s_estimated": self.cached_total_s,
            "saved_total_s_estimated": self.saved_total_s,
            "notes": list(self.notes),
        }
