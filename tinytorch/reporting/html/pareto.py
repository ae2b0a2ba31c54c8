"""Two objectives against each other: every candidate a point, the front a line of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.document import ParetoPlot, ParetoPoint
from tinytorch.reporting.html.markup import Markup, element
from tinytorch.reporting.html.plot import (
    Scale,
    across,
    across_axis,
    plot,
    upright_axis,
    upright_line,
    words,
)
from tinytorch.reporting.quantities import value_text

__all__ = ["pareto_picture"]

HEIGHT = 254
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 34, 48
NARROW, ROOMY = 230.0, 360.0
"""How many pixels lie between the axes on a phone, and from where on there is room for more names;
plot.css has the second, too."""
MARGIN = 0.08
"""The part of an axis that is left free at each end."""
RADIUS = 5.5
LETTER, LINE = 7.0, 13.0
"""About how wide a letter of a label is, and how high a line."""
LONGEST_NAME = 30
LEAST_TICKS, MORE_TICKS = 3, 2
LARGEST_LOG = 700.0
REACH = 1.0
"""An interval widens an axis by as much as the points extend, at most."""

Write = Callable[[float], str]
Box = tuple[float, float, float, float]
Placement = tuple[int, float, str]
"""Of a name: pixels beside its point, height, and which part of it stands there."""


def pareto_picture(chart: ParetoPlot) -> Markup:
    """Draw candidates with their intervals, and steps along those on the front.

    Points of the front that are beaten in this picture look like the others of the front, but the
    line leaves them out. Full points are on the front, hollow ones are not. Names that find no
    room are left to the tooltips.
    """
    points = chart.points
    if not points:
        return element("p", "There is nothing to draw: no candidate has both numbers.")
    x = _scale([each.x for each in points], 0, 100, is_log=chart.are_log[0])
    y = _scale([each.y for each in points], HEIGHT, 0, is_log=chart.are_log[1])
    x_text, y_text = (partial(value_text, unit=unit) for unit in chart.units)
    ordered = sorted(points, key=lambda each: each.is_on_front)
    return plot(
        HEIGHT,
        *across_axis(x, HEIGHT, x_text),
        *upright_axis(y, y_text, most=6),
        *_titles(chart),
        *_front_line(points, x, y, chart.lower_is_better),
        *(part for each in ordered for part in _whiskers(each, x, y)),
        *(_mark(each, x, y, x_text, y_text) for each in ordered),
        *_names(points, x, y),
        label=f"{chart.titles[1]} against {chart.titles[0]} of {len(points)} candidates",
        left=LEFT,
        right=RIGHT,
        top=TOP,
        bottom=BOTTOM,
        class_="pareto",
    )


# ---------------------------------------------------------------- axes


def _scale(values: Sequence[Estimate], start: float, end: float, *, is_log: bool) -> Scale:
    """Return an axis with room for all points, and for their intervals as far as these are sane."""
    is_log = is_log and all(each.value > 0 for each in values)
    inner, outer = (math.log, _power) if is_log else (_same, _same)
    middles = [inner(each.value) for each in values]
    low, high = min(middles), max(middles)
    reach = REACH * (high - low)
    ends = [end for each in values for end in (each.low, each.high) if math.isfinite(end)]
    known = [inner(end) for end in ends if not is_log or end > 0]
    if reach:
        known = [at for at in known if low - reach <= at <= high + reach]
    low, high = min([low, *known]), max([high, *known])
    spare = MARGIN * (high - low) or (0.1 if is_log else 0.1 * abs(high) or 1.0)
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


# ---------------------------------------------------------------- names


def _names(points: Sequence[ParetoPoint], x: Scale, y: Scale) -> list[Markup]:
    """Write names where nothing is yet, those of the front first.

    What finds room on a phone finds it on wider screens too, where points are further apart. The
    others are shown only there.
    """
    ordered = sorted(points, key=lambda point: not point.is_on_front)
    placed: dict[int, Placement] = {}
    parts = []
    for width, look in ((NARROW, "label halo"), (ROOMY, "label halo roomy")):
        pixels = Scale(x.low, x.high, 0, width, x.is_log)
        found = _placed(ordered, placed, pixels, y)
        for place, (dx, up, anchor) in found.items():
            at = x(ordered[place].x.value)
            name = _cut(ordered[place].name)
            parts.append(words(at, up, name, class_=look, anchor=anchor, dx=dx))
        placed |= found
    return parts


def _placed(
    points: Sequence[ParetoPoint],
    before: Mapping[int, Placement],
    x: Scale,
    y: Scale,
) -> dict[int, Placement]:
    """Find places for the names of points that have none yet, in a picture as wide as `x`."""
    centres = [(x(each.x.value), y(each.y.value)) for each in points]
    taken = [_around(*each) for each in centres]
    taken += [_box(centres[k][0], at, _wide(points[k])) for k, at in before.items()]
    crossed = [box for each in points for box in _crossed(each, x, y)]
    found: dict[int, Placement] = {}
    for place, each in enumerate(points):
        if place in before:
            continue
        options = [
            (option, _box(centres[place][0], option, _wide(each)))
            for option in _placements(centres[place][1])
        ]
        # Rather through an interval than not at all.
        for others in ([*taken, *crossed], taken):
            free = [(option, box) for option, box in options if _is_free(box, others, x.end)]
            if free:
                found[place] = free[0][0]
                taken.append(free[0][1])
                break
    return found


def _wide(point: ParetoPoint) -> float:
    return LETTER * len(_cut(point.name))


def _crossed(point: ParetoPoint, x: Scale, y: Scale) -> list[Box]:
    """Return where the intervals of a point are."""
    at, up = x(point.x.value), y(point.y.value)
    return [
        (x(point.x.low), up - 1, x(point.x.high), up + 1),
        (at - 1, y(point.y.high), at + 1, y(point.y.low)),
    ]


def _is_free(box: Box, others: Sequence[Box], width: float) -> bool:
    return _is_inside(box, width) and not any(_overlap(box, other) for other in others)


def _placements(up: float) -> list[Placement]:
    """Return where a name may stand beside a point at this height, the best place first."""
    beside = round(RADIUS + 4)
    return [
        (beside, up - 9, "start"),
        (-beside, up - 9, "end"),
        (beside, up + 17, "start"),
        (-beside, up + 17, "end"),
        (0, up - 12, "middle"),
        (0, up + 21, "middle"),
        (0, up - 25, "end"),
        (0, up - 25, "start"),
        (0, up + 34, "end"),
        (0, up + 34, "start"),
    ]


def _box(at: float, placement: Placement, width: float) -> Box:
    dx, up, anchor = placement
    left = at + dx - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return left - 3, up - LINE + 3, left + width + 3, up + 3


def _around(at: float, up: float) -> Box:
    return at - RADIUS, up - RADIUS, at + RADIUS, up + RADIUS


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _is_inside(box: Box, width: float) -> bool:
    is_across = box[0] >= 0 and box[2] <= width + RIGHT
    return is_across and box[1] >= -TOP and box[3] <= HEIGHT + LINE


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
