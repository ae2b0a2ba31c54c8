"""Values in their order: of runs, with their distribution, and of a series with its levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from tinytorch.reporting.document import Distribution, Run, RunOrder, TrendLine
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.plot import (
    STRETCHED,
    Scale,
    across,
    across_axis,
    dots,
    legend,
    plot,
    polyline,
    stretched,
    stretched_steps,
    upright_axis,
    upright_line,
    words,
)
from tinytorch.reporting.quantities import value_text

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


# ---------------------------------------------------------------- values of a series, with their
# intervals, and a line where a level begins

TREND_HEIGHT = 210
SMALL_WIDTH, SMALL_HEIGHT = 110, 24
LARGE, SMALL, MANY = 4.5, 2.5, 80
"""Radius of a point, and of one among many."""


def trend_picture(chart: TrendLine) -> Markup:
    """Draw values from left to right, as the terminal's trend plot does."""
    values, steps, (low, high) = chart.values, chart.steps, chart.range
    x = Scale(-0.5, max(0.5, len(values) - 0.5), 0, 100)
    y = Scale(low, high, TREND_HEIGHT, 0)
    return plot(
        TREND_HEIGHT,
        *upright_axis(y, partial(value_text, unit=chart.unit)),
        *(part for step in steps for part in _step(x(step - 0.5))),
        *(_levels(values, steps, x, y) if chart.has_levels else ()),
        *_bars(chart.intervals, x, y),
        *_points(values, chart.titles, steps, x, y),
        words(0, TREND_HEIGHT + 16, chart.ends[0], class_="tick"),
        words(100, TREND_HEIGHT + 16, chart.ends[1], class_="tick", anchor="end"),
        label=f"{len(values)} values{_counted(chart)}",
        left=76,
        top=22,
        class_="trend",
    )


def _counted(chart: TrendLine) -> str:
    return f", {len(chart.steps)} changes of level" if chart.has_levels else ""


def small_trend(values: Sequence[float], *, label: str) -> Markup:
    """Draw a line no higher than a row of a table, with a point at its end."""
    x = Scale(0, max(1, len(values) - 1), 3, SMALL_WIDTH - 4)
    y = Scale(min(values), max(values), SMALL_HEIGHT - 4, 4)
    places = [(x(index), y(value)) for index, value in enumerate(values)]
    return element(
        "svg",
        element("title", label),
        polyline(places, class_="line series-1"),
        element("circle", cx=places[-1][0], cy=places[-1][1], r=2.5, class_="mark series-1"),
        viewBox=f"0 0 {SMALL_WIDTH} {SMALL_HEIGHT}",
        role="img",
        class_="picture",
        style=f"--width:{SMALL_WIDTH}px;margin:0 0 -.35rem",
    )


def _step(place: float) -> list[Markup]:
    return [
        upright_line(place, 0, TREND_HEIGHT, class_="faint"),
        words(place, -6, "change", class_="tick", anchor="middle"),
    ]


def _levels(values: Sequence[float], steps: Sequence[int], x: Scale, y: Scale) -> list[Markup]:
    parts = []
    for start, end in pairwise([0, *steps, len(values)]):
        level = y(float(np.median(values[start:end])))
        ends = across(x(start - 0.4)), across(x(end - 0.6))
        parts.append(element("line", x1=ends[0], x2=ends[1], y1=level, y2=level, class_="axis"))
    return parts


def _bars(bars: Sequence[tuple[float, float] | None], x: Scale, y: Scale) -> list[Markup]:
    lines = [
        upright_line(x(index), y(bar[0]), y(bar[1]), class_="interval series-1")
        for index, bar in enumerate(bars)
        if bar
    ]
    return [element("g", *lines, opacity=0.5)] if lines else []


def _points(
    values: Sequence[float], titles: Sequence[str], steps: Sequence[int], x: Scale, y: Scale
) -> list[Markup]:
    radius = SMALL if len(values) > MANY else LARGE
    parts = []
    for index, value in enumerate(values):
        inside = [element("title", titles[index])] if titles else []
        look = "mark series-2" if index in steps else "mark series-1"
        at = across(x(index))
        parts.append(element("circle", *inside, cx=at, cy=y(value), r=radius, class_=look))
    return parts
