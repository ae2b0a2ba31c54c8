"""How the latency is distributed, and how it went over the run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Samples
from tinytorch.profiling.profile import Profile, ProfileFacts
from tinytorch.reporting.html.markup import Cell, Column, Markup, element, joined, table
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.html.plot import (
    Scale,
    across,
    across_axis,
    beside,
    figure,
    plot,
    upright_axis,
    words,
)
from tinytorch.reporting.profile_words import interval_text
from tinytorch.reporting.quantities import percent_text, seconds_text

__all__ = ["latency_section"]

HEIGHT = 170
FEW = 30
"""Up to so many values are drawn one by one."""
MOST_COLUMNS = 48
MOST_DOTS = 600
"""Of more calls, so many are drawn in the order of the run."""
FAR_OUT = 4.0
"""Values further from the middle half than so many of its widths are named, not drawn."""
PERCENTILES = (5, 25, 50, 75, 95, 99)


def latency_section(profile: Profile, facts: ProfileFacts) -> Section:
    """Draw the distribution and the run order of the latency, with its percentiles."""
    latency = profile.latency
    interval = latency.median_interval()
    if latency.count == 1:
        text = f"One call was timed: {seconds_text(latency.median)}. How much it varies is unknown."
        return Section("latency", "Latency", element("p", text))
    window = _window(latency, interval)
    parts = [
        beside(
            figure(_distribution(latency, interval, window), title="Distribution"),
            figure(_run_order(latency, interval, window), title="In the order of the run"),
        ),
        *(element("p", note, class_="note") for note in _notes(latency, window)),
        _percentile_table(latency),
    ]
    if facts.device is not None:
        parts.append(_device_table(profile))
    return Section("latency", "Latency", joined(parts), about=_about(latency, interval))


def _about(latency: Samples, interval: Estimate) -> str:
    calls = "" if latency.loops == 1 else f" Each value is the mean of {latency.loops} calls."
    confidence = min(interval.coverage, 0.95)
    return (
        f"{latency.count:,} calls of the model as it is, with nobody watching.{calls} The line is "
        f"the median, {seconds_text(latency.median)}, the band its {confidence:.0%} interval, "
        f"{interval_text(interval)}. {_sentence(latency.stability.note)}"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _window(latency: Samples, interval: Estimate) -> tuple[float, float]:
    """Give the range to draw; single calls far away would press all others together."""
    first, third = latency.percentile(25), latency.percentile(75)
    reach = FAR_OUT * max(third - first, 0.002 * abs(latency.median))
    if latency.count <= FEW:
        reach = math.inf
    low = max(latency.minimum, min(first - reach, interval.low))
    high = min(latency.maximum, max(third + reach, interval.high))
    margin = 0.04 * (high - low) or 0.02 * abs(latency.median) or 1e-9
    return low - margin, high + margin


def _notes(latency: Samples, window: tuple[float, float]) -> Iterator[str]:
    low, high = window
    below = sum(value < low for value in latency.values)
    above = sum(value > high for value in latency.values)
    if above:
        yield f"{_calls(above)} took longer than is drawn, up to {seconds_text(latency.maximum)}."
    if below:
        yield f"{_calls(below)} took less than is drawn, from {seconds_text(latency.minimum)}."
    step = _step(latency)
    if step > 1:
        yield f"In the order of the run, one of {step} calls is drawn."


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def _step(latency: Samples) -> int:
    return math.ceil(latency.count / MOST_DOTS)


# ---------------------------------------------------------------- pictures


def _distribution(latency: Samples, interval: Estimate, window: tuple[float, float]) -> Markup:
    low, high = window
    scale = Scale(low, high, 0, 100)
    inside = [value for value in latency.values if low <= value <= high]
    shapes = _dots(inside, scale) if latency.count <= FEW else _columns(inside, window, scale)
    left, right = scale(interval.low), scale(interval.high)
    return plot(
        HEIGHT,
        *across_axis(scale, HEIGHT, seconds_text, most=5),
        element(
            "rect",
            x=across(left),
            width=across(max(right - left, 0.2)),
            y=0,
            height=HEIGHT,
            class_="band",
        ),
        *shapes,
        *_median_line(scale(latency.median), seconds_text(latency.median)),
        label=f"Distribution of {latency.count} latencies around {seconds_text(latency.median)}",
        left=12,
    )


def _median_line(place: float, text: str) -> Iterator[Markup]:
    x = across(place)
    yield element("line", x1=x, x2=x, y1=0, y2=HEIGHT, class_="middle")
    is_left = place < 65
    yield words(
        place,
        11,
        f"median {text}",
        class_="label halo",
        anchor="start" if is_left else "end",
        dx=5 if is_left else -5,
    )


def _columns(values: list[float], window: tuple[float, float], scale: Scale) -> Iterator[Markup]:
    """Draw a histogram; its columns are as wide as the Freedman-Diaconis rule says."""
    first, third = np.percentile(values, (25, 75))
    width = 2 * (third - first) / len(values) ** (1 / 3)
    wanted = math.ceil((window[1] - window[0]) / width) if width > 0 else 10
    counts, edges = np.histogram(values, bins=min(max(wanted, 10), MOST_COLUMNS), range=window)
    upright = Scale(0, float(counts.max()) * 1.15, HEIGHT, 0)
    for count, left, right in zip(counts.tolist(), edges[:-1], edges[1:], strict=True):
        if not count:
            continue
        top = upright(count)
        start, end = scale(float(left)), scale(float(right))
        said = f"{seconds_text(float(left))} to {seconds_text(float(right))}: {_calls(count)}"
        yield element(
            "rect",
            element("title", said),
            x=across(start),
            width=across(max(end - start - 0.25, 0.2)),
            y=top,
            height=HEIGHT - top,
            class_="column",
        )


def _dots(values: list[float], scale: Scale) -> Iterator[Markup]:
    """Draw few values one by one, those in the same place above each other."""
    piles: dict[int, int] = {}
    for value in sorted(values):
        place = scale(value)
        pile = round(place / 3)
        height = piles.get(pile, 0)
        piles[pile] = height + 1
        yield element(
            "circle",
            element("title", seconds_text(value)),
            cx=across(place),
            cy=HEIGHT - 10 - 11 * height,
            r=5,
            class_="dot",
        )


def _run_order(latency: Samples, interval: Estimate, window: tuple[float, float]) -> Markup:
    scale = Scale(1, max(2, latency.count), 1, 99)
    upright = Scale(*window, HEIGHT, 0)
    step = _step(latency)
    top, bottom = upright(interval.high), upright(interval.low)
    middle = upright(latency.median)
    radius = 2 if latency.count > 100 else 3.5
    dots = [
        element(
            "circle",
            cx=across(scale(place)),
            cy=upright(value),
            r=radius,
            class_="dot bad" if not window[0] <= value <= window[1] else "dot",
        )
        for place, value in list(enumerate(latency.values, start=1))[::step]
    ]
    return plot(
        HEIGHT,
        *upright_axis(upright, seconds_text, most=5),
        element("rect", x=0, width="100%", y=top, height=max(bottom - top, 1.0), class_="band"),
        *dots,
        element("line", x1=0, x2="100%", y1=middle, y2=middle, class_="middle"),
        words(0, HEIGHT + 16, "first call", class_="tick"),
        words(100, HEIGHT + 16, f"call {latency.count:,}", class_="tick", anchor="end"),
        label=f"{latency.count} latencies in the order of the run",
    )


# ---------------------------------------------------------------- tables


def _percentile_table(latency: Samples) -> Markup:
    percentiles = [seconds_text(latency.percentile(q)) for q in PERCENTILES]
    columns = [
        Column("latency"),
        Column("least", "number"),
        *(Column("median" if q == 50 else f"{q}%", "number") for q in PERCENTILES),
        Column("most", "number"),
        Column("mean", "number"),
        Column("outliers", "number", "outside of Tukey's fences; they are counted, not dropped"),
    ]
    row: list[Cell | str] = [
        f"{latency.count:,} values",
        seconds_text(latency.minimum),
        *percentiles,
        seconds_text(latency.maximum),
        seconds_text(latency.mean),
        Cell(f"{latency.outliers.total}"),
    ]
    return table(columns, [row], sortable=False)


def _device_table(profile: Profile) -> Markup:
    """Give the times of a call on a GPU: by the wall clock, on its time line, in its kernels."""
    rows = [("latency, by the wall clock", profile.latency)]
    if profile.device_time is not None:
        rows.append(("device time, by events", profile.device_time))
    if profile.busy is not None:
        rows.append(("in its kernels, without gaps", profile.busy))
    written: list[list[Cell | str]] = [
        [name, Cell(seconds_text(of.median)), interval_text(of.median_interval())]
        for name, of in rows
    ]
    if profile.idle_share is not None:
        written.append(["the device waits for the program", percent_text(profile.idle_share), ""])
    columns = [Column("a call"), Column("median", "number"), Column("interval")]
    return table(columns, written, sortable=False)
