"""Advice about a batch size or a sequence length: the table, the picture, the recommendation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tinytorch.perf.acceleration.size_advice import SizeAdvice, SizeMeasurement
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.log_plot import WIDTH, Mark, log_plot
from tinytorch.reporting.quantities import bytes_text, count_text, seconds_text

__all__ = ["render_size_advice"]

NAMES = {"batch": "batch size", "sequence": "sequence length"}
MEASURED, KNEE, RECOMMENDED = "●", "◆", "★"


def render_size_advice(advice: SizeAdvice) -> RenderableType:
    """Lay out what was measured by size, the curve, and what follows from it."""
    head = f"{advice.framework} on {advice.device}, by {NAMES[advice.axis]}"
    usual = f"example inputs have {advice.usual}"
    return Group(
        Text.assemble((advice.name, "bold"), "  ", (f"{head}; {usual}", "dim")),
        Text(""),
        _table(advice),
        Text(""),
        _Picture(advice),
        Text(f"  {advice.unit} per second over the latency of a call  {_legend(advice)}", "dim"),
        Text(""),
        *_conclusions(advice),
        *(Text(f"- {note}", style="yellow") for note in advice.notes),
    )


def _table(advice: SizeAdvice) -> FittingTable:
    points = advice.points
    intervals = [point.latency.median_interval() for point in points]
    recommended = advice.recommended.size
    return FittingTable(
        NAMES[advice.axis],
        [Text(f"{point.size:,}") for point in points],
        [
            Column("latency", [seconds_text(point.latency.median) for point in points]),
            Column(
                "interval",
                [f"{seconds_text(each.low)} to {seconds_text(each.high)}" for each in intervals],
                4,
            ),
            Column(f"{advice.unit}/s", [count_text(point.throughput) for point in points]),
            Column("of the best", [_share(advice, point) for point in points], 3),
            Column("peak memory", [bytes_text(point.peak_bytes) for point in points], 1),
            Column("n", [str(point.latency.count) for point in points], 5),
            Column("", [_words(advice, point) for point in points], 2, "left"),
        ],
        styles=["bold" if point.size == recommended else "" for point in points],
        label_least=len(NAMES[advice.axis]),
    )


def _share(advice: SizeAdvice, point: SizeMeasurement) -> str:
    """Say how much of the best throughput a size reaches, with the interval."""
    if point.size == advice.best:
        return "best"
    slowdown = advice.slowdown(point.size)
    low = 1 / slowdown.high if slowdown.high < float("inf") else 0.0
    high = f"{1 / slowdown.low:.0%}" if slowdown.low > 0 else "?"
    return f"{1 / slowdown.value:.0%} ({low:.0%} to {high})"


def _words(advice: SizeAdvice, point: SizeMeasurement) -> str:
    words = []
    if point.size == advice.recommended.size:
        words.append("recommended")
    if point.size == advice.knee:
        words.append("knee")
    if point.size == advice.usual:
        words.append("as given")
    return ", ".join(words)


@dataclass(frozen=True)
class _Picture:
    """Throughput over latency, as wide as the terminal allows."""

    advice: SizeAdvice

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        advice = self.advice
        letters = {advice.knee: KNEE, advice.recommended.size: RECOMMENDED}
        marks = [
            Mark(point.latency.median, point.throughput, letters.get(point.size, MEASURED))
            for point in advice.points
        ]
        picture = log_plot(
            sorted(marks, key=lambda mark: mark.letter != MEASURED),
            lambda latency: 0.0,  # no law, only what was measured
            x_text=seconds_text,
            y_text=count_text,
            width=min(WIDTH, options.max_width),
        )
        yield Text(picture, no_wrap=True, overflow="crop")


def _legend(advice: SizeAdvice) -> str:
    found = advice.recommended.size
    apart = found != advice.knee
    names = [f"{KNEE} knee"] if apart else []
    names += [f"{RECOMMENDED} recommended" if apart else f"{RECOMMENDED} knee, recommended"]
    return "  ".join(names if found is not None else [f"{KNEE} knee"])


def _conclusions(advice: SizeAdvice) -> Iterator[Text]:
    found = advice.recommended
    name = NAMES[advice.axis]
    if found.size is None:
        yield Text(f"No {name} is recommended: {found.reason}.", style="red")
    else:
        yield Text(f"Recommended {name}: {found.size:,} ({found.reason}).", style="green")
    if advice.knee != found.size:
        yield Text(
            f"Knee: {advice.knee:,}, the smallest size shown within {advice.tolerance:.0%} of the "
            "best throughput."
        )
    yield Text(f"Largest that {_what_counts(advice)}: {advice.ceiling.words}.")
    yield Text(f"Why no larger one is in the table: {advice.limited_by.reason}.", style="dim")


def _what_counts(advice: SizeAdvice) -> str:
    return "runs" if advice.memory_limit_bytes is None else "runs within the memory limit"
