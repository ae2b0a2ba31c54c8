"""Times in the order in which they were measured, a dot for each, of one or more sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tinytorch.reporting.html.markup import Markup, joined
from tinytorch.reporting.html.plot import (
    STRETCHED,
    dots,
    legend,
    plot,
    stretched,
    upright_axis,
    upright_line,
    words,
)
from tinytorch.reporting.html.svg import Scale

__all__ = ["Run", "legend_of", "run_order"]

HEIGHT = 190
PLACES = 400
"""Dots stand at one of so many places across."""
INNER = (0.5, 99.0)
"""Percentiles between which all of the height is used; slower ones stand at the upper edge."""
HEADROOM = 0.08
DOTS_IN_A_PLACE, RARE = 4, (1.0, 99.0)
"""Of many values in one place about so many are drawn, and all outside of these percentiles of the
run: what is rare must not be thinned out."""
MOST_BREAKS = 60


@dataclass(frozen=True)
class Run:
    """The values of one side, in their order."""

    name: str
    values: Sequence[float]


def run_order(
    runs: Sequence[Run],
    write: Callable[[float], str],
    *,
    breaks: Sequence[int] = (),
    things: str = "turns",
) -> Markup:
    """Draw values from left to right, the sides in colours of their own.

    `breaks` are the places where something began anew, such as a round; where there are too many
    to see they are left out. Values beyond the upper edge stand on it, and their number is said.
    """
    longest = max(len(run.values) for run in runs)
    low, high = _ends(runs)
    x = Scale(-0.5, longest - 0.5, 0, 100)
    y = Scale(low, high, HEIGHT, 0)
    beyond = sum(value > high for run in runs for value in run.values)
    parts = [
        *upright_axis(y, write),
        *_breaks(x, breaks),
        *(_dots(run, x, y, place) for place, run in enumerate(runs, 1)),
        words(0, HEIGHT + 16, "first", class_="tick"),
        words(100, HEIGHT + 16, f"last of {longest} {things}", class_="tick", anchor="end"),
    ]
    if beyond:
        parts.append(words(100, -8, f"↑ {beyond} above", class_="tick", anchor="end"))
    label = f"times of {', '.join(run.name for run in runs)} in their order"
    return joined([legend_of(runs), plot(HEIGHT, *parts, label=label, top=18, class_="run-order")])


def legend_of(runs: Sequence[Run]) -> Markup:
    """Name the sides beside their colours."""
    return legend((f"series-{place}", run.name) for place, run in enumerate(runs, 1))


def _ends(runs: Sequence[Run]) -> tuple[float, float]:
    """Give the ends of the axis: rare slow values must not flatten the rest."""
    every = np.concatenate([np.asarray(run.values, np.float64) for run in runs])
    low, high = (float(end) for end in np.percentile(every, INNER))
    if high <= low:
        low, high = float(every.min()), float(every.max())
    spare = HEADROOM * (high - low) or 0.05 * abs(high) or 1.0
    return max(0.0, low - spare), high + spare


def _breaks(x: Scale, breaks: Sequence[int]) -> list[Markup]:
    if len(breaks) > MOST_BREAKS:
        return []
    lines = (x(place - 0.5) for place in breaks if place > 0)
    return [upright_line(at, 0, HEIGHT, class_="grid break") for at in lines]


def _dots(run: Run, x: Scale, y: Scale, place: int) -> Markup:
    columns: dict[int, list[float]] = {}
    for index, value in enumerate(run.values):
        columns.setdefault(round(x(index) * PLACES / 100), []).append(value)
    rare = np.percentile(run.values, RARE)
    places = [
        (column * STRETCHED / PLACES, y(value))
        for column, values in columns.items()
        for value in _some_of(values, float(rare[0]), float(rare[1]))
    ]
    return stretched(dots(places, class_=f"series-{place}", title=run.name), HEIGHT)


def _some_of(values: list[float], low: float, high: float) -> list[float]:
    """Give every n-th value in their order, and all beyond these two."""
    step = -(-len(values) // DOTS_IN_A_PLACE)
    return [
        value for place, value in enumerate(values) if place % step == 0 or not low <= value <= high
    ]
