"""Values with their intervals: ratios as a forest plot, and a difference beside its margin.

The picture is as wide as its place, and its letters have one size on any screen: across, places
are percentages; upwards, pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinytorch.reporting.document import MarginPlot
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow
from tinytorch.reporting.html.markup import Markup, element
from tinytorch.reporting.html.plot import (
    Scale,
    across,
    across_axis,
    dots,
    plot,
    stretched,
    upright_line,
    words,
)
from tinytorch.reporting.quantities import ratio_text, value_text

__all__ = ["forest_picture", "margin_picture"]

EDGE = 2.0
"""Percent that are left free at both ends."""
LINE, ROW, STRIP, BOTTOM = 18, 34, 44, 58
"""Heights: of a line of words, of an interval, of the dots, of what stands below the axis."""
BAND = 28
"""How high floor and band are drawn in a row; the rest keeps rows apart."""
CAP, RADIUS = 6, 5.5
LONGEST = 46
"""Letters that stand in one line on a phone; where a name and its numbers are longer, they take
two."""
LEAST_BETWEEN_TICKS = 17.0
DOT_COLUMNS, DOT_GAP = 120, 5.0


def forest_picture(chart: ForestPlot) -> Markup:
    """Draw the rows of a forest plot over one axis, with floor, band, and the points of rounds.

    An end that is not known is an arrow. Points outside of the picture stand at its edge.
    """
    scale = Scale(*chart.ends, EDGE, 100 - EDGE, is_log=True)
    lines = max((_lines(row) for row in chart.rows), default=1)
    row = lines * LINE + ROW
    top = row * len(chart.rows)
    floor = top + (LINE + STRIP if chart.points else 0)
    tops = [place * row + lines * LINE for place in range(len(chart.rows))]
    stretches: list[tuple[float, float]] = [(each, each + BAND) for each in tops]
    if chart.points:
        stretches.append((top + LINE, floor))
    return element(
        "svg",
        element("title", "; ".join(f"{each.label}: {_with_ends(each)}" for each in chart.rows)),
        *(part for each in stretches for part in _reference(chart, scale, *each)),
        *(
            part
            for place, each in enumerate(chart.rows)
            for part in _row(each, scale, place * row, lines)
        ),
        *_strip(chart, scale, top, floor),
        *_axis(chart, scale, floor),
        role="img",
        class_="fluid forest",
        style=f"height:{floor + BOTTOM}px",
    )


def _with_ends(row: ForestRow) -> str:
    return f"{ratio_text(row.value)} ({ratio_text(row.low)} to {ratio_text(row.high)})"


def _beside(row: ForestRow) -> str:
    return " ".join(row.text.split()) or _with_ends(row)


def _lines(row: ForestRow) -> int:
    return 1 if len(row.label) + len(_beside(row)) < LONGEST else 2


# ---------------------------------------------------------------- rows


def _row(row: ForestRow, scale: Scale, top: float, lines: int) -> list[Markup]:
    """Draw a row: its name and numbers above, below them the value on its interval."""
    middle = top + lines * LINE + BAND / 2
    left, right = scale(row.low), scale(row.high)
    numbers = (
        words(100, top + 13, _beside(row), anchor="end")
        if lines == 1
        else words(0, top + LINE + 12, _beside(row), class_="label faint")
    )
    return [
        words(0, top + 13, row.label),
        numbers,
        element(
            "g",
            element("title", f"{row.label}: {_with_ends(row)}"),
            element(
                "line", x1=across(left), x2=across(right), y1=middle, y2=middle, class_="interval"
            ),
            _end(left, middle, is_known=row.low > 0, outwards=-1),
            _end(right, middle, is_known=row.high < math.inf, outwards=1),
            element("circle", cx=across(scale(row.value)), cy=middle, r=RADIUS),
            class_=f"mark {row.tone or 'neutral'}",
        ),
    ]


def _end(place: float, middle: float, *, is_known: bool, outwards: int) -> Markup:
    """Draw the end of an interval, an arrow where there is none."""
    if is_known:
        return upright_line(place, middle - CAP, middle + CAP, class_="interval")
    back = -outwards * CAP
    arrow = element("path", d=f"M{back} {-CAP}L0 0L{back} {CAP}", class_="interval", fill="none")
    # A path knows no percentages: it stands in a picture of its own.
    return element("svg", arrow, x=across(place), y=middle, overflow="visible")


def _strip(chart: ForestPlot, scale: Scale, top: float, floor: float) -> list[Markup]:
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
    drawn = dots(places, class_="series-1", title=title)
    return [
        words(0, top + 13, title, class_="tick"),
        stretched(drawn, STRIP, y=floor - STRIP, units=DOT_COLUMNS),
    ]


# ---------------------------------------------------------------- axis


def _reference(chart: ForestPlot, scale: Scale, top: float, bottom: float) -> list[Markup]:
    """Draw 1 with floor and band around it, where no words stand."""
    left, right = scale(1 / (1 + chart.band)), scale(1 + chart.band)
    edges = scale(1 / (1 + chart.floor)), scale(1 + chart.floor)
    return [
        element(
            "rect",
            x=across(left),
            y=top,
            width=across(right - left),
            height=bottom - top,
            class_="faint",
        ),
        *(upright_line(edge, top, bottom, class_="faint") for edge in edges if chart.floor),
        upright_line(scale(1), top, bottom, class_="axis"),
    ]


def _axis(chart: ForestPlot, scale: Scale, floor: float) -> list[Markup]:
    floor_words = f"floor {100 * chart.floor:.3g}% (dashed), " if chart.floor else ""
    around = f"{floor_words}band {100 * chart.band:.3g}% (grey)"
    parts = [element("line", x1="0", x2="100%", y1=floor, y2=floor, class_="axis")]
    for tick in _ticks(scale):
        x = scale(tick)
        anchor = "start" if x < 5 else "end" if x > 95 else "middle"
        written = "1x" if tick == 1 else ratio_text(tick)
        parts.append(upright_line(x, floor, floor + 4, class_="axis"))
        parts.append(words(x, floor + 17, written, class_="tick", anchor=anchor))
    return [
        *parts,
        words(0, floor + 35, f"← {chart.sides[0]}"),
        words(100, floor + 35, f"{chart.sides[1]} →", anchor="end"),
        words(50, floor + 53, around, class_="tick", anchor="middle"),
    ]


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
