"""A prediction over sizes in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.perf.profiling.size_scaling import SizeScaling
from tinytorch.perf.profiling.size_trends import Trend
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.log_plot import Mark, log_plot
from tinytorch.reporting.quantities import bytes_text, count_text, seconds_text

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
        Text(_picture(scaling)),
        Text(f"  {MEASURED} measured  {_legend(scaling)}", style="dim"),
        Text(""),
        _trends(scaling),
        Text(""),
        *_verdict(scaling),
        *(Text(f"- {note}", style="yellow") for note in _notes(scaling)),
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


def _picture(scaling: SizeScaling) -> str:
    law = scaling.time.prediction
    marks = [Mark(point.size, point.latency.median, MEASURED) for point in scaling.points]
    marks.append(
        Mark(scaling.at, law.value, PREDICTED, low=law.interval.low, high=law.interval.high)
    )
    if scaling.check is not None:
        marks.append(Mark(scaling.at, scaling.check.latency.median, CHECKED))
    return log_plot(
        marks,
        lambda size: law.factor * size**law.exponent,
        x_text=lambda size: f"{size:g}",
        y_text=seconds_text,
    )


def _legend(scaling: SizeScaling) -> str:
    bar = "" if math.isinf(scaling.time.interval.high) else " with its interval"
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
            Column("95% interval", [_range(trend, write) for trend, write in rows], 1),
            Column("measured", [_truth(trend, write) for trend, write in rows], 4),
            Column("exponent", [_exponent(trend) for trend, _ in rows], 3),
            Column("grows", [trend.words for trend, _ in rows], 2, "left"),
        ],
    )


def _range(trend: Trend, write: Write) -> str:
    return f"{write(max(0.0, trend.interval.low))} to {write(trend.interval.high)}"


def _truth(trend: Trend, write: Write) -> str:
    return "" if trend.measured is None else write(trend.measured)


def _exponent(trend: Trend) -> str:
    found = trend.prediction
    reach = found.exponent_interval.high - found.exponent
    return f"{found.exponent:.2f}" + (f" ± {reach:.2f}" if math.isfinite(reach) else "")


def _verdict(scaling: SizeScaling) -> list[Text]:
    """Say for each quantity whether the check found it where it was predicted."""
    if scaling.check is None:
        return []
    if scaling.holds is None:
        words = "two sizes give no interval to compare the check with: nothing is shown"
        return [Text(f"{words[0].upper()}{words[1:]}.", style="yellow")]
    where = {True: "inside", False: "outside", None: "without"}
    parts = [
        f"{trend.quantity} {write(trend.measured)} is {where[trend.holds]} its interval"
        for trend, write in _written(scaling)
    ]
    text = f"Checked at {scaling.at}: {', '.join(parts)}."
    return [Text(text, style="green" if scaling.holds else "red")]


def _notes(scaling: SizeScaling) -> list[str]:
    constant = scaling.memory.constant if scaling.memory else 0.0
    resident = [f"{bytes_text(constant)} of the memory are parameters, whatever the size"]
    outside = [str(p.size) for p in scaling.points if p.size not in scaling.time.fitted]
    bend = [f"fixed costs still weigh at {', '.join(outside)}: not in the fit of time"]
    return [
        *(resident if constant else ()),
        *(bend if outside else ()),
        *scaling.time.prediction.notes,
        *scaling.notes,
    ]
