"""Two quantities against each other: candidates with the front as a line of steps, or marks with
the line of a law."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.document import LogPlot, ParetoPlot, ParetoPoint, letters
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.plot import (
    STRETCHED,
    Scale,
    Spot,
    across,
    across_axis,
    labels,
    legend,
    plot,
    polyline,
    stretched,
    upright_axis,
    upright_line,
    words,
)
from tinytorch.reporting.quantities import Mark, value_text

HEIGHT = 254
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 34, 48
MARGIN = 0.08
"""The part of an axis that is left free at each end."""
RADIUS = 5.5
LEAST_TICKS, MORE_TICKS = 3, 2
LARGEST_LOG = 700.0
DOT = "●"
"""The letter of a mark that is drawn as a circle."""
REACH = 0.3
"""An interval widens an axis by this share of what lies between the points, at most; one that is
wider ends at the edge."""

Write = Callable[[float], str]


def pareto_picture(chart: ParetoPlot) -> Markup:
    """Draw candidates with their intervals, and steps along those on the front.

    Points of the front that are beaten in this picture look like the others of the front, but the
    line leaves them out. Full points are on the front, hollow ones are not, and their intervals are
    left to the tooltips. Points are named by letters; a key explains those that have none yet.
    """
    if not chart.points:
        return element("p", "There is nothing to draw: no candidate has both numbers.")
    named = zip(chart.points, letters(), strict=False)
    points = [replace(each, letter=each.letter or letter) for each, letter in named]
    front = [each for each in points if each.is_on_front] or points
    x = _scale([each.x for each in points], [each.x for each in front], 100, chart.are_log[0])
    y = _scale([each.y for each in points], [each.y for each in front], -HEIGHT, chart.are_log[1])
    x_text, y_text = (partial(value_text, unit=unit) for unit in chart.units)
    ordered = sorted(points, key=lambda each: each.is_on_front)
    first = sorted(points, key=lambda each: not each.is_on_front)
    spots = [Spot(x(e.x.value), y(e.y.value), e.letter, RADIUS) for e in first]
    picture = plot(
        HEIGHT,
        *across_axis(x, HEIGHT, x_text),
        *upright_axis(y, y_text, most=6),
        *_titles(chart),
        *_front_line(points, x, y, chart.lower_is_better),
        *(part for each in points if each.is_on_front for part in _whiskers(each, x, y)),
        *(_mark(each, x, y, x_text, y_text) for each in ordered),
        *labels(spots, HEIGHT),
        label=f"{chart.titles[1]} against {chart.titles[0]} of {len(points)} candidates",
        left=LEFT,
        right=RIGHT,
        top=TOP,
        bottom=BOTTOM,
        class_="pareto",
    )
    if all(each.letter for each in chart.points):
        return picture
    return joined([picture, legend((e.tone, f"{e.letter} {e.name}") for e in points)])


# ---------------------------------------------------------------- axes


def _scale(
    values: Sequence[Estimate], whole: Sequence[Estimate], length: float, is_log: bool
) -> Scale:
    """Return an axis with room for all points, and for the intervals of `whole` while these are
    not much wider than what lies between the points. A negative length goes up."""
    is_log = is_log and all(each.value > 0 for each in values)
    inner, outer = (math.log, _power) if is_log else (_same, _same)
    middles = [inner(each.value) for each in values]
    low, high = min(middles), max(middles)
    reach = REACH * (high - low)
    ends = [end for each in whole for end in (each.low, each.high) if math.isfinite(end)]
    known = [inner(end) for end in ends if not is_log or end > 0]
    if reach:
        known = [min(high + reach, max(low - reach, at)) for at in known]
    low, high = min([low, *known]), max([high, *known])
    spare = MARGIN * (high - low) or (0.1 if is_log else 0.1 * abs(high) or 1.0)
    start, end = max(0.0, -length), max(0.0, length)
    return _Axis(outer(low - spare), outer(high + spare), start, end, is_log)


class _Axis(Scale):
    """A scale that has some ticks also where there are hardly any powers of ten."""

    def ticks(self, most: int = 6) -> tuple[float, ...]:
        found = super().ticks(most)
        if len(found) < LEAST_TICKS:
            found = super().ticks(most + MORE_TICKS)
        even = Scale(self.low, self.high, self.start, self.end)
        return found if len(found) >= LEAST_TICKS else even.ticks(most)


def _power(value: float) -> float:
    """Return what has this logarithm, but never 0 or what is infinite."""
    return math.exp(min(LARGEST_LOG, max(-LARGEST_LOG, value)))


def _same(value: float) -> float:
    return value


def _titles(chart: ParetoPlot) -> list[Markup]:
    (x_title, y_title), (x_is_lower, y_is_lower) = chart.titles, chart.lower_is_better
    below = f"{x_title}  ← better" if x_is_lower else f"{x_title}  better →"
    beside = f"{y_title}  ↓ better" if y_is_lower else f"{y_title}  ↑ better"
    look = "label axis-title"
    return [
        words(50, HEIGHT + 38, below, class_=look, anchor="middle"),
        words(0, 16 - TOP, beside, class_=look, dx=8 - LEFT),
    ]


# ---------------------------------------------------------------- points


def _mark(point: ParetoPoint, x: Scale, y: Scale, x_text: Write, y_text: Write) -> Markup:
    title = f"{point.name}: {_written(point.x, x_text)}; {_written(point.y, y_text)}"
    hollow = "fill:var(--card);stroke:var(--tone);stroke-width:2"
    return element(
        "g",
        element("title", title),
        element("circle", cx=across(x(point.x.value)), cy=y(point.y.value), r=RADIUS),
        class_=f"mark {point.tone}",
        style=None if point.is_on_front else hollow,
    )


def _written(value: Estimate, write: Write) -> str:
    if value.low == value.high:
        return write(value.value)
    low, high = (write(end) if math.isfinite(end) else "-" for end in (value.low, value.high))
    return f"{write(value.value)} ({low} to {high})"


def _whiskers(point: ParetoPoint, x: Scale, y: Scale) -> list[Markup]:
    look = f"interval {point.tone}"
    parts = []
    if point.x.low < point.x.high:
        ends, up = (across(x(point.x.low)), across(x(point.x.high))), y(point.y.value)
        parts.append(element("line", x1=ends[0], x2=ends[1], y1=up, y2=up, class_=look))
    if point.y.low < point.y.high:
        place = x(point.x.value)
        parts.append(upright_line(place, y(point.y.low), y(point.y.high), class_=look))
    return parts


def _front_line(
    points: Sequence[ParetoPoint], x: Scale, y: Scale, lower_is_better: tuple[bool, bool]
) -> list[Markup]:
    """Draw steps from point to point: what lies behind the line is beaten."""
    signs = [1 if lower else -1 for lower in lower_is_better]
    front = sorted(
        (signs[0] * each.x.value, signs[1] * each.y.value) for each in points if each.is_on_front
    )
    corners: list[tuple[float, float]] = []
    for at, up in front:
        if not corners or up < corners[-1][1]:
            corners.append((at, up))
    places = [(x(signs[0] * at), y(signs[1] * up)) for at, up in corners]
    return [part for pair in pairwise(places) for part in _step(*pair)]


def _step(start: tuple[float, float], end: tuple[float, float]) -> tuple[Markup, Markup]:
    """Draw a line across and one upwards from it."""
    look = "line front"
    ends = across(start[0]), across(end[0])
    level = element("line", x1=ends[0], x2=ends[1], y1=start[1], y2=start[1], class_=look)
    return level, upright_line(end[0], start[1], end[1], class_=look)


# ---------------------------------------------------------------- marks over logarithmic axes

LOG_MARGIN, LAW_STEPS = 1.25, 60
"""How far the axes reach beyond the marks, as a factor; a law is drawn in so many steps."""


def log_picture(chart: LogPlot) -> Markup:
    """Draw marks with their letters, bars behind those that have an interval, and a law."""
    ups = [end for each in chart.marks for end in (each.y, each.low, each.high) if end]
    x = _log_scale([each.x for each in chart.marks], 0, 100)
    y = _log_scale(ups, HEIGHT, 0)
    x_text, y_text = (partial(value_text, unit=unit) for unit in (chart.x_unit, chart.y_unit))
    return plot(
        HEIGHT,
        *across_axis(x, HEIGHT, x_text, most=7),
        *upright_axis(y, y_text, most=6),
        _law(chart, x, y),
        *(_log_mark(each, x, y, x_text, y_text) for each in chart.marks),
        label=f"{len(chart.marks)} marks",
        left=LEFT,
        right=RIGHT,
        bottom=28,
        class_="log-plot",
    )


def _log_scale(values: Sequence[float], start: float, end: float) -> Scale:
    return _Axis(min(values) / LOG_MARGIN, max(values) * LOG_MARGIN, start, end, is_log=True)


def _log_mark(mark: Mark, x: Scale, y: Scale, x_text: Write, y_text: Write) -> Markup:
    """Draw a full circle as one, any other letter as it is."""
    at, up = x(mark.x), y(mark.y)
    is_dot = mark.letter == DOT
    drawn = (
        element("circle", cx=across(at), cy=up, r=RADIUS - 1)
        if is_dot
        else words(at, up + 5, mark.letter, class_="sign", anchor="middle")
    )
    bar = (
        [upright_line(at, y(mark.high), y(mark.low), class_="interval")]
        if mark.low and mark.high
        else []
    )
    title = element("title", f"{x_text(mark.x)}: {y_text(mark.y)}")
    return element("g", title, *bar, drawn, class_="mark series-1" if is_dot else "mark series-2")


def _law(chart: LogPlot, x: Scale, y: Scale) -> Markup:
    """Draw a law where it is inside of the picture."""
    if chart.law is None:
        return Markup("")
    at = [x.low * (x.high / x.low) ** (k / LAW_STEPS) for k in range(LAW_STEPS + 1)]
    found = [(place, chart.law(place)) for place in at]
    inside = [(STRETCHED * x(a) / 100, y(b)) for a, b in found if y.low <= b <= y.high]
    return stretched(polyline(inside, class_="line law"), HEIGHT)
