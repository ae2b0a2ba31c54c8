"""The roofline: what the machine allows, and where the layers of a model stand below it.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from tinytorch.measure.ceilings import Bandwidth
from tinytorch.profiling.profile import BottleneckFacts, Profile
from tinytorch.reporting.html.markup import Cell, Column, Markup, element, joined, table
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.html.plot import Scale, across, across_axis, plot, upright_axis, words
from tinytorch.reporting.profile_words import hotspot_label
from tinytorch.reporting.quantities import count_text, percent_text, rate_text
from tinytorch.reporting.roofline import Roofline, find_roofline

__all__ = ["roofline_section"]

HEIGHT = 300
LABELLED = 8
"""So many of the slowest layers have a letter and a row; the others are small dots."""
MOST_POINTS = 300
MARGIN = 4.0
"""How far the picture reaches beyond the first and last ridge, as a factor."""
HEADROOM = 2.0
POINT_MARGIN = 1.6
SMALLEST, LARGEST = 4.0, 11.0
"""Pixels: radius of the dots of the fastest and of the slowest labelled layers."""
NEAR_PERCENT, NEAR_PX = 5.0, 16.0
"""Dots that are nearer to each other, across and upwards, share a label."""


@dataclass(frozen=True)
class _Frame:
    """The axes of the picture: percent across, pixels upwards."""

    x: Scale
    y: Scale

    def below(self, each: Bandwidth, peak: float) -> tuple[float, float]:
        """Give the intensities at which a slope enters the picture and meets the roof."""
        first = max(self.x.low, self.y.low / each.ceiling)
        return first, min(self.x.high, max(first, peak / each.ceiling))


def roofline_section(profile: Profile) -> Section:
    """Draw the roofline of a profile, or say why there is none."""
    found = find_roofline(profile, MOST_POINTS)
    if found is None:
        return Section("roofline", "Roofline", element("p", _reason(profile), class_="note"))
    explanation = " ".join(found.explanation(ridge_mark="the mark on the axis", point="dot"))
    body = [_picture(found), _legend_table(found)]
    more = len(found.found) - LABELLED
    if more > 0:
        note = f"The small dots are the {more} faster groups of layers."
        body.append(element("p", note, class_="note"))
    return Section("roofline", "Roofline", joined(body), about=explanation)


def _reason(profile: Profile) -> str:
    if profile.ceilings is None:
        return (
            "Not measured: the ceilings of this machine are not known, so nothing can be said "
            "about how near the layers come to them."
        )
    if profile.ceilings.peak_flops(profile.dtype) is None:
        return f"Not measured: there is no peak for {profile.dtype} on this machine."
    return "No layer with counted operations has a place below the roof."


def _frame(found: Roofline) -> _Frame:
    fastest = max(each.ceiling for each in found.bandwidths)
    slowest = min(each.ceiling for each in found.bandwidths)
    first = found.peak / fastest / MARGIN
    left, right = [first], [found.peak / slowest * MARGIN]
    bottom, top = [first * slowest], [found.peak * HEADROOM]
    for each in found.found:
        assert each.intensity is not None
        reached = found.reached(each)
        left.append(each.intensity / POINT_MARGIN)
        right.append(each.intensity * POINT_MARGIN)
        bottom.append(reached / POINT_MARGIN)
        top.append(reached * POINT_MARGIN)
    bottom = [value for value in bottom if value > 0]
    return _Frame(
        Scale(min(left), max(right), 0, 100, is_log=True),
        Scale(min(bottom), max(top), HEIGHT, 0, is_log=True),
    )


def _picture(found: Roofline) -> Markup:
    frame = _frame(found)
    return plot(
        HEIGHT,
        *upright_axis(frame.y, count_text, most=6),
        *across_axis(frame.x, HEIGHT, lambda value: f"{value:g}", most=7),
        *_ceilings(found, frame),
        *_points(found, frame),
        words(0, -1, "FLOP/s", class_="tick"),
        words(100, HEIGHT + 34, "FLOP per byte moved", class_="tick", anchor="end"),
        label=f"{len(found.found)} groups of layers below the {found.dtype} roof",
        left=52,
        bottom=44,
    )


def _ceilings(found: Roofline, frame: _Frame) -> Iterator[Markup]:
    """Draw a slope for each level of the memory, and the roof where all of them end."""
    fastest = max(found.bandwidths, key=lambda each: each.ceiling)
    for each in found.bandwidths:
        first, last = frame.below(each, found.peak)
        is_home = each is found.home
        line = _line(frame, first, first * each.ceiling, last, last * each.ceiling)
        yield element("line", **line, class_="roof" if is_home else "dotted")
    meets = found.peak / fastest.ceiling
    dotted = _line(frame, max(meets, frame.x.low), found.peak, found.ridge, found.peak)
    yield element("line", **dotted, class_="dotted")
    roof = _line(frame, found.ridge, found.peak, frame.x.high, found.peak)
    yield element("line", **roof, class_="roof")
    name = f"{found.dtype} {rate_text(found.peak)}"
    yield words(100, frame.y(found.peak) - 6, name, class_="label halo", anchor="end")
    home = f"{found.home.level} {rate_text(found.home.ceiling, 'B/s')}"
    first, last = frame.below(found.home, found.peak)
    # Low on the slope, where few layers are.
    place = first**0.75 * last**0.25
    y = frame.y(place * found.home.ceiling)
    yield words(frame.x(place), y + 14, home, class_="label halo", dx=6)
    x = across(frame.x(found.ridge))
    yield element("line", x1=x, x2=x, y1=HEIGHT - 9, y2=HEIGHT + 3, class_="middle")


def _line(frame: _Frame, x1: float, y1: float, x2: float, y2: float) -> dict[str, float | str]:
    return {
        "x1": across(frame.x(x1)),
        "y1": frame.y(y1),
        "x2": across(frame.x(x2)),
        "y2": frame.y(y2),
    }


def _points(found: Roofline, frame: _Frame) -> Iterator[Markup]:
    """Draw the layers, the slowest last so that they are on top, with letters beside them."""
    drawn = _drawn(found)
    slowest = max(each.share for each in drawn)
    places = [(frame.x(each.intensity or 0), frame.y(found.reached(each))) for each in drawn]
    for place in reversed(range(len(drawn))):
        each, (x, y) = drawn[place], places[place]
        is_labelled = place < LABELLED
        size = max(0.0, each.share / slowest) ** 0.5
        yield element(
            "circle",
            element("title", _title(found, each)),
            cx=across(x),
            cy=y,
            r=round(SMALLEST + size * (LARGEST - SMALLEST), 1) if is_labelled else 3,
            class_="dot" if is_labelled else "small",
        )
    for members in _clusters(places[:LABELLED]):
        x = max(places[member][0] for member in members)
        y = sum(places[member][1] for member in members) / len(members)
        text = ", ".join(ascii_uppercase[member] for member in members)
        if x < 80:
            yield words(x, y + 4, text, class_="label halo letter", dx=15)
        else:
            x = min(places[member][0] for member in members)
            yield words(x, y + 4, text, class_="label halo letter", anchor="end", dx=-15)


def _drawn(found: Roofline) -> list[BottleneckFacts]:
    """Give the layers that have a place on logarithmic axes."""
    return [each for each in found.found if each.intensity and each.of_peak]


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


def _title(found: Roofline, each: BottleneckFacts) -> str:
    return (
        f"{hotspot_label(each).plain}: {percent_text(each.share)} of the time, "
        f"{count_text(each.intensity)} FLOP/B, {rate_text(found.reached(each))}, "
        f"{percent_text(each.of_attainable)} of possible"
    )


def _legend_table(found: Roofline) -> Markup:
    drawn = _drawn(found)
    rows = [
        (
            f"{letter}  {hotspot_label(each).plain}",
            Cell(percent_text(each.share), each.share, bar=each.share),
            each.bound or "",
            Cell(count_text(each.intensity), each.intensity),
            Cell(rate_text(found.reached(each)), found.reached(each)),
            Cell(percent_text(each.of_attainable), each.of_attainable),
        )
        for letter, each in zip(ascii_uppercase[:LABELLED], drawn, strict=False)
    ]
    columns = [
        Column("layers"),
        Column("time", "bar", "share of a call"),
        Column("bound"),
        Column("FLOP/B", "number", "floating-point operations per byte moved"),
        Column("reached", "number"),
        Column("of possible", "number", "of what the roof allows at this intensity"),
    ]
    return table(columns, rows)
