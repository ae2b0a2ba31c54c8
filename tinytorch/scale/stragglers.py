"""Which rank holds the others up, and by what: input, compute, host or a link.

A rank is named when it works longer than the median of the others by more than `FLOOR` of a step,
and the interval of that lies beyond it. The steps are taken in blocks, since what disturbs one
often disturbs the next; all ranks and links together raise a false alarm in at most
`FALSE_ALARMS` of the runs in which no rank is slower by more than the floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tinytorch.codec import Coded
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Samples

FLOOR = 0.03
"""The share of a step by which a rank must hold the others up."""
LINK_FLOOR = 2.0
"""How many times slower than the others a link must be."""
FALSE_ALARMS = 0.05
BLOCKS, LEAST_BLOCK = 20, 2
CAUSES = {"compute": ("compute", "hidden"), "input": ("input",), "host": ("host",)}
"""Cause -> the parts of a step in which it shows."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Straggler(Coded):
    """A rank that holds the others up by `excess`, a share of the step.

    `subject` is the layer where computing takes longer, or the link; empty where neither is known.
    """

    rank: int
    cause: str
    excess: Estimate
    subject: str = ""


def find_stragglers(
    parts: Mapping[int, Mapping[str, Array]],
    step_s: float,
    *,
    layers: Mapping[int, Mapping[str, Array]] | None = None,
    false_alarms: float = FALSE_ALARMS,
) -> list[Straggler]:
    """Return the ranks that hold others up, by seconds of each part in each step of each rank.

    `layers` are seconds of the layers in each step, for the ranks that have them.
    """
    if len(parts) < 2:
        return []
    own = {
        rank: sum((each[part] for part in _WORK), start=np.zeros(1)) for rank, each in parts.items()
    }
    found = []
    for rank in parts:
        excess = _excess(own, rank, step_s, level=false_alarms / len(parts))
        if excess is None or excess.low <= FLOOR:
            continue
        by_cause = {
            cause: _typical(
                {r: sum((p[x] for x in names), start=np.zeros(1)) for r, p in parts.items()}, rank
            )
            for cause, names in CAUSES.items()
        }
        cause = max(by_cause, key=lambda each: by_cause[each])
        subject = ""
        if cause == "compute" and layers and rank in layers:
            subject = slow_layer(layers, rank, by_cause[cause])
        found.append(Straggler(rank, cause, excess, subject))
    return sorted(found, key=lambda each: -each.excess.value)


_WORK = tuple(part for parts in CAUSES.values() for part in parts)


def slow_layer(
    layers: Mapping[int, Mapping[str, Array]], rank: int, excess_s: float, *, share: float = 0.25
) -> str:
    """Return the layer that takes longer on a rank than on the others, or "" where it is not one.

    Its forward pass alone must take the given share of all that the rank computes longer, and more
    than half of what all layers together take longer.
    """
    more = {
        path: _typical({r: each[path] for r, each in layers.items() if path in each}, rank)
        for path in layers[rank]
    }
    if not more:
        return ""
    most = max(more, key=lambda path: more[path])
    others = sum(max(0.0, each) for each in more.values())
    return most if more[most] > share * excess_s and more[most] > others / 2 else ""


def steps_needed(ranks: int) -> int:
    """Return how many steps it takes until any rank can be named: with fewer, none ever is."""
    return LEAST_BLOCK * math.ceil(math.log2(2 * ranks / FALSE_ALARMS))


def _typical(seconds: Mapping[int, Array], rank: int) -> float:
    """Return by how many seconds a rank exceeds the median of the others in a typical step."""
    return float(np.median(_beyond_others(seconds, rank))) if len(seconds) > 1 else 0.0


def _beyond_others(seconds: Mapping[int, Array], rank: int) -> Array:
    others = [each for other, each in seconds.items() if other != rank]
    return np.asarray(seconds[rank] - np.median(others, axis=0))


def _excess(
    seconds: Mapping[int, Array], rank: int, step_s: float, *, level: float
) -> Estimate | None:
    values = blocks_of(_beyond_others(seconds, rank) / step_s)
    return _estimate(values, level) if len(values) > 1 else None


def _estimate(values: Sequence[float], level: float) -> Estimate:
    """Estimate a median; its interval errs at each of its ends with the probability `level`.

    Only too high a lower end raises an alarm. Signs stand bursts on a few blocks, which means of
    pairs do not.
    """
    return Samples("", tuple(values)).percentile_interval(50, 1 - 2 * level)


def blocks_of(values: Array) -> list[float]:
    """Return the medians of up to `BLOCKS` blocks of neighbouring values."""
    size = max(LEAST_BLOCK, math.ceil(len(values) / BLOCKS))
    count = len(values) // size
    return [float(np.median(values[each * size : (each + 1) * size])) for each in range(count)]


# ---------------------------------------------------------------- links


def find_slow_links(
    rates: Mapping[tuple[int, int], Sequence[float]],
    communication: float,
    *,
    false_alarms: float = FALSE_ALARMS,
) -> list[Straggler]:
    """Return the links that are slower than the median of the others by more than `LINK_FLOOR`.

    `rates` are bytes per second by sender and receiver, `communication` the share of a step in
    which ranks are blocked by transfers: what is not waited for is no matter.
    """
    if len(rates) < 2 or communication < FLOOR:
        return []
    found = []
    for link, each in rates.items():
        # Neighbouring measurements of all links were disturbed alike.
        others = np.median([values for other, values in rates.items() if other != link], axis=0)
        values = np.log(others / np.array(each)).tolist()
        slower = _estimate(values, false_alarms / len(rates))
        if slower.low <= math.log(LINK_FLOOR):
            continue
        # With the rate of the others the transfers would take that much less.
        middle, low, high = (
            communication * (1 - math.exp(-value)) for value in (slower.value, *slower)
        )
        excess = Estimate(middle, low, high, coverage=slower.coverage, n=slower.n)
        found.append(Straggler(link[0], "link", excess, f"{link[0]}>{link[1]}"))
    return sorted(found, key=lambda each: -each.excess.value)
