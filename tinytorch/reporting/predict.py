"""A prediction over sizes in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tinytorch.perf.profiling.size_scaling import SizeScaling
from tinytorch.perf.profiling.size_trends import NOT_RESOLVED, Trend
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.log_plot import WIDTH, Mark, log_plot
from tinytorch.reporting.quantities import UNKNOWN, bytes_text, count_text, seconds_text

__all__ = ["render_scaling"]

Write = Callable[[float | None], str]

MEASURED, PREDICTED, CHECKED = "●", "◇", "x"


def render_scaling(scaling: SizeScaling) -> RenderableType:
    """Lay out what was measured, the laws through it, the prediction and the check."""
    head = f"{scaling.framework} on {scaling.device}, by {scaling.axis}"
    usual = f"example inputs have {scaling.usual}"
    return Group(
        Text.assemble((scaling.name, "bold"), "  ", (f"{head}; {usual}", "dim")),
        Text(""),
        _points(scaling),
        Text(""),
        _Picture(scaling),
        Text(f"  {MEASURED} measured  {_legend(scaling)}", style="dim"),
        Text(""),
        _trends(scaling),
        Text(""),
        *_verdict(scaling),
        *(Text(f"- {note}", style="yellow") for note in scaling.all_notes),
    )


def _points(scaling: SizeScaling) -> FittingTable:
    points = [*scaling.points, *([scaling.check] if scaling.check else [])]
    intervals = [point.latency.median_interval() for point in points]
    return FittingTable(
        "size",
        [Text(f"{p.size} (check)" if p is scaling.check else str(p.size)) for p in points],
        [
            Column("time", [seconds_text(point.latency.median) for point in points]),
            Column(
                "interval",
                [f"{seconds_text(each.low)} to {seconds_text(each.high)}" for each in intervals],
                2,
            ),
            Column("n", [str(point.latency.count) for point in points], 3),
            Column("FLOPs", [count_text(point.flops) for point in points], 1),
            Column("peak memory", [bytes_text(point.peak_bytes) for point in points], 1),
        ],
    )


@dataclass(frozen=True)
class _Picture:
    """Time over the size, as wide as the terminal allows."""

    scaling: SizeScaling

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        time, at, check = self.scaling.time, self.scaling.at, self.scaling.check
        marks = [Mark(point.size, point.latency.median, MEASURED) for point in self.scaling.points]
        # A bar for an interval that shows nothing would leave no room for what was measured.
        ends = time.interval if time.is_shown else None
        low, high = (ends.low, ends.high) if ends else (None, None)
        marks.append(Mark(at, time.value, PREDICTED, low=low, high=high))
        if check is not None:
            marks.append(Mark(at, check.latency.median, CHECKED))
        picture = log_plot(
            marks,
            time.value_at,
            x_text=lambda size: f"{size:g}",
            y_text=seconds_text,
            width=min(WIDTH, options.max_width),
        )
        yield Text(picture, no_wrap=True, overflow="crop")


def _legend(scaling: SizeScaling) -> str:
    bar = " with its interval" if scaling.time.is_shown else ""
    check = f"  {CHECKED} measured for the check" if scaling.check else ""
    return f"{PREDICTED} predicted{bar}{check}"


def _written(scaling: SizeScaling) -> list[tuple[Trend, Write]]:
    """Give the trends that there are, each with how to write its numbers."""
    pairs: list[tuple[Trend | None, Write]] = [
        (scaling.time, seconds_text),
        (scaling.flops, count_text),
        (scaling.memory, bytes_text),
    ]
    return [(trend, write) for trend, write in pairs if trend is not None]


def _trends(scaling: SizeScaling) -> FittingTable:
    rows = _written(scaling)
    return FittingTable(
        f"at {scaling.at}",
        [Text(trend.quantity) for trend, _ in rows],
        [
            Column("predicted", [write(trend.value) for trend, write in rows]),
            Column("95% interval", [_range(trend, write) for trend, write in rows], 2),
            Column("measured", [_truth(trend, write) for trend, write in rows], 3),
            Column("exponent", [_exponent(trend) for trend, _ in rows], 1),
            Column("grows", [_words(trend) for trend, _ in rows], 4, "left"),
        ],
    )


def _range(trend: Trend, write: Write) -> str:
    if trend.interval is None:
        return UNKNOWN
    if trend.law.is_exact:
        return "exact"
    return f"{write(trend.interval.low)} to {write(trend.interval.high)}"


def _truth(trend: Trend, write: Write) -> str:
    return "" if trend.measured is None else write(trend.measured)


def _exponent(trend: Trend) -> str:
    exponent, reach = f"{trend.law.exponent:.2f}", trend.exponent_reach
    is_open = trend.law.is_exact or not math.isfinite(reach)
    return exponent if is_open else f"{exponent} ± {reach:.2f}"


def _words(trend: Trend) -> str:
    # A note has the whole sentence, for which a table has no room.
    return "not resolved" if trend.words == NOT_RESOLVED else trend.words


def _verdict(scaling: SizeScaling) -> list[Text]:
    """Say for each quantity whether the check found it where it was predicted."""
    if scaling.check is None:
        return []
    parts = [
        f"{trend.quantity} {write(trend.measured)} {_finding(trend)}"
        for trend, write in _written(scaling)
    ]
    style = {True: "green", False: "red", None: "yellow"}[scaling.holds]
    return [Text(f"Checked at {scaling.at}: {', '.join(parts)}.", style=style)]


def _finding(trend: Trend) -> str:
    if trend.interval is None:
        return "is not shown to fit (no interval)"
    if trend.holds is None:
        return "is not shown to fit (the interval is too wide)"
    if trend.law.is_exact:
        return "is exactly as predicted" if trend.holds else "is not as predicted"
    return "is inside its interval" if trend.holds else "is outside its interval"
