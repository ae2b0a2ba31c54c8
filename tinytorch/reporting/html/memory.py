"""What was alive in memory over the recorded call, by category, and what was at the peak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tinytorch.reporting.html.figures import figure
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.html.plot import (
    across,
    across_axis,
    bytes_axis,
    legend,
    plot,
    stretched_steps,
    words,
)
from tinytorch.reporting.html.svg import Scale
from tinytorch.reporting.html.tables import Cell, Column, table
from tinytorch.reporting.quantities import bytes_text, percent_text, seconds_text
from tinytorch.workloads.memory_timeline import LASTING
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.profile_facts import ProfileFacts

__all__ = ["memory_section"]

HEIGHT = 200
HEADROOM = 1.15
MOST_MOMENTS = 600
"""So many moments are drawn; of a span with several changes the one with most bytes."""
ORDER = (*LASTING, "gradients", "activations", "temporaries")
"""From the bottom up: what lasts, then what a call makes."""
MOSTLY = 0.6
"""When so much of the peak was there before, what the call makes has a picture of its own."""
LARGEST = 8

Moment = tuple[float, Mapping[str, int]]


def memory_section(profile: Profile, facts: ProfileFacts) -> Section:
    """Draw the bytes of live buffers over the recorded call, with a table of the peak."""
    points = profile.memory.points
    if not points:
        body = element("p", "No buffer was seen.", class_="note")
        return Section("memory", "Memory", body)
    moments, is_thinned = _moments(points)
    categories = _ordered({name for _, held in moments for name in held if held[name]})
    colours = {name: f"series-{place}" for place, name in enumerate(categories, start=1)}
    made = [name for name in categories if name not in LASTING]
    lasting = sum(share for name, share in facts.peak_composition.items() if name in LASTING)
    has_two = bool(made) and lasting > MOSTLY
    height = HEIGHT // 2 if has_two else HEIGHT
    parts = [_stack(moments, categories, colours, title="All that was alive", height=height)]
    if has_two:
        title = "Of that, what the call itself made"
        parts.append(_stack(moments, made, colours, title=title, height=HEIGHT))
    parts.append(legend((colours[name], name) for name in categories))
    if is_thinned:
        note = (
            f"Of {len(points):,} changes {len(moments)} are drawn: in each short span of time the "
            "one with most bytes."
        )
        parts.append(element("p", note, class_="note"))
    parts += [_peak_table(profile, facts), _holder_table(profile)]
    return Section("memory", "Memory", joined(parts), about=_about(profile, facts))


def _about(profile: Profile, facts: ProfileFacts) -> str:
    text = (
        f"Bytes of live buffers in the recorded call, each counted once. Most were alive at the "
        f"dashed line: {bytes_text(facts.peak_bytes)}"
    )
    made = profile.memory.peak_activation_bytes
    text += f", and the call itself never held more than {bytes_text(made)}." if made else "."
    if profile.traced_peak_bytes is not None:
        scratch = bytes_text(profile.traced_peak_bytes)
        text += f" With scratch memory inside of operations, Python saw {scratch} allocated."
    if profile.recording.device_peak_bytes is not None:
        device = bytes_text(profile.recording.device_peak_bytes)
        text += f" The device's own allocator held {device} at most."
    return text


def _moments(points: Sequence[Moment]) -> tuple[list[Moment], bool]:
    """Give the moments to draw, from the first change on, the highest ones where there are many.

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


def _ordered(names: set[str]) -> list[str]:
    known = [name for name in ORDER if name in names]
    return known + sorted(names - set(known))


def _stack(
    moments: Sequence[Moment],
    names: Sequence[str],
    colours: Mapping[str, str],
    *,
    title: str,
    height: int,
) -> Markup:
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
                class_=f"layer {colours[name]}",
                title=name,
            )
        )
        below = above
    peak = across_scale(moments[totals.index(most)][0] - first)
    picture = plot(
        height,
        *bytes_axis(most * HEADROOM, height),
        *across_axis(across_scale, height, seconds_text),
        *areas,
        *_peak_mark(peak, upright(most), height, f"peak {bytes_text(most)}"),
        label=f"{title}: {bytes_text(most)} at the peak",
    )
    return figure(picture, title=title)


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


def _peak_table(profile: Profile, facts: ProfileFacts) -> Markup:
    held = profile.memory.peak_by_category
    rows = [
        (
            name,
            Cell(bytes_text(held[name]), held[name]),
            Cell(percent_text(share), share, bar=share),
        )
        for name, share in facts.peak_composition.items()
    ]
    columns = [Column("at the peak"), Column("bytes", "number"), Column("share", "bar")]
    return table(columns, rows)


def _holder_table(profile: Profile) -> Markup:
    """Give the layers that made or hold most of what was alive at the peak."""
    whole = profile.memory.peak_bytes
    held = sorted(profile.memory.peak_by_path.items(), key=lambda item: -item[1])
    shown = [(path, size) for path, size in held[:LARGEST] if size]
    if len(shown) < 2:
        return Markup("")
    rows = [
        (
            _holder(profile, path),
            Cell(bytes_text(size), size),
            Cell(percent_text(size / whole), size / whole, bar=size / whole),
        )
        for path, size in shown
    ]
    more = len(held) - len(shown)
    rest = f"The {len(shown)} largest; {more} more hold the rest." if more > 0 else ""
    columns = [Column("made or held by"), Column("bytes", "number"), Column("share", "bar")]
    inside = joined([table(columns, rows), element("p", rest, class_="note") if rest else ""])
    return element("details", element("summary", "Which layers it belongs to"), inside)


def _holder(profile: Profile, path: str | None) -> str:
    if path is None:
        return "outside of the model"
    return f"{path} {profile.kinds.get(path, '')}".strip() if path else "the model itself"
