"""Find the places where a series of measurements has changed its level, and not by chance.

The search works on ranks, and on distances that are cut off at a few spreads from the middle, so a
single wild value weighs little more than any other. A segment of the series is searched for the
stretch that differs most from the rest of it (circular binary segmentation, Olshen et al. 2004): a
change that was taken back after a while is found as well as one that stayed. How much stretches
differ by chance is learnt by shuffling the segment and searching again; the pieces of a segment
that has changed are then searched in the same way. In the end every place must hold against the
levels beside it, or it is dropped.

Each test gets the share of `significance` that its segment has of the series, so the chance of
any false finding in the whole search is at most `significance`.

What it assumes is that values of one level could have come in any order. Neighbours that resemble
each other, as on a machine that is slow for hours, appear as changes of level. A slow drift is
shown as a few steps in the same direction; :func:`drifts` tells it from real steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tinytorch.errors import SettingError, check_number
from tinytorch.measure.samples import MAD_TO_SIGMA

Array = npt.NDArray[np.float64]

GRID = 96
"""Windows of longer series start and end on a grid of this size; single steps are refined
to the exact index afterwards."""
EXCEEDED = 10
"""Permutations with as large a difference after which sampling stops (Besag and Clifford 1991)."""
MOST_SHUFFLES = 50_000
BATCH = 64
CLIP = 3.0
"""Standard deviations beyond which a value is not counted as being farther away."""
DRIFT_Z = 3.0
"""Standard deviations of Kendall's count from which on values drift inside of their levels."""


@dataclass(frozen=True)
class ChangePoint:
    """A change of level. `index` is the first value of the new level.

    `before` and `after` are the medians of the two levels, `ratio` the second over the first (None
    if that is zero). `p_value` is corrected for the whole search.
    """

    index: int
    before: float
    after: float
    ratio: float | None
    p_value: float


def find_change_points(
    values: Sequence[float] | Array,
    *,
    significance: float = 0.01,
    min_segment: int = 4,
    min_change: float = 0.01,
    seed: int = 0,
) -> tuple[ChangePoint, ...]:
    """Return the change points of a series, in order.

    `significance` is the chance of one or more false findings in the whole search. A level has at
    least `min_segment` values, and differs from the one before by at least `min_change` of it.
    About twelve values are the fewest in which a change can be shown at 1%. The same values and
    seed give the same answer.
    """
    series = np.asarray(values, dtype=np.float64)
    _check(series, significance, min_segment, min_change)
    if len(series) < 2 * min_segment:
        return ()
    search = _Search(series, significance, min_segment, min_change, np.random.default_rng(seed))
    places = search.segment(0, len(series))
    return search.confirmed(sorted(set(places)))


def drifts(values: Sequence[float] | Array, changes: Sequence[ChangePoint]) -> bool:
    """Return whether values drift in one direction within the detected levels.

    Then the changes are rather parts of one slow drift. It counts, inside of the levels, how many
    more pairs rise than fall (Mann-Kendall).
    """
    series = np.asarray(values, dtype=np.float64)
    edges = [0, *(change.index for change in changes), len(series)]
    excess, variance = 0.0, 0.0
    for start, end in pairwise(edges):
        level, n = series[start:end], end - start
        excess += float(np.sign(level[None, :] - level[:, None])[np.triu_indices(n, 1)].sum())
        variance += n * (n - 1) * (2 * n + 5) / 18
    return variance > 0 and abs(excess) / math.sqrt(variance) > DRIFT_Z


@dataclass(frozen=True)
class _Search:
    """The settings of one search, and the steps of it."""

    series: Array
    significance: float
    min_segment: int
    min_change: float
    rng: np.random.Generator

    def segment(self, start: int, end: int) -> list[int]:
        """Yield the candidate change points of a segment, recursively."""
        length = end - start
        if length < 2 * self.min_segment:
            return []
        arcs = _Arcs.within(length, self.min_segment)
        scores = _scores(self.series[start:end])
        level = self.significance * length / len(self.series)
        if self._p_value(scores, arcs, level) > level:
            return []
        first, last = arcs.best(scores)
        places = [place for place in (first, last) if 0 < place < length]
        edges = [0, *places, length]
        inner = [
            place
            for low, high in pairwise(edges)
            for place in self.segment(start + low, start + high)
        ]
        return [*(start + place for place in places), *inner]

    def confirmed(self, places: list[int]) -> tuple[ChangePoint, ...]:
        """Keep the places that hold against the levels beside them, the weakest dropped first."""
        while places:
            places = self._moved(places)
            changes = self._changes(places)
            weakest = max(
                range(len(places)),
                key=lambda at: (not self._is_large(changes[at]), changes[at].p_value),
            )
            found = changes[weakest]
            if self._is_large(found) and found.p_value <= self.significance:
                return tuple(changes)
            places.pop(weakest)
        return ()

    def _moved(self, places: list[int]) -> list[int]:
        """Move each place to where the levels beside it differ most."""
        moved = list(places)
        for at in range(len(moved)):
            start, end = self._beside(moved, at)
            splits = _Arcs.splits(end - start, self.min_segment)
            moved[at] = start + splits.best(_scores(self.series[start:end]))[1]
        return moved

    def _changes(self, places: list[int]) -> list[ChangePoint]:
        spans = [self._beside(places, at) for at in range(len(places))]
        all_lengths = sum(end - start for start, end in spans)
        changes = []
        for place, (start, end) in zip(places, spans, strict=True):
            share = (end - start) / all_lengths
            splits = _Arcs.splits(end - start, self.min_segment)
            scores = _scores(self.series[start:end])
            p_value = self._p_value(scores, splits, self.significance * share) / share
            before = float(np.median(self.series[start:place]))
            after = float(np.median(self.series[place:end]))
            ratio = after / before if before else None
            changes.append(ChangePoint(place, before, after, ratio, min(1.0, p_value)))
        return changes

    def _beside(self, places: list[int], at: int) -> tuple[int, int]:
        """Return the start of the level before a position, and the end of the level after it."""
        start = places[at - 1] if at else 0
        end = places[at + 1] if at + 1 < len(places) else len(self.series)
        return start, end

    def _is_large(self, change: ChangePoint) -> bool:
        difference = abs(change.after - change.before)
        return difference > 0 and difference >= self.min_change * abs(change.before)

    def _p_value(self, scores: Array, arcs: _Arcs, level: float) -> float:
        """Return the permutation p-value, precise enough to compare with `level`."""
        if not scores.any():  # All values are equal.
            return 1.0
        order = np.arange(scores.shape[1])
        seen = arcs.largest(scores[:, None, :])[0]
        shuffles = min(MOST_SHUFFLES, math.ceil(EXCEEDED / level))
        exceeded, done = 0, 0
        while done < shuffles:
            batch = np.tile(order, (min(BATCH, shuffles - done), 1))
            found = arcs.largest(scores[:, self.rng.permuted(batch, axis=1)])
            # Equal up to rounding counts as exceeded: the honest side.
            hits = np.flatnonzero(found >= seen * (1 - 1e-12))
            if exceeded + len(hits) >= EXCEEDED:
                return EXCEEDED / float(done + hits[EXCEEDED - exceeded - 1] + 1)
            exceeded += len(hits)
            done += len(batch)
        return (exceeded + 1) / (shuffles + 1)


@dataclass(frozen=True)
class _Arcs:
    """The stretches of a segment that are compared with the rest of it."""

    first: npt.NDArray[np.intp]
    last: npt.NDArray[np.intp]
    weight: Array
    """One over the standard deviation of the sum of the scores in it, up to a constant."""

    @classmethod
    def within(cls, length: int, least: int) -> _Arcs:
        """Return all windows of at least `least` values with as many on each side, or none.

        One that starts at the beginning or ends at the end is a single step; the two say the same.
        """
        inside = np.arange(least, length - least + 1)
        if len(inside) > GRID:
            inside = np.unique(np.linspace(least, length - least, GRID).round().astype(np.intp))
        places = np.concatenate([[0], inside])
        first, last = (each.ravel() for each in np.meshgrid(places, inside, indexing="ij"))
        fits = last - first >= least
        return cls.of(first[fits], last[fits], length)

    @classmethod
    def splits(cls, length: int, least: int) -> _Arcs:
        """Return the windows from the beginning: one for every single step."""
        last = np.arange(least, length - least + 1)
        return cls.of(np.zeros_like(last), last, length)

    @classmethod
    def of(cls, first: npt.NDArray[np.intp], last: npt.NDArray[np.intp], length: int) -> _Arcs:
        inside = last - first
        return cls(first, last, 1 / np.sqrt(inside * (length - inside)))

    def differences(self, scores: Array) -> Array:
        """Return the difference of each window from the rest; scores are (2, shuffles, length)."""
        sums = np.zeros((*scores.shape[:-1], scores.shape[-1] + 1))
        np.cumsum(scores, axis=-1, out=sums[..., 1:])
        return np.abs(sums[..., self.last] - sums[..., self.first]) * self.weight

    def largest(self, scores: Array) -> Array:
        """Return the largest difference of each permutation, by either score."""
        return self.differences(scores).max(axis=(0, 2))

    def best(self, scores: Array) -> tuple[int, int]:
        """Return the window with the largest difference."""
        at = int(self.differences(scores).max(axis=0).argmax())
        return int(self.first[at]), int(self.last[at])


def _scores(values: Array) -> Array:
    """Return two robust scores of each value, with mean 0 and variance 1: (2, length).

    Ranks see a change of many values, whatever else there is. Distances from the middle, cut off
    at a few spreads, see that the few values of a fresh change lie far from all others.
    """
    distances = values - np.median(values)
    if not distances.any():
        return np.zeros((2, len(values)))
    spread = float(np.median(np.abs(distances)))
    if spread == 0:  # More than half of the values are equal.
        spread = float(np.median(np.abs(distances[distances != 0])))
    clipped = np.clip(distances / (MAD_TO_SIGMA * spread), -CLIP, CLIP)
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # Equal values share theirs.
    both = np.stack([ranks, clipped])
    both -= both.mean(axis=1, keepdims=True)
    return both / both.std(axis=1, keepdims=True)


def _check(series: Array, significance: float, min_segment: int, min_change: float) -> None:
    if series.ndim != 1:
        raise SettingError(f"values of shape {series.shape}; give one number per record")
    if not np.isfinite(series).all():
        position = int(np.flatnonzero(~np.isfinite(series))[0])
        raise SettingError(f"value {series[position]} at position {position}; drop or fix it")
    check_number("significance", significance, above=0, below=1)
    check_number("min_segment", min_segment, least=2)
    check_number("min_change", min_change, least=0)
