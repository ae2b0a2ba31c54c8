"""Memory over time, from the books on every buffer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from tinytorch.adapters.records import Allocation

__all__ = ["MemoryTimeline"]

LASTING = ("parameters", "buffers", "inputs", "optimizer state")
"""The categories of what is there for longer than a call."""


@dataclass(frozen=True)
class MemoryTimeline:
    """The buffers of one recorded call. Bytes are those of live buffers, each counted once.

    Scratch memory inside of an operator is not seen. Categories: parameters, buffers, inputs,
    optimizer state, activations (made by the forward pass), gradients (of parameters, kept) and
    temporaries (everything else that the backward pass or an update makes).
    """

    allocations: tuple[Allocation, ...]

    @cached_property
    def _events(self) -> list[tuple[float, int, Allocation]]:
        """Births and deaths in the order of time; at one moment deaths come first."""
        events = [(each.born, 1, each) for each in self.allocations]
        events += [(each.died, -1, each) for each in self.allocations if each.died is not None]
        return sorted(events, key=lambda event: (event[0], event[1]))

    @cached_property
    def points(self) -> tuple[tuple[float, dict[str, int]], ...]:
        """Bytes by category after each change: (seconds, {category: bytes})."""
        held: dict[str, int] = defaultdict(int)
        points = []
        for moment, sign, allocation in self._events:
            held[allocation.category] += sign * allocation.nbytes
            points.append((moment, dict(held)))
        return tuple(points)

    @cached_property
    def peak_time(self) -> float:
        """The moment at which most bytes were alive."""
        moment, _ = max(self.points, key=lambda point: sum(point[1].values()), default=(0.0, {}))
        return moment

    @cached_property
    def peak_bytes(self) -> int:
        """Most bytes alive at once, parameters and inputs included."""
        return max((sum(held.values()) for _, held in self.points), default=0)

    @property
    def peak_activation_bytes(self) -> int:
        """Most bytes alive at once of what the call itself made: no parameters, no inputs."""
        totals = [
            sum(size for category, size in held.items() if category not in LASTING)
            for _, held in self.points
        ]
        return max(totals, default=0)

    @cached_property
    def at_peak(self) -> tuple[Allocation, ...]:
        """The buffers that were alive at the peak."""
        moment = self.peak_time
        return tuple(
            each
            for each in self.allocations
            if each.born <= moment and (each.died is None or each.died > moment)
        )

    @property
    def peak_by_category(self) -> dict[str, int]:
        return _total(self.at_peak, lambda each: each.category)

    @property
    def peak_by_path(self) -> dict[str | None, int]:
        """Bytes alive at the peak by the layer that made or holds them."""
        return _total(self.at_peak, lambda each: each.path)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of everything that the call made, whether it was freed on the way or not."""
        return sum(each.nbytes for each in self.allocations if each.category not in LASTING)

    def allocated_by_path(self) -> dict[str | None, int]:
        """Bytes that each layer made in the forward pass."""
        made = [each for each in self.allocations if each.phase == "forward"]
        return _total(made, lambda each: each.path)

    def series(self, buckets: int = 200, *, from_first_change: bool = False) -> dict[str, Any]:
        """Give the highest level in each of `buckets` spans of time, for pictures.

        `seconds` are the ends of the spans. The highest `total` may be less than the sum of the
        `categories`, which peak at different times. `from_first_change` leaves out the time in
        which the recorder itself is starting.
        """
        if not self.points:
            return {"seconds": [], "categories": {}, "total": []}
        latest = dict(self.points)  # of the points of one moment the last, which is the highest
        moments = np.array(list(latest))
        names = sorted({category for held in latest.values() for category in held})
        levels = np.array([[h.get(name, 0) for name in names] for h in latest.values()])
        levels = np.column_stack([levels, levels.sum(axis=1)])  # (moments, categories + 1)
        changes = moments[moments > 0] if from_first_change and moments[-1] > 0 else moments
        edges = np.linspace(changes[0], changes[-1], buckets + 1)
        stops = np.searchsorted(moments, edges)
        stops[-1] = len(moments)
        # A span begins with the level before it.
        highest = np.array(
            [levels[max(begin - 1, 0) : max(end, 1)].max(axis=0) for begin, end in pairwise(stops)]
        )
        columns = highest.T.tolist()
        return {
            "seconds": edges[1:].tolist(),
            "categories": dict(zip(names, columns[:-1], strict=True)),
            "total": columns[-1],
        }


def _total(allocations: Iterable[Allocation], key: Any) -> dict[Any, int]:
    totals: dict[Any, int] = defaultdict(int)
    for each in allocations:
        totals[key(each)] += each.nbytes
    return dict(totals)
