"""Calibration: what was seen of the inputs of each layer, and the ranges that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.errors import SettingError
from tinytorch.formats.ranges import METHODS, RangeStatistics, choose_range
from tinytorch.perf.quantization.settings import Settings
from tinytorch.showing import Shown

__all__ = ["Calibration"]

NAMES_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Calibration(Mapping[str, RangeStatistics], Shown):
    """Statistics of the inputs of layers, by the paths of these, from so many batches.

    It is a mapping of them. `ranges` is how ranges are chosen unless another way is asked for.
    """

    statistics: Mapping[str, RangeStatistics]
    batches: int
    ranges: str = Settings.ranges

    def __post_init__(self) -> None:
        _check_ranges(self.ranges)

    def __getitem__(self, layer: str) -> RangeStatistics:
        return self.statistics[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.statistics)

    def __len__(self) -> int:
        return len(self.statistics)

    def range_of(self, layer: str, ranges: str | None = None) -> tuple[float, float]:
        """Choose the range to quantize the inputs of a layer by; it contains zero."""
        chosen = self.ranges if ranges is None else ranges
        _check_ranges(chosen)
        seen = self._of(layer)
        if not seen.count:
            raise SettingError(
                f"the inputs of layer {layer!r} were empty in all batches, so they have no range; "
                "calibrate with batches that reach it"
            )
        return choose_range(seen, chosen)

    def clipped_share(self, layer: str, limits: tuple[float, float]) -> float:
        """Estimate by the histogram which share of the inputs lies outside of a range.

        The range contains zero. Nothing is clipped by one that holds all that was seen.
        """
        low, high = limits
        if not low <= 0 <= high:
            raise SettingError(f"a range to quantize by contains zero, got {low:g} to {high:g}")
        seen = self._of(layer)
        if not seen.count or (low <= seen.low and seen.high <= high):
            return 0.0
        below = _others_below(seen, np.array([low, high]))
        inside = seen.zeros + float(below[1] - below[0])
        return min(max(1 - inside / seen.count, 0.0), 1.0)

    def shape_of(self, layer: str, pieces: int) -> tuple[float, ...]:
        """Give the shares of the inputs in equal pieces of all that was seen, and zero.

        The first piece begins at the lowest input or at zero, the last ends at the highest or at
        zero. Nothing if nothing was seen.
        """
        if pieces < 1:
            raise SettingError(f"pieces={pieces}; the range has at least one")
        seen = self._of(layer)
        if not seen.count:
            return ()
        edges = np.linspace(min(seen.low, 0.0), max(seen.high, 0.0), pieces + 1)
        below = _others_below(seen, edges)
        below[0], below[-1] = 0, seen.count - seen.zeros
        counts = np.diff(below)
        counts[np.clip(np.searchsorted(edges, 0.0, "right") - 1, 0, pieces - 1)] += seen.zeros
        return tuple((counts / seen.count).tolist())

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        return {
            "batches": self.batches,
            "ranges": self.ranges,
            "layers": {layer: seen.to_dict() for layer, seen in self.items()},
        }

    def _of(self, layer: str) -> RangeStatistics:
        if layer not in self.statistics:
            names = [repr(each) for each in self.statistics]
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            raise SettingError(
                f"layer {layer!r} was not calibrated; those that were: "
                f"{', '.join(names[:NAMES_SHOWN]) or 'none'}{more}"
            )
        return self.statistics[layer]


def _check_ranges(ranges: str) -> None:
    if ranges not in METHODS:
        raise SettingError(f"ranges={ranges!r}; choose one of {', '.join(METHODS)}")


def _others_below(seen: RangeStatistics, points: Array) -> Array:
    """Estimate how many inputs other than zero lie below each point; in bins by interpolation."""
    counts = seen.histogram.astype(np.float64)
    if seen.zeros:
        counts[-seen.first_bin] -= seen.zeros  # many are exactly zero, not spread over their bin
    edges = np.clip(seen.edges, seen.low, seen.high)
    return np.interp(points, edges, np.concatenate([[0.0], np.cumsum(counts)]))
