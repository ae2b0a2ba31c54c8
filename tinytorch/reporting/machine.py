"""The machine and its ceilings in the terminal, with the roofline that they imply."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tinytorch.measure.ceilings import Ceilings, Rate
from tinytorch.measure.environment import Environment
from tinytorch.measure.samples import Samples
from tinytorch.profiling.hardware import HardwareEstimate
from tinytorch.profiling.size_laws import NOT_RESOLVED, Trend
from tinytorch.profiling.size_scaling import SizeScaling
from tinytorch.reporting.forest_plot import ratio_text
from tinytorch.reporting.quantities import (
    UNKNOWN,
    WIDTH,
    Column,
    FittingTable,
    Mark,
    bytes_text,
    count_text,
    factor_text,
    log_plot,
    percent_text,
    rate_text,
    seconds_text,
)
from tinytorch.reporting.roofline import INDENT, ridge_mark, roofline_picture
from tinytorch.transforms.kernel_choice import FASTER, Choice, KernelReport

__all__ = ["render_estimate", "render_kernel_choices", "render_machine", "render_scaling"]


def render_machine(
    environment: Environment, ceilings: Ceilings, *, plain: bool = False
) -> RenderableType:
    """Lay out the machine, its measured ceilings and its roofline; `plain` is ASCII only."""
    parts: list[RenderableType] = [
        _heading("Machine"),
        _machine(environment, ceilings),
        _heading("Matrix products"),
        _rates(ceilings),
        _heading("Memory"),
        _bandwidths(ceilings),
        Text("A ceiling is what the best tenth of the n values reached.", style="dim"),
    ]
    if ceilings.rates:
        parts += [
            _heading("Roofline"),
            Text(roofline_picture(_peaks(ceilings), ceilings.bandwidths, plain=plain)),
            _how_to_read(ceilings, plain=plain),
            _heading("Ridge points, in FLOP per byte"),
            _ridges(ceilings),
            Text(
                "Work with fewer FLOP per byte is limited by the memory that its data come from, "
                "work with more by computing.",
                style="dim",
            ),
        ]
    return Group(*parts, *_missing(ceilings), *_doubts(ceilings))


def _heading(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def _machine(environment: Environment, ceilings: Ceilings) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, text in _machine_facts(environment, ceilings).items():
        if text:
            table.add_row(name, text)
    return table


def _machine_facts(environment: Environment, ceilings: Ceilings) -> dict[str, str]:
    cores = f"{environment.usable_cores} usable of {environment.logical_cores or 'unknown'}"
    if environment.cpu_quota is not None:
        cores += f", quota {environment.cpu_quota:g}"
    if environment.frequency_mhz:
        cores += f", {environment.frequency_mhz / 1000:.2f} GHz"
    if environment.governor:
        cores += f", governor {environment.governor}"
    libraries = [f"{name} {version}" for name, version in environment.libraries.items()]
    return {
        "device": f"{ceilings.device} {ceilings.device_name}" if ceilings.device != "cpu" else "",
        "processor": environment.cpu_model or "unknown",
        "instructions": " ".join(environment.instruction_sets),
        "cores": cores,
        "caches": ", ".join(
            f"{name} {_pieces(cache.one_bytes, cache.total_bytes)}"
            for name, cache in environment.caches.items()
        ),
        "memory": bytes_text(environment.memory_bytes) if environment.memory_bytes else "",
        "system": f"{environment.system}, Python {environment.python}",
        "libraries": ", ".join(libraries),
        "BLAS": environment.blas or "",
        "threads": ", ".join(f"{name}={value}" for name, value in environment.threads.items()),
        "busy": _busy(environment),
        "measured": ceilings.measured_at,
    }


def _pieces(one: int, total: int) -> str:
    count = round(total / one)
    return bytes_text(one) if count == 1 else f"{count} x {bytes_text(one)}"


def _busy(environment: Environment) -> str:
    said = []
    if environment.load_average is not None:
        said.append(f"load average {environment.load_average:.1f}")
    if environment.steal_share is not None:
        said.append(f"{percent_text(environment.steal_share)} stolen by other guests since boot")
    return ", ".join(said)


def _rates(ceilings: Ceilings) -> Table:
    table = _table(("dtype", "library"), ("ceiling", "median", "spread", "n"))
    for rate in ceilings.rates:
        is_best = rate.ceiling == ceilings.peak_flops(rate.dtype)
        table.add_row(
            rate.dtype,
            rate.library,
            Text(_rate_text(rate, rate.ceiling), style="bold" if is_best else ""),
            _rate_text(rate, rate.median),
            percent_text(rate.spread),
            str(rate.samples.count),
        )
    return table


def _rate_text(rate: Rate, number: float) -> str:
    return rate_text(number, "OP/s" if rate.dtype.startswith("int") else "FLOP/s")


def _bandwidths(ceilings: Ceilings) -> Table:
    table = _table(("level",), ("holds", "ceiling", "read", "spread", "copy", "spread", "n"))
    for each in ceilings.bandwidths:
        table.add_row(
            each.level,
            bytes_text(each.capacity_bytes) if each.capacity_bytes else "-",
            Text(rate_text(each.ceiling, "B/s"), style="bold"),
            *_use(each.read),
            *_use(each.copy),
            str(each.copy.count),
        )
    return table


def _use(samples: Samples | None) -> tuple[str, str]:
    if samples is None:
        return "-", "-"
    return rate_text(samples.median, "B/s"), percent_text(samples.stability.relative_spread)


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _how_to_read(ceilings: Ceilings, *, plain: bool) -> RenderableType:
    fastest_first = sorted(ceilings.bandwidths, key=lambda each: -each.ceiling)
    slopes = ", ".join(f"{each.level} {rate_text(each.ceiling, 'B/s')}" for each in fastest_first)
    last = ceilings.bandwidths[-1].level
    lines = (
        f"slopes from left: {slopes}",
        f"{ridge_mark(plain=plain)} where the slope of {last} meets a roof",
    )
    return Padding(Text("\n".join(lines)), (0, 0, 0, INDENT))


def _ridges(ceilings: Ceilings) -> Table:
    table = _table(("dtype",), [f"from {each.level}" for each in ceilings.bandwidths])
    for dtype, peak in _peaks(ceilings).items():
        numbers = (count_text(peak / each.ceiling) for each in ceilings.bandwidths)
        table.add_row(dtype, *numbers)
    return table


def _peaks(ceilings: Ceilings) -> dict[str, float]:
    """Give the peak of each dtype, highest first."""
    peaks = {rate.dtype: ceilings.peak_flops(rate.dtype) or 0.0 for rate in ceilings.rates}
    return dict(sorted(peaks.items(), key=lambda item: -item[1]))


def _missing(ceilings: Ceilings) -> list[RenderableType]:
    if not ceilings.not_measured:
        return []
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(style="dim", overflow="fold")
    for what, why in ceilings.not_measured.items():
        table.add_row(what, why)
    return [_heading("Not measured"), table]


def _doubts(ceilings: Ceilings) -> list[RenderableType]:
    lines = [Text(f"Note: {note}", style="dim") for note in ceilings.notes]
    lines += [Text(f"Doubt: {note}", style="yellow") for note in ceilings.disturbances]
    if ceilings.disturbances:
        advice = "The true ceilings are probably higher; measure again with --refresh when quiet."
        lines.append(Text(advice, style="yellow"))
    return [Text(""), *lines] if lines else []


# ---------------------------------------------------------------- the estimate for another device
# in the terminal


def render_estimate(estimate: HardwareEstimate) -> RenderableType:
    """Lay out what a call would take, and cost, on another device."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in _rows(estimate).items():
        grid.add_row(name, text)
    return Group(
        Text(f"On {estimate.device.name}: an estimate, not a measurement", style="bold"),
        grid,
        *(Text(f"- {note}", style="yellow") for note in estimate.notes),
    )


def _rows(estimate: HardwareEstimate) -> dict[str, str]:
    rows = {
        "at best": f"{seconds_text(estimate.at_best_s)} for a call, by roofline from "
        f"{estimate.device.source}"
    }
    if estimate.expected_s is not None:
        rows["expected"] = (
            f"{seconds_text(estimate.expected_s)}, if it stays as far above its bound as here: "
            f"{factor_text(estimate.optimism)} "
            f"({seconds_text(estimate.here_measured_s)} measured, "
            f"{seconds_text(estimate.here_at_best_s)} at best)"
        )
    else:
        rows["expected"] = "not known: the ceilings of this machine were not measured"
    best, likely = estimate.cost_per_million(expected=False), estimate.cost_per_million()
    if best is not None:
        words = f"{count_text(best)} at best"
        words += f", {count_text(likely)} expected" if likely is not None else ""
        rows["price"] = f"{words}, for a million calls at {estimate.price_per_hour:g} an hour"
    return rows


# ---------------------------------------------------------------- a prediction over sizes in the
# terminal

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
        return "is inconclusive (no interval)"
    if trend.holds is None:
        return "is inconclusive (the interval is too wide)"
    if trend.law.is_exact:
        return "is exactly as predicted" if trend.holds else "is not as predicted"
    return "is inside its interval" if trend.holds else "is outside its interval"


# ---------------------------------------------------------------- which implementation of an
# operation won where, as a table

LEGEND = (
    "Columns with the name of an implementation: its time over that of the chosen one, with the "
    "interval. The default changes only where another one is shown to be faster; what computes "
    "something else than the reference is never chosen."
)


def render_kernel_choices(report: KernelReport) -> RenderableType:
    """Lay out a row for each operation and size class, and below why some were left out."""
    if not report.rows:
        return Group(
            Text("no choices yet: they are made at the first call of an operation, or by tune()"),
            *_notes(report),
        )
    rows = report.rows
    table = FittingTable(
        "operation",
        [Text(row.op, style="bold" if row.verdict == FASTER else "") for row in rows],
        [
            Column("size class", [row.size_class for row in rows], 3, "left", least=24),
            Column("chosen", [row.chosen for row in rows], 0, "left"),
            Column("verdict", [_choice_verdict(row) for row in rows], 1, "left"),
            *(
                Column(name, [_against(row, name) for row in rows], 2)
                for name in _implementations(report)
            ),
            Column("call", [_seconds(row) for row in rows], 4),
            Column("n", [str(row.n) if row.n else UNKNOWN for row in rows], 5),
        ],
        label_least=12,
    )
    return Group(_headline(report), Text(""), table, Text(""), Text(LEGEND, "dim"), *_notes(report))


def _headline(report: KernelReport) -> Text:
    faster = sum(row.verdict == FASTER for row in report.rows)
    return Text(
        f"another implementation than the default is faster in {faster} of {len(report.rows)} "
        "operations and size classes",
        style="bold",
    )


def _implementations(report: KernelReport) -> list[str]:
    names = (
        name for row in report.rows for name in (row.chosen, *(each.name for each in row.rivals))
    )
    return list(dict.fromkeys(names))


def _choice_verdict(row: Choice) -> str:
    return f"faster than {row.default}" if row.verdict == FASTER else row.verdict


def _against(row: Choice, name: str) -> str:
    if name == row.chosen:
        return "1"
    rival = next((each for each in row.rivals if each.name == name), None)
    if rival is None:
        return ""
    if rival.ratio is None:
        return "left out"
    ratio = rival.ratio
    return f"{ratio_text(ratio.value)} ({ratio.low:.2f}-{ratio.high:.2f})"


def _seconds(row: Choice) -> str:
    return UNKNOWN if row.seconds is None else seconds_text(row.seconds)


def _notes(report: KernelReport) -> Iterator[Text]:
    seen: set[str] = set()
    for row in report.rows:
        for rival in row.rivals:
            text = f"- {row.op}, {rival.name} left out: {rival.note}"
            if rival.note and text not in seen:
                seen.add(text)
                yield Text(text, "dim")
    for note in report.notes:
        yield Text(f"- {note}", "dim")
