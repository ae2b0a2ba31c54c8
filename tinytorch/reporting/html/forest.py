"""Values with their intervals: ratios as a forest plot, and a difference beside its margin.

A forest plot is a grid: names and numbers are words of the page, which wrap and stand above their
interval where there is little room; only what needs a scale is drawn. Minimum effect and
equivalence band are drawn once, behind all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinytorch.reporting.document import MarginPlot
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.plot import (
    Scale,
    across,
    across_axis,
    dots,
    legend,
    plot,
    stretched,
    upright_line,
    words,
)
from tinytorch.reporting.quantities import ratio_text, value_text

EDGE = 2.0
"""Percent that are left free at both ends."""
TRACK, STRIP, AXIS = 28, 44, 40
"""Heights: of an interval, of the dots, of what stands below them (plot.css has the last, too)."""
CAP, RADIUS = 6, 5.5
LEAST_BETWEEN_TICKS = 17.0
DOT_COLUMNS, DOT_GAP = 120, 5.0


def forest_picture(chart: ForestPlot) -> Markup:
    """Draw the rows of a forest plot over one axis, with the points of rounds.

    An end that is not known is an arrow. Points outside of the picture stand at its edge.
    """
    scale = Scale(*chart.ends, EDGE, 100 - EDGE, is_log=True)
    grid = element(
        "div",
        _reference(chart, scale),
        *(_row(each, scale) for each in chart.rows),
        *_strip(chart, scale),
        element("div", _axis(chart, scale), class_="row"),
        class_="forest",
        style=f"--said:{max((len(_said(each)) for each in chart.rows), default=1)}",
    )
    return joined([element("div", grid, class_="plot"), _legend(chart)])


def _track(*parts: Markup, height: float) -> Markup:
    """Return the part of a row that is drawn; its words say the same."""
    return element(
        "svg", *parts, class_="fluid track", style=f"height:{height}px", aria_hidden="true"
    )


# ---------------------------------------------------------------- rows


def _said(row: ForestRow) -> list[str]:
    """Return what stands beside a name; a terminal parts with spaces what has columns here."""
    return [each.strip() for each in row.text.split("  ") if each.strip()] or [_ends(row)]


def _ends(row: ForestRow) -> str:
    return f"{ratio_text(row.value)} ({ratio_text(row.low)} to {ratio_text(row.high)})"


def _row(row: ForestRow, scale: Scale) -> Markup:
    """Return a row: its name, what is said of it, and the value on its interval."""
    middle = TRACK / 2
    left, right = scale(row.low), scale(row.high)
    drawn = element(
        "g",
        element("title", f"{row.label}: {_ends(row)}"),
        element("line", x1=across(left), x2=across(right), y1=middle, y2=middle, class_="interval"),
        _end(left, middle, is_known=row.low > 0, outwards=-1),
        _end(right, middle, is_known=row.high < math.inf, outwards=1),
        element("circle", cx=across(scale(row.value)), cy=middle, r=RADIUS),
        class_=f"mark {row.tone or 'neutral'}",
    )
    name = element("span", row.label, class_="name")
    numbers = (element("span", each, class_="numbers") for each in _said(row))
    return element("div", name, *numbers, _track(drawn, height=TRACK), class_="row")


def _end(place: float, middle: float, *, is_known: bool, outwards: int) -> Markup:
    """Draw the end of an interval, an arrow where there is none."""
    if is_known:
        return upright_line(place, middle - CAP, middle + CAP, class_="interval")
    back = -outwards * CAP
    arrow = element("path", d=f"M{back} {-CAP}L0 0L{back} {CAP}", class_="interval", fill="none")
    # A path knows no percentages: it stands in a picture of its own.
    return element("svg", arrow, x=across(place), y=middle, overflow="visible")


def _strip(chart: ForestPlot, scale: Scale) -> list[Markup]:
    """Draw a dot for every point, above each other where they lie at one place."""
    if not chart.points:
        return []
    heights: dict[int, int] = {}
    stacked = []
    for point in sorted(chart.points):
        column = round(scale(point) / 100 * DOT_COLUMNS)
        stacked.append((column, heights.get(column, 0)))
        heights[column] = heights.get(column, 0) + 1
    step = min(DOT_GAP, (STRIP - 10) / max(heights.values()))
    places = [(column, STRIP - 6 - height * step) for column, height in stacked]
    title = f"{len(chart.points)} {chart.points_label}"
    drawn = stretched(dots(places, class_="series-1", title=title), STRIP, units=DOT_COLUMNS)
    name = element("span", title, class_="name faint")
    return [element("div", name, _track(drawn, height=STRIP), class_="row")]


# ---------------------------------------------------------------- axis


def _reference(chart: ForestPlot, scale: Scale) -> Markup:
    """Draw 1 with minimum effect and equivalence band around it, behind all rows."""
    left, right = scale(1 / (1 + chart.band)), scale(1 + chart.band)
    edges = scale(1 / (1 + chart.floor)), scale(1 + chart.floor)
    band = element(
        "rect", x=across(left), y=0, width=across(right - left), height="100%", class_="faint"
    )
    lines = [_whole_line(edge, "faint") for edge in edges if chart.floor]
    parts = [band, *lines, _whole_line(scale(1), "axis")]
    return element("svg", *parts, class_="fluid reference", aria_hidden="true")


def _whole_line(place: float, class_: str) -> Markup:
    return element("line", x1=across(place), x2=across(place), y1="0", y2="100%", class_=class_)


def _axis(chart: ForestPlot, scale: Scale) -> Markup:
    parts = [element("line", x1="0", x2="100%", y1=0.5, y2=0.5, class_="axis")]
    for tick in _ticks(scale):
        x = scale(tick)
        anchor = "start" if x < 5 else "end" if x > 95 else "middle"
        written = "1x" if tick == 1 else ratio_text(tick)
        parts.append(upright_line(x, 0, 4, class_="axis"))
        parts.append(words(x, 17, written, class_="tick", anchor=anchor))
    parts.append(words(0, 34, f"← {chart.sides[0]}"))
    parts.append(words(100, 34, f"{chart.sides[1]} →", anchor="end"))
    return _track(*parts, height=AXIS)


def _legend(chart: ForestPlot) -> Markup:
    entries = [("band", f"equivalence band {100 * chart.band:.3g}%")]
    if chart.floor:
        entries.append(("dashes", f"minimum effect {100 * chart.floor:.3g}%"))
    return legend(entries)


def _ticks(scale: Scale) -> Sequence[float]:
    """Return 1 and what is far enough from it and from each other, the ends if there is little."""
    places = [1.0]
    for tick in (*scale.ticks(), scale.low, scale.high):
        if all(abs(scale(tick) - scale(other)) >= LEAST_BETWEEN_TICKS for other in places):
            places.append(tick)
    return places


# ---------------------------------------------------------------- a difference beside its margin

MARGIN_HEIGHT, MARGIN_EDGE = 42, 40


def margin_picture(chart: MarginPlot) -> Markup:
    """Draw a difference with its ends, beside zero and the margin."""
    known = [chart.value, chart.low, chart.high, chart.margin, 0.0]
    finite = [each for each in known if math.isfinite(each)]
    spare = 0.12 * (max(finite) - min(finite)) or 0.01
    x = Scale(min(finite) - spare, max(finite) + spare, 0, 100)
    middle, below, margin = MARGIN_HEIGHT / 2, MARGIN_HEIGHT + 30, x(chart.margin)
    ends, tone = (across(x(chart.low)), across(x(chart.high))), chart.tone

    def write(value: float) -> str:
        return value_text(value, chart.unit)

    return plot(
        MARGIN_HEIGHT,
        element("rect", x=0, y=0, width=across(margin), height=MARGIN_HEIGHT, class_="faint"),
        *across_axis(x, MARGIN_HEIGHT, write, most=4),
        upright_line(x(0.0), 0, MARGIN_HEIGHT, class_="axis"),
        upright_line(margin, -6, MARGIN_HEIGHT, class_="line bad"),
        words(margin, -10, "margin", class_="tick", anchor="middle"),
        element("line", x1=ends[0], x2=ends[1], y1=middle, y2=middle, class_=f"interval {tone}"),
        element("circle", cx=across(x(chart.value)), cy=middle, r=RADIUS, class_=f"mark {tone}"),
        words(0, below, f"← {chart.sides[0]}", class_="tick"),
        words(100, below, f"{chart.sides[1]} →", class_="tick", anchor="end"),
        label=f"{write(chart.value)} ({write(chart.low)} to {write(chart.high)}), "
        f"margin {write(chart.margin)}",
        left=MARGIN_EDGE,
        right=MARGIN_EDGE,
        top=22,
        bottom=36,
        class_="difference",
    )
