"""The roofline as a picture: what the machine allows, and where layers stand below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinytorch.measure.ceilings import Bandwidth
from tinytorch.reporting.html.markup import Markup, element
from tinytorch.reporting.html.plot import Scale, across, across_axis, plot, upright_axis, words
from tinytorch.reporting.quantities import count_text, rate_text
from tinytorch.reporting.roofline import Roofline, RooflinePoint

__all__ = ["roofline_chart"]

HEIGHT = 300
MARGIN = 4.0
"""How far the picture reaches beyond the first and last ridge, as a factor."""
HEADROOM = 2.0
POINT_MARGIN = 1.6
SMALLEST, LARGEST = 4.0, 11.0
"""Pixels: radius of the dots with the least and the most weight that have a letter."""
NEAR_PERCENT, NEAR_PX = 5.0, 16.0
"""Dots that are nearer to each other, across and upwards, share a label."""


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
        *_letters(chart.points, frame),
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


def _dots(points: Sequence[RooflinePoint], frame: _Frame) -> Iterator[Markup]:
    """Draw the points, the first last so that it is on top."""
    most = max((each.weight for each in points), default=0.0) or 1.0
    for each in reversed(points):
        size = max(0.0, each.weight / most) ** 0.5
        yield element(
            "circle",
            element("title", each.title),
            cx=across(frame.x(each.intensity)),
            cy=frame.y(each.flops_per_s),
            r=round(SMALLEST + size * (LARGEST - SMALLEST), 1) if each.letter else 3,
            class_="dot" if each.letter else "small",
        )


def _letters(points: Sequence[RooflinePoint], frame: _Frame) -> Iterator[Markup]:
    named = [each for each in points if each.letter]
    places = [(frame.x(each.intensity), frame.y(each.flops_per_s)) for each in named]
    for members in _clusters(places):
        y = sum(places[member][1] for member in members) / len(members) + 4
        text = ", ".join(named[member].letter for member in members)
        last = max(places[member][0] for member in members)
        if last < 80:
            yield words(last, y, text, class_="label halo letter", dx=15)
        else:
            first = min(places[member][0] for member in members)
            yield words(first, y, text, class_="label halo letter", anchor="end", dx=-15)


def _clusters(places: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Put dots together that lie so near to each other that their letters would overlap."""
    clusters: list[list[int]] = []
    for place, (x, y) in enumerate(places):
        near = [
            cluster
            for cluster in clusters
            if any(
                abs(places[other][0] - x) < NEAR_PERCENT and abs(places[other][1] - y) < NEAR_PX
                for other in cluster
            )
        ]
        for cluster in near:
            clusters.remove(cluster)
        clusters.append(sorted([place, *(other for cluster in near for other in cluster)]))
    return sorted(clusters)
