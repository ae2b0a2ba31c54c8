"""The roofline as a picture: what the machine allows, and where layers stand below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinytorch.measure.ceilings import Bandwidth
from tinytorch.reporting.html.markup import Markup, element
from tinytorch.reporting.html.plot import (
    Scale,
    Spot,
    across,
    across_axis,
    labels,
    plot,
    upright_axis,
    words,
)
from tinytorch.reporting.quantities import count_text, rate_text
from tinytorch.reporting.roofline import Roofline, RooflinePoint

HEIGHT = 300
MARGIN = 4.0
"""How far the picture reaches beyond the first and last ridge, as a factor."""
HEADROOM = 2.0
POINT_MARGIN = 1.6
SMALLEST, LARGEST = 4.0, 11.0
"""Pixels: radius of the dots with the least and the most weight that have a letter."""


@dataclass(frozen=True)
class _Frame:
    """The axes of the picture: percent across, pixels upwards."""

    x: Scale
    y: Scale

    def line(self, x1: float, y1: float, x2: float, y2: float, *, is_dotted: bool) -> Markup:
        return element(
            "line",
            x1=across(self.x(x1)),
            y1=self.y(y1),
            x2=across(self.x(x2)),
            y2=self.y(y2),
            class_="dotted" if is_dotted else "roof",
        )

    def below(self, each: Bandwidth, peak: float) -> tuple[float, float]:
        """Return the intensities at which a slope enters the picture and meets a roof."""
        first = max(self.x.low, self.y.low / each.ceiling)
        return first, min(self.x.high, max(first, peak / each.ceiling))


def roofline_chart(chart: Roofline) -> Markup:
    """Draw slopes, roofs and points over logarithmic axes."""
    frame = _frame(chart)
    return plot(
        HEIGHT,
        *upright_axis(frame.y, count_text, most=6),
        *across_axis(frame.x, HEIGHT, lambda value: f"{value:g}", most=7),
        *_slopes(chart, frame),
        *(mark for dtype, peak in chart.peaks.items() for mark in _roof(chart, frame, dtype, peak)),
        *_dots(chart.points, frame),
        *labels(_spots(chart.points, frame), HEIGHT),
        words(0, -1, "FLOP/s", class_="tick"),
        words(100, HEIGHT + 34, "FLOP per byte moved", class_="tick", anchor="end"),
        label=f"{len(chart.points)} points below the roofs of {', '.join(chart.peaks)}",
        left=52,
        bottom=44,
    )


def _frame(chart: Roofline) -> _Frame:
    fastest = max(each.ceiling for each in chart.bandwidths)
    slowest = min(each.ceiling for each in chart.bandwidths)
    lowest, highest = min(chart.peaks.values()), max(chart.peaks.values())
    first = lowest / fastest / MARGIN
    left, right = [first], [highest / slowest * MARGIN]
    bottom, top = [first * slowest], [highest * HEADROOM]
    for each in chart.points:
        left.append(each.intensity / POINT_MARGIN)
        right.append(each.intensity * POINT_MARGIN)
        bottom.append(each.flops_per_s / POINT_MARGIN)
        top.append(each.flops_per_s * POINT_MARGIN)
    return _Frame(
        Scale(min(left), max(right), 0, 100, is_log=True),
        Scale(min(bottom), max(top), HEIGHT, 0, is_log=True),
    )


def _slopes(chart: Roofline, frame: _Frame) -> Iterator[Markup]:
    """Draw a slope for each level of the memory, with its name low on it, where few points are."""
    highest = max(chart.peaks.values())
    for each in chart.bandwidths:
        first, last = frame.below(each, highest)
        is_dotted = chart.home not in (None, each.level)
        yield frame.line(
            first, first * each.ceiling, last, last * each.ceiling, is_dotted=is_dotted
        )
        if not is_dotted:
            name = f"{each.level} {rate_text(each.ceiling, 'B/s')}"
            place = first**0.75 * last**0.25
            y = frame.y(place * each.ceiling) + 14
            yield words(frame.x(place), y, name, class_="label halo", dx=6)


def _roof(chart: Roofline, frame: _Frame, dtype: str, peak: float) -> Iterator[Markup]:
    """Draw the peak of a dtype, dotted up to the slope of home, and the mark of its ridge."""
    fastest = max(each.ceiling for each in chart.bandwidths)
    home = next((x for x in chart.bandwidths if x.level == chart.home), None)
    start = max(peak / fastest, frame.x.low)
    ridge = peak / (home or chart.bandwidths[-1]).ceiling
    begin = ridge if home else start
    if home:
        yield frame.line(start, peak, begin, peak, is_dotted=True)
    yield frame.line(begin, peak, frame.x.high, peak, is_dotted=False)
    name = f"{dtype} {rate_text(peak)}"
    yield words(100, frame.y(peak) - 6, name, class_="label halo", anchor="end")
    x = across(frame.x(ridge))
    yield element("line", x1=x, x2=x, y1=HEIGHT - 9, y2=HEIGHT + 3, class_="middle")


def _radius(point: RooflinePoint, points: Sequence[RooflinePoint]) -> float:
    most = max(each.weight for each in points) or 1.0
    size = max(0.0, point.weight / most) ** 0.5
    return round(SMALLEST + size * (LARGEST - SMALLEST), 1) if point.letter else 3.0


def _spots(points: Sequence[RooflinePoint], frame: _Frame) -> list[Spot]:
    return [
        Spot(frame.x(each.intensity), frame.y(each.flops_per_s), each.letter, _radius(each, points))
        for each in points
        if each.letter
    ]


def _dots(points: Sequence[RooflinePoint], frame: _Frame) -> Iterator[Markup]:
    """Draw the points, the first last so that it is on top."""
    for each in reversed(points):
        yield element(
            "circle",
            element("title", each.title),
            cx=across(frame.x(each.intensity)),
            cy=frame.y(each.flops_per_s),
            r=_radius(each, points),
            class_="dot" if each.letter else "small",
        )
