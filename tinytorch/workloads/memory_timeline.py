"""Memory over time, from the books on every buffer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tinytorch.adapters.records import Allocation

__all__ = ["MemoryTimeline"]

RESIDENT = ("parameters", "buffers", "inputs", "optimizer state")
"""What is there before the model runs."""


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

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at once, parameters and inputs included."""
        return max((sum(held.values()) for _, held in self.points), default=0)

    @property
    def peak_activation_bytes(self) -> int:
        """Most bytes alive at once of what the call itself made: no parameters, no inputs."""
        totals = [
            sum(size for category, size in held.items() if category not in RESIDENT)
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
        return sum(each.nbytes for each in self.allocations if each.category not in RESIDENT)

    def allocated_by_path(self) -> dict[str | None, int]:
        """Bytes that each layer made in the forward pass."""
        made = [each for each in self.allocations if each.phase == "forward"]
        return _total(made, lambda each: each.path)

    def series(self, buckets: int = 200) -> dict[str, Any]:
        """Give the highest level in each of `buckets` spans of time, by category, for pictures."""
        if not self.points:
            return {"seconds": [], "categories": {}}
        moments = np.array([moment for moment, _ in self.points])
        edges = np.linspace(moments[0], moments[-1], buckets + 1)
        indices = np.clip(np.searchsorted(edges, moments, side="right") - 1, 0, buckets - 1)
        if edges[0] == edges[-1]:
            indices[:] = 0  # no time passes: what is there is there from the start
        names = sorted({category for _, held in self.points for category in held})
        levels = {name: np.zeros(buckets) for name in names}
        latest: dict[str, int] = {}
        filled = -1
        for index, (_, held) in zip(indices, self.points, strict=True):
            for name in names:
                levels[name][filled + 1 : index + 1] = latest.get(name, 0)
                levels[name][index] = max(levels[name][index], held.get(name, 0))
            filled, latest = int(index), held
        for name in names:
            levels[name][filled + 1 :] = latest.get(name, 0)
        return {
            "seconds": edges[1:].tolist(),
            "categories": {name: values.tolist() for name, values in levels.items()},
        }


def _total(allocations: Iterable[Allocation], key: Any) -> dict[Any, int]:
    totals: dict[Any, int] = defaultdict(int)
    for each in allocations:
        totals[key(each)] += each.nbytes
    return dict(totals)
