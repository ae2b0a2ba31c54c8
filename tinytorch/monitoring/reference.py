"""The reference: how long layers take, given the load and the machine, as learned once and frozen.

The time of a layer moves with the size of the input, with calls at once and with whatever else the
machine does. So each watched time is explained by a robust regression of logarithms on these (the
machine as two short probes beside every sampled call, and all other layers of the same call), and
what is judged is the residual: it stays where it is when everything slows down together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tinytorch.codec import Coded

Array = npt.NDArray[np.float64]
MODEL, MACHINE = "<model>", "<machine>"
"""Series beside those of layers: all of a call given the machine, and the machine itself."""
MOST_LAYERS = 24
LEAST_SHARE = 0.01
"""A layer that takes less of a call is not watched: its time is mostly that of the clock."""
LEVEL = 0.8
"""The frozen quantile of the residuals of a reference."""
EFFECTS = {MODEL: 0.12, MACHINE: 0.25}
LAYER_EFFECT = 0.10
"""How much slower something has to be, at least, for a minute to count against it."""
SPREADS = 3.0
"""How far beyond the mean share of the reference's minutes, in their standard deviations."""
HIGHEST_LIMIT = 0.97
LEAST_CALLS = 10
"""With fewer sampled calls nothing is said about a minute; they wait for the next one."""
HUBER, ITERATIONS, RIDGE = 1.5, 8, 1e-3
TINY_S = 1e-9


@dataclass(frozen=True)
class Calls:
    """Sampled calls, a row each; `layers` has the own seconds of each layer, in a fixed order."""

    minutes: Array
    sizes: Array
    in_flight: Array
    probes: Array
    """(calls, 2): seconds of two fixed pieces of work, in registers and in memory."""
    total: Array
    layers: Array

    def __len__(self) -> int:
        return len(self.total)

    def of(self, rows: npt.NDArray[np.bool_], columns: Sequence[int] | None = None) -> Calls:
        """Return some rows, and some of the layers."""
        layers = self.layers[rows]
        return Calls(
            self.minutes[rows],
            self.sizes[rows],
            self.in_flight[rows],
            self.probes[rows],
            self.total[rows],
            layers if columns is None else layers[:, list(columns)],
        )


@dataclass(frozen=True)
class Reference(Coded):
    """What was learned. `series` are paths of layers, then MODEL and MACHINE.

    `weights` has a row of coefficients per series. In a minute in which the share of calls whose
    residual lies above `levels` exceeds `limits`, the series was slow.
    """

    series: tuple[str, ...]
    layer_shares: tuple[float, ...]
    sizes: tuple[int, ...]
    weights: Array
    levels: Array
    limits: Array
    size_limits: Array
    memory_limit: float
    minutes: int
    calls: int

    @property
    def layers(self) -> tuple[str, ...]:
        return self.series[:-2]

    def residuals(self, calls: Calls) -> Array:
        """Return log seconds beyond what load and machine explain: (calls, series).

        `calls.layers` has the layers of this reference.
        """
        times, features = _times(calls), _features(calls, self.sizes)
        found: Array = times - features @ self.weights.T
        return found

    def knows(self, calls: Calls) -> npt.NDArray[np.bool_]:
        """Return which calls have an input size that the reference has seen often enough."""
        return np.isin(calls.sizes, self.sizes)


def learn(
    calls: Calls, names: Sequence[str], size_counts: Sequence[dict[int, int]], memory: Array
) -> Reference:
    """Fit the regressions and freeze the levels; `size_counts` and `memory` are per minute."""
    shares = calls.layers.sum(0) / calls.total.sum()
    order = np.argsort(-shares)[:MOST_LAYERS]
    columns = sorted(int(each) for each in order if shares[each] >= LEAST_SHARE)
    values, seen = np.unique(calls.sizes, return_counts=True)
    sizes = tuple(int(value) for value, n in zip(values, seen, strict=True) if n >= LEAST_CALLS)
    calls = calls.of(np.isin(calls.sizes, sizes), columns)
    series = (*(names[column] for column in columns), MODEL, MACHINE)
    times, features = _times(calls), _features(calls, sizes)
    weights = np.stack(
        [
            _robust_fit(features, times[:, at], _explaining(at, len(columns), len(sizes)))
            for at in range(len(series))
        ]
    )
    residuals = times - features @ weights.T
    levels = np.quantile(residuals, LEVEL, axis=0)
    effects = np.array([math.log1p(EFFECTS.get(name, LAYER_EFFECT)) for name in series])
    return Reference(
        series=series,
        layer_shares=tuple(float(shares[column]) for column in columns),
        sizes=sizes,
        weights=weights,
        levels=levels,
        limits=_limits(residuals, levels, effects, calls.minutes),
        size_limits=_size_limits(size_counts, sizes),
        memory_limit=1.05 * float(memory.max()) + 16 * 2**20,
        minutes=len(size_counts),
        calls=len(calls),
    )


def _times(calls: Calls) -> Array:
    """Return the logarithms of what is judged: (calls, series)."""
    probes = np.log(np.maximum(calls.probes, TINY_S)).mean(1)
    layers = np.log(np.maximum(calls.layers, TINY_S))
    total = np.log(np.maximum(calls.total, TINY_S))
    return np.column_stack([layers, total, probes])


def _features(calls: Calls, sizes: Sequence[int]) -> Array:
    """Return what explains it: sizes, calls at once, probes, layers: (calls, features)."""
    return np.column_stack(
        [
            calls.sizes[:, None] == np.array(sizes)[None],
            np.log(np.maximum(calls.in_flight, 1)),
            np.log(np.maximum(calls.probes, TINY_S)),
            np.log(np.maximum(calls.layers, TINY_S)),
        ]
    ).astype(np.float64)


def _explaining(at: int, layers: int, sizes: int) -> npt.NDArray[np.bool_]:
    """Return which features explain a series: a layer never itself, the machine only the load."""
    kept = np.ones(sizes + 3 + layers, bool)
    if at < layers:
        kept[sizes + 3 + at] = False
    else:
        kept[sizes + 3 :] = False
        kept[sizes + 1 : sizes + 3] = at == layers
    return kept


def _robust_fit(features: Array, times: Array, kept: npt.NDArray[np.bool_]) -> Array:
    """Return Huber's regression by reweighting; a coefficient that is not kept is 0."""
    used = features[:, kept]
    trust: Array = np.ones(len(times))
    found: Array = np.zeros(used.shape[1])
    for _ in range(ITERATIONS):
        weighted = used * trust[:, None]
        normal = used.T @ weighted + RIDGE * np.eye(used.shape[1])
        found = np.asarray(np.linalg.solve(normal, weighted.T @ times), np.float64)
        off = np.abs(times - used @ found)
        scale = 1.4826 * float(np.median(off)) + TINY_S
        trust = np.asarray(1 / np.maximum(1, off / (HUBER * scale)), np.float64)
    coefficients = np.zeros(features.shape[1])
    coefficients[kept] = found
    return coefficients


def shares_by_minute(above: npt.NDArray[np.bool_], minutes: Array) -> Array:
    """Return the share of true values per minute with enough calls: (minutes, series)."""
    found, place = np.unique(minutes, return_inverse=True)
    counts = np.bincount(place, minlength=len(found)).astype(np.float64)
    sums = np.stack([np.bincount(place, each, minlength=len(found)) for each in above.T], 1)
    enough = counts >= LEAST_CALLS
    shares: Array = sums[enough] / counts[enough, None]
    return shares


def _limits(residuals: Array, levels: Array, effects: Array, minutes: Array) -> Array:
    """Return the share that makes a minute slow: as if slower by the effect, and never seen yet."""
    if_slower = (residuals > levels - effects).mean(0)
    seen = shares_by_minute(residuals > levels, minutes)
    if not len(seen):
        return np.full(len(levels), HIGHEST_LIMIT)
    unusual = seen.mean(0) + SPREADS * seen.std(0)
    limits: Array = np.minimum(np.maximum.reduce([if_slower, unusual, seen.max(0)]), HIGHEST_LIMIT)
    return limits


def _size_limits(counts: Sequence[dict[int, int]], sizes: Sequence[int]) -> Array:
    """Return the share of calls per size beyond which the mix has changed; others come last."""
    seen = np.array([size_shares(each, sizes) for each in counts if sum(each.values())])
    unusual = np.maximum(seen.mean(0) + SPREADS * seen.std(0), seen.max(0))
    limits: Array = np.minimum(unusual + 0.1, HIGHEST_LIMIT)
    return limits


def size_shares(counts: dict[int, int], sizes: Sequence[int]) -> Array:
    """Return the share of each known size in a minute's calls, and of all others."""
    total = max(1, sum(counts.values()))
    known = [counts.get(size, 0) / total for size in sizes]
    return np.array([*known, max(0.0, 1 - sum(known))])
