"""Histograms of seconds over log-spaced bins: a fixed number of counters, whatever is added."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tinytorch.codec import Coded
from tinytorch.errors import SettingError
from tinytorch.reading import shown

LOWEST_S = 1e-6
BINS_PER_DOUBLING = 8
"""Bins are 9% wide, so a quantile is off by at most half of that."""
BINS = 28 * BINS_PER_DOUBLING
"""From a microsecond to four minutes; what lies outside is in the first or the last bin."""
NAMES = frozenset(map(str, range(BINS)))
_OFFSET = -math.log2(LOWEST_S) * BINS_PER_DOUBLING
_log2 = math.log2


@dataclass(frozen=True)
class Distribution(Coded):
    """Counts by bin, the sum and the largest value of what was added: times in seconds."""

    counts: Mapping[str, int] = field(default_factory=dict)
    sum_s: float = 0.0
    most_s: float = 0.0

    def __post_init__(self) -> None:
        if wrong := self.counts.keys() - NAMES:
            raise SettingError(f"no histogram has a bin {shown(min(wrong))}; there are {BINS}")

    @property
    def n(self) -> int:
        return sum(self.counts.values())

    @property
    def mean_s(self) -> float | None:
        return self.sum_s / self.n if self.n else None

    def quantile(self, share: float) -> float | None:
        """Return a quantile, in the middle of its bin; None where nothing was added.

        >>> histogram = Histogram()
        >>> for milliseconds in range(1, 101):
        ...     histogram.add(milliseconds / 1000)
        >>> 0.047 < histogram.frozen().quantile(0.5) < 0.053
        True
        """
        missing = share * self.n
        for index in sorted(map(int, self.counts)):
            missing -= self.counts[str(index)]
            if missing <= 0 and self.counts[str(index)]:
                middle = 2.0 ** ((index + 0.5 - _OFFSET) / BINS_PER_DOUBLING)
                return min(middle, self.most_s)
        return None

    def since(self, before: Distribution) -> Distribution:
        """Return what was added after an earlier state; its largest value is that of all."""
        counts = {at: n - before.counts.get(at, 0) for at, n in self.counts.items()}
        return Distribution(counts, self.sum_s - before.sum_s, self.most_s)

    @staticmethod
    def joined(parts: Iterable[Distribution]) -> Distribution:
        """Return the distribution of everything in several."""
        parts = tuple(parts)
        counts: Counter[str] = Counter()
        for each in parts:
            counts.update(each.counts)
        sums = (each.sum_s for each in parts)
        return Distribution(dict(counts), sum(sums), max((x.most_s for x in parts), default=0.0))


class Histogram:
    """A distribution that grows; whoever adds from several threads holds a lock."""

    __slots__ = ("counts", "most_s", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * BINS
        self.sum_s = 0.0
        self.most_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one value."""
        index = int(_log2(seconds) * BINS_PER_DOUBLING + _OFFSET) if seconds > LOWEST_S else 0
        self.counts[index if index < BINS else BINS - 1] += 1
        self.sum_s += seconds
        if seconds > self.most_s:
            self.most_s = seconds

    def frozen(self) -> Distribution:
        """Return what was added so far."""
        counts = {str(index): count for index, count in enumerate(self.counts) if count}
        return Distribution(counts, self.sum_s, self.most_s)
