"""Runs: their values in order, and how these are distributed, the runs over one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tinytorch.reporting.document import Distribution, Run, RunOrder
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.plot import (
    STRETCHED,
    Scale,
    across,
    across_axis,
    dots,
    legend,
    plot,
    stretched,
    stretched_steps,
    upright_axis,
    upright_line,
    words,
)
from tinytorch.reporting.quantities import value_text

__all__ = ["overlaid_distributions", "run_order"]

RUN_ORDER_HEIGHT = 190
PLACES = 400
"""Dots stand at one of so many places across."""
INNER = (0.5, 99.0)
"""Percentiles between which all of the height is used; slower ones stand at the upper edge."""
HEADROOM = 0.08
DOTS_IN_A_PLACE, RARE = 4, (1.0, 99.0)
"""Of many values in one place about so many are drawn, and all outside of these percentiles of the
run: what is rare must not be thinned out."""
MOST_BREAKS = 60


def run_order(chart: RunOrder) -> Markup:
    """Draw values from left to right, the runs in colours of their own.

    Values beyond the upper edge stand on it, and their number is said.
    """
    runs = chart.runs
    longest = max(len(run.values) for run in runs)
    low, high = _ends(runs)
    x = Scale(-0.5, longest - 0.5, 0, 100)
    y = Scale(low, high, RUN_ORDER_HEIGHT, 0)
    beyond = sum(value > high for run in runs for value in run.values)
    parts = [
        *upright_axis(y, partial(value_text, unit=chart.unit)),
        *_breaks(x, chart.breaks),
        *(_level(run, y) for run in runs if run.interval),
        *(_dots(run, x, y, place) for place, run in enumerate(runs, 1)),
        words(0, RUN_ORDER_HEIGHT + 16, "first", class_="tick"),
        words(
            100,
            RUN_ORDER_HEIGHT + 16,
            f"last of {longest} {chart.things}",
            class_="tick",
            anchor="end",
        ),
    ]
    if beyond:
        parts.append(words(100, -8, f"↑ {beyond} above", class_="tick", anchor="end"))
    label = f"times of {', '.join(run.name for run in runs)} in their order"
    return joined(
        [_legend_of(runs), plot(RUN_ORDER_HEIGHT, *parts, label=label, top=18, class_="run-order")]
    )


def _legend_of(runs: Sequence[Run]) -> Markup:
    """Name the sides beside their colours."""
    return legend((f"series-{place}", run.name) for place, run in enumerate(runs, 1))


def _ends(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the ends of the axis: rare slow values must not flatten the rest."""
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
    return [upright_line(at, 0, RUN_ORDER_HEIGHT, class_="grid break") for at in lines]


def _level(run: Run, y: Scale) -> Markup:
    """Draw the interval of the median as a band, and the median in it."""
    low, high = run.interval or (0.0, 0.0)
    top, bottom = y(high), y(low)
    middle = y(float(np.median(run.values)))
    band = element("rect", x=0, width="100%", y=top, height=max(bottom - top, 1.0), class_="band")
    return joined([band, element("line", x1=0, x2="100%", y1=middle, y2=middle, class_="middle")])


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
    return stretched(dots(places, class_=f"series-{place}", title=run.name), RUN_ORDER_HEIGHT)


def _some_of(values: list[float], low: float, high: float) -> list[float]:
    """Return every n-th value in their order, and all beyond these two."""
    step = -(-len(values) // DOTS_IN_A_PLACE)
    return [
        value for place, value in enumerate(values) if place % step == 0 or not low <= value <= high
    ]


# ---------------------------------------------------------------- how the times of two sides are
# distributed: histograms over one axis, one behind the other

OVERLAID_HEIGHT = 190
BINS = 60
OUTER = 1.0
"""Percent of the values at the upper end that may lie beyond the picture."""


def overlaid_distributions(chart: Distribution) -> Markup:
    """Draw how often which value was seen, each run's share of its own values, and its median.

    What is larger than the picture reaches is counted at its right edge.
    """
    runs, write = chart.runs, partial(value_text, unit=chart.unit)
    every = np.concatenate([np.asarray(run.values, np.float64) for run in runs])
    low, high = float(every.min()), float(np.percentile(every, 100 - OUTER))
    if not high > low:
        low, high = float(every.min()), float(every.max())
    spare = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = max(0.0, low - spare), high + spare
    x = Scale(low, high, 0, 100)
    edges = np.linspace(low, high, BINS + 1)
    shares = [_shares(run.values, edges) for run in runs]
    y = Scale(0, max(float(each.max()) for each in shares), OVERLAID_HEIGHT, 0)
    parts = [
        *across_axis(x, OVERLAID_HEIGHT, write),
        *(_band(run, x) for run in runs if run.interval),
        *(_steps(each, edges, x, y, place) for place, each in enumerate(shares, 1)),
        *(_median(run, x, write, place) for place, run in enumerate(runs, 1)),
    ]
    beyond = int((every > high).sum())
    if beyond:
        parts.append(words(100, -8, f"{beyond} beyond →", class_="tick", anchor="end"))
    label = f"distribution of the times of {' and '.join(run.name for run in runs)}"
    picture = plot(OVERLAID_HEIGHT, *parts, label=label, left=12, top=18, class_="distribution")
    return joined([_legend_of(runs), picture])


def _shares(values: Sequence[float], edges: np.ndarray) -> np.ndarray:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges)
    return counts / len(values)


def _steps(shares: np.ndarray, edges: np.ndarray, x: Scale, y: Scale, place: int) -> Markup:
    """Draw the outline of a histogram, filled so that the other shines through."""
    places = [x(float(left)) for left in edges[:-1]]
    upper = [y(float(share)) for share in shares]
    floor = [y(0)] * len(upper)
    return stretched_steps(places, floor, upper, OVERLAID_HEIGHT, class_=f"area series-{place}")


def _band(run: Run, x: Scale) -> Markup:
    left, right = (x(end) for end in run.interval or (0.0, 0.0))
    width = across(max(right - left, 0.2))
    return element("rect", x=across(left), width=width, y=0, height=OVERLAID_HEIGHT, class_="band")


def _median(run: Run, x: Scale, write: Callable[[float], str], place: int) -> Markup:
    middle = float(np.median(run.values))
    return element(
        "g",
        element("title", f"median of {run.name}: {write(middle)}"),
        upright_line(x(middle), 0, OVERLAID_HEIGHT, class_=None),
        class_=f"line median series-{place}",
    )
