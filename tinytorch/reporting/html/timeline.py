"""A recorded call over time: operations below the layers that ran them, and live memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tinytorch.profiling.layers import Span
from tinytorch.reporting.document import Chart
from tinytorch.reporting.html.markup import Markup, element, joined, packed
from tinytorch.reporting.html.plot import (
    Scale,
    across,
    across_axis,
    bytes_axis,
    cell,
    legend,
    plot,
    stretched_steps,
    words,
)
from tinytorch.reporting.quantities import bytes_text, count_text, percent_text, seconds_text

ROW, GAP, HEAD = 18, 1, 18
"""Pixels: of a lane, between two of them, and above those of a phase for its name."""
LEAST = 0.005
"""In the still picture, what is shorter than this share of the time is drawn together."""
TOGETHER = 0.004
"""Short ones with a smaller pause than this between them are drawn as one."""
INVISIBLE = 0.0005
"""Alone and shorter than this share, it is not drawn."""
MOST_SPANS = 6000
"""Spans that go into the page, the longest ones."""
NS = 1e-9
MOST_FAMILIES = 7
CONTAINER, SHORT = "container", "short"
POINT = "Point at a box to read about it."


@dataclass(frozen=True)
class _Lanes:
    """Where the spans of each phase stand: the pixels above its first lane."""

    tops: Mapping[str, int]
    height: int

    def top(self, span: Span) -> int:
        return self.tops[span.track] + span.depth * ROW


@dataclass(frozen=True)
class _Piece:
    """A span of the still picture, or several short ones."""

    begin_ns: int
    end_ns: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Timeline(Chart):
    """Layers and operations of the recorded call, in the order in which they began."""

    spans: Sequence[Span]


def timeline_chart(chart: Timeline) -> Markup:
    """Draw the recorded call, for a script that zooms and pans."""
    spans = chart.spans
    kept = _longest(spans)
    begin = min(span.begin_ns for span in spans)
    end = max(max(span.end_ns for span in spans), begin + 1)
    lanes = _lanes(spans)
    colours = _colours(spans)
    return joined(
        [
            _tools(),
            _picture(kept, begin, end, lanes, colours),
            element("output", POINT, id="time-about", class_="about-part tools"),
            legend([*_legend(colours)]),
            *(element("p", note, class_="note") for note in _notes(spans, kept)),
            packed(_columns(kept, begin, end, lanes, colours), "time-spans"),
        ]
    )


def _longest(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return what goes into the page, in its order."""
    if len(spans) <= MOST_SPANS:
        return tuple(spans)
    order = sorted(range(len(spans)), key=lambda i: spans[i].begin_ns - spans[i].end_ns)
    return tuple(spans[i] for i in sorted(order[:MOST_SPANS]))


def _is_operation(span: Span) -> bool:
    return "family" in span.facts


def _notes(spans: Sequence[Span], kept: Sequence[Span]) -> Iterator[str]:
    if len(kept) < len(spans):
        all_ns, kept_ns = (sum(_ns(s) for s in of if _is_operation(s)) for of in (spans, kept))
        missing = percent_text(1 - kept_ns / all_ns) if all_ns else "0%"
        yield (
            f"The {len(spans) - len(kept):,} shortest of {len(spans):,} layers and operations are "
            f"left out, {missing} of the time of all operations."
        )
    yield (
        f"What is shorter than {percent_text(LEAST)} of the call is drawn together with its "
        "neighbours as a grey box until you zoom in, or is too thin to be seen."
    )


def _ns(span: Span) -> int:
    return span.end_ns - span.begin_ns


def _lanes(spans: Sequence[Span]) -> _Lanes:
    depths: dict[str, int] = {}
    for span in spans:
        depths[span.track] = max(depths.get(span.track, 0), span.depth)
    tops, height = {}, 0
    for track, depth in depths.items():
        tops[track] = height + HEAD
        height += HEAD + (depth + 1) * ROW
    return _Lanes(tops, height)


def _colours(spans: Sequence[Span]) -> dict[str, str]:
    """Return the families of operations a colour each, the slowest first."""
    times: dict[str, int] = defaultdict(int)
    for span in spans:
        if _is_operation(span):
            times[span.facts["family"]] += _ns(span)
    ordered = sorted(times, key=lambda family: -times[family])
    return {
        family: f"series-{min(place, MOST_FAMILIES + 1)}"
        for place, family in enumerate(ordered, start=1)
    }


def _class(span: Span, colours: Mapping[str, str]) -> str:
    return colours[span.facts["family"]] if _is_operation(span) else CONTAINER


def _legend(colours: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    families: dict[str, list[str]] = defaultdict(list)
    for family, colour in colours.items():
        families[colour].append(family)
    yield from ((colour, ", ".join(found)) for colour, found in families.items())
    yield CONTAINER, "layers"
    yield SHORT, "several short ones"


# ---------------------------------------------------------------- the still picture


def _picture(
    spans: Sequence[Span], begin: int, end: int, lanes: _Lanes, colours: Mapping[str, str]
) -> Markup:
    whole = end - begin
    cells = [
        cell(
            (piece.begin_ns - begin) / whole * 100,
            (piece.end_ns - piece.begin_ns) / whole * 100,
            lanes.top(piece.spans[0]),
            ROW - GAP,
            name=_short_name(piece.spans[0]) if len(piece.spans) == 1 else "",
            title=_title(piece),
            class_=_class(piece.spans[0], colours) if len(piece.spans) == 1 else SHORT,
        )
        for piece in _pieces(spans, whole)
    ]
    axis = across_axis(
        Scale(0.0, whole * NS, 0, 100), lanes.height, lambda moment: seconds_text(moment)
    )
    names = [
        element("text", f"{track} pass" if track != "update" else track, x=4, y=top - 5)
        for track, top in lanes.tops.items()
    ]
    return plot(
        lanes.height,
        element("g", *axis, class_="axis-lines"),
        element("g", *names, class_="lane-names"),
        element("g", *cells),
        label=f"{len(spans)} layers and operations of the recorded call over time",
        left=0,
        right=0,
        class_="cells time-line",
    )


def _pieces(spans: Sequence[Span], whole: int) -> list[_Piece]:
    """Return long spans as they are, and short neighbours of one lane together."""
    least, pause = LEAST * whole, TOGETHER * whole
    found: list[_Piece] = []
    waiting: dict[tuple[str, int], _Piece] = {}
    for span in spans:
        lane = span.track, span.depth
        if _ns(span) >= least:
            found.append(_Piece(span.begin_ns, span.end_ns, (span,)))
            continue
        last = waiting.get(lane)
        if last is not None and span.begin_ns - last.end_ns <= pause:
            waiting[lane] = _Piece(last.begin_ns, span.end_ns, (*last.spans, span))
        else:
            if last is not None:
                found.append(last)
            waiting[lane] = _Piece(span.begin_ns, span.end_ns, (span,))
    found += waiting.values()
    return [piece for piece in found if piece.end_ns - piece.begin_ns >= INVISIBLE * whole]


def _title(piece: _Piece) -> str:
    seconds = seconds_text((piece.end_ns - piece.begin_ns) * NS)
    if len(piece.spans) > 1:
        return f"{len(piece.spans)} short ones, {seconds}"
    return f"{piece.spans[0].name}: {seconds}"


def _short_name(span: Span) -> str:
    """Return the name without the layers around it, which stand above."""
    return span.name if _is_operation(span) else span.name.rpartition(".")[2]


def _tools() -> Markup:
    buttons = [
        ("Zoom in", "in"),
        ("Zoom out", "out"),
        ("Earlier", "left"),
        ("Later", "right"),
        ("Whole call", "whole"),
    ]
    return element(
        "p",
        *(element("button", text, type="button", data_time=what) for text, what in buttons),
        class_="tools",
    )


# ---------------------------------------------------------------- for the script


def _columns(
    spans: Sequence[Span], begin: int, end: int, lanes: _Lanes, colours: Mapping[str, str]
) -> dict[str, object]:
    """Return the spans as columns of numbers, with every text once."""
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    columns = {
        "begin": [span.begin_ns - begin for span in spans],
        "duration": [_ns(span) for span in spans],
        "top": [lanes.top(span) for span in spans],
        "label": [number(_short_name(span)) for span in spans],
        "name": [number(span.name) for span in spans],
        "colour": [number(_class(span, colours)) for span in spans],
        "about": [number(_about(span)) for span in spans],
        "layer": [number(str(span.facts.get("layer") or "")) for span in spans],
    }
    return {"row": ROW, "gap": GAP, "whole": end - begin, "texts": list(texts), **columns}


def _about(span: Span) -> str:
    facts = span.facts
    if not _is_operation(span):
        return str(facts.get("kind", ""))
    parts = [str(facts["family"])]
    if facts["macs"]:
        parts.append(f"{count_text(facts['macs'])} MACs")
    if facts["bytes moved"]:
        parts.append(bytes_text(facts["bytes moved"]))
    shapes = ", ".join(facts["inputs"])
    if shapes:
        parts.append(f"of {shapes}")
    return "; ".join(parts)


# ---------------------------------------------------------------- what was alive in memory over
# the recorded call, by category

HEADROOM = 1.15
MOST_MOMENTS = 600
"""Moments that are drawn; of a span with several changes the one with most bytes."""

Moment = tuple[float, Mapping[str, int]]


@dataclass(frozen=True)
class StackedLevels(Chart):
    """Bytes by category at each moment, from the bottom up; `series` numbers their colours."""

    points: Sequence[Moment]
    series: Mapping[str, int]
    height: int = 200


def levels_chart(chart: StackedLevels) -> Markup:
    """Draw the levels on top of each other, with the peak marked."""
    moments, is_thinned = _moments(chart.points)
    parts = [_stack(moments, chart)]
    parts.append(legend((f"series-{place}", name) for name, place in chart.series.items()))
    if is_thinned:
        note = (
            f"Of {len(chart.points):,} changes {len(moments)} are drawn: in each short span of "
            "time the one with most bytes."
        )
        parts.append(element("p", note, class_="note"))
    return joined(parts)


def _moments(points: Sequence[Moment]) -> tuple[list[Moment], bool]:
    """Return the moments to draw from the first change on, of many the highest, and whether so.

    At one moment the last point counts, when all births of it are in.
    """
    latest = list(dict(points).items())
    if len(latest) > 1 and latest[0][0] == 0:
        # Before the first change the recorder itself was starting.
        latest[0] = latest[1][0], latest[0][1]
        latest = latest if latest[0][1] != latest[1][1] else latest[1:]
    if len(latest) <= MOST_MOMENTS:
        return latest, False
    first, last = latest[0][0], latest[-1][0]
    spans: dict[int, Moment] = {}
    for moment, held in latest:
        span = int((moment - first) / (last - first) * (MOST_MOMENTS - 1))
        best = spans.get(span)
        if best is None or sum(held.values()) > sum(best[1].values()):
            spans[span] = moment, held
    return list(spans.values()), True


def _stack(moments: Sequence[Moment], chart: StackedLevels) -> Markup:
    names, height = list(chart.series), chart.height
    first, last = moments[0][0], moments[-1][0]
    span = (last - first) or 1e-9
    totals = [sum(held.get(name, 0) for name in names) for _, held in moments]
    most = max(totals)
    across_scale = Scale(0.0, span, 0, 100)
    upright = Scale(0.0, most * HEADROOM or 1.0, height, 0)
    places = [across_scale(moment - first) for moment, _ in moments]
    below = [0] * len(moments)
    areas = []
    for name in names:
        above = [low + held.get(name, 0) for low, (_, held) in zip(below, moments, strict=True)]
        areas.append(
            stretched_steps(
                places,
                [upright(level) for level in below],
                [upright(level) for level in above],
                height,
                class_=f"layer series-{chart.series[name]}",
                title=name,
            )
        )
        below = above
    peak = across_scale(moments[totals.index(most)][0] - first)
    return plot(
        height,
        *bytes_axis(most * HEADROOM, height),
        *across_axis(across_scale, height, seconds_text),
        *areas,
        *_peak_mark(peak, upright(most), height, f"peak {bytes_text(most)}"),
        label=f"{chart.title} {bytes_text(most)} at the peak",
    )


def _peak_mark(place: float, y: float, height: int, text: str) -> Iterator[Markup]:
    x = across(place)
    yield element("line", x1=x, x2=x, y1=0, y2=height, class_="peak")
    is_left = place < 70
    yield words(
        place,
        max(11, y - 5),
        text,
        class_="label halo",
        anchor="start" if is_left else "end",
        dx=5 if is_left else -5,
    )
