"""Values of a series in their order, with their intervals, and a line where a level begins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from tinytorch.reporting.document import TrendLine
from tinytorch.reporting.html.markup import Markup, element
from tinytorch.reporting.html.plot import (
    Scale,
    across,
    plot,
    polyline,
    upright_axis,
    upright_line,
    words,
)
from tinytorch.reporting.quantities import value_text

__all__ = ["small_trend", "trend_picture"]

HEIGHT = 210
SMALL_WIDTH, SMALL_HEIGHT = 110, 24
LARGE, SMALL, MANY = 4.5, 2.5, 80
"""Radius of a point, and of one among many."""


def trend_picture(chart: TrendLine) -> Markup:
    """Draw values from left to right, as the terminal's trend plot does."""
    values, steps, (low, high) = chart.values, chart.steps, chart.range
    x = Scale(-0.5, max(0.5, len(values) - 0.5), 0, 100)
    y = Scale(low, high, HEIGHT, 0)
    return plot(
        HEIGHT,
        *upright_axis(y, partial(value_text, unit=chart.unit)),
        *(part for step in steps for part in _step(x(step - 0.5))),
        *(_levels(values, steps, x, y) if chart.has_levels else ()),
        *_bars(chart.intervals, x, y),
        *_points(values, chart.titles, steps, x, y),
        words(0, HEIGHT + 16, chart.ends[0], class_="tick"),
        words(100, HEIGHT + 16, chart.ends[1], class_="tick", anchor="end"),
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
        upright_line(place, 0, HEIGHT, class_="faint"),
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
