"""The machine and its ceilings, estimates for other devices and sizes, and choices of kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tinytorch.measure.ceilings import Ceilings, Rate
from tinytorch.measure.environment import Environment
from tinytorch.measure.samples import Samples
from tinytorch.profiling.hardware import HardwareEstimate
from tinytorch.profiling.size_laws import NOT_RESOLVED, SizePoint, Trend
from tinytorch.profiling.size_scaling import SizeScaling
from tinytorch.reporting.document import (
    Banner,
    Block,
    Bullets,
    Cell,
    Column,
    Document,
    Facts,
    LogPlot,
    Paragraph,
    Row,
    Section,
    Table,
    Tone,
)
from tinytorch.reporting.forest_plot import ratio_text
from tinytorch.reporting.quantities import (
    UNKNOWN,
    Mark,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    rate_text,
    seconds_text,
)
from tinytorch.reporting.roofline import Roofline
from tinytorch.transforms.kernel_choice import FASTER, Choice, KernelReport

__all__ = ["estimate_section", "kernels_document", "machine_document", "scaling_document"]


def machine_document(environment: Environment, ceilings: Ceilings) -> Document:
    """Return the machine, its measured ceilings and its roofline."""
    pairs = [(name, text) for name, text in _machine_facts(environment, ceilings).items() if text]
    about = Paragraph("Ceiling: the 90th percentile of n values.", "faint")
    parts = [
        Section("machine", "Machine", (Facts(pairs),)),
        Section("products", "Matrix products", (_rates(ceilings),)),
        Section("memory", "Memory", (_bandwidths(ceilings), about)),
        *(_roofline(ceilings) if ceilings.rates else ()),
    ]
    if ceilings.not_measured:
        missing = Facts([*ceilings.not_measured.items()])
        parts.append(Section("missing", "Not measured", (missing,)))
    return Document(
        "Machine",
        Banner(_summary(ceilings)),
        parts,
        _notes(ceilings),
        environment,
        {"ceilings": ceilings.to_dict()},
        "machine.json",
    )


def _summary(ceilings: Ceilings) -> str:
    """Return the highest peak of computing, and the bandwidth of the memory."""
    last = ceilings.bandwidths[-1]
    said = [f"{dtype} {rate_text(peak)}" for dtype, peak in [*_peaks(ceilings).items()][:1]]
    return ", ".join([*said, f"{last.level} {rate_text(last.ceiling, 'B/s')}"])


def _notes(ceilings: Ceilings) -> list[str]:
    warnings = [f"Warning: {note}" for note in ceilings.disturbances]
    if warnings:
        warnings.append("The true ceilings are probably higher; measure again with --refresh.")
    return [*ceilings.notes, *warnings]


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
    columns = [
        Column("dtype"),
        Column("library"),
        Column("ceiling", "number"),
        Column("median", "number"),
        Column("spread", "number"),
        Column("n", "number"),
    ]
    rows: list[list[Cell | str]] = [
        [
            rate.dtype,
            rate.library,
            Cell(
                _rate_text(rate, rate.ceiling),
                rate.ceiling,
                tone="hot" if rate.ceiling == ceilings.peak_flops(rate.dtype) else "",
            ),
            Cell(_rate_text(rate, rate.median), rate.median),
            Cell(percent_text(rate.spread), rate.spread),
            Cell(str(rate.samples.count), rate.samples.count),
        ]
        for rate in ceilings.rates
    ]
    return Table(columns, rows)


def _rate_text(rate: Rate, number: float) -> str:
    return rate_text(number, "OP/s" if rate.dtype.startswith("int") else "FLOP/s")


def _bandwidths(ceilings: Ceilings) -> Table:
    titles = ("holds", "ceiling", "read", "spread", "copy", "spread", "n")
    columns = [Column("level"), *(Column(title, "number") for title in titles)]
    rows: list[list[Cell | str]] = [
        [
            each.level,
            bytes_text(each.capacity_bytes) if each.capacity_bytes else UNKNOWN,
            Cell(rate_text(each.ceiling, "B/s"), each.ceiling, tone="hot"),
            *_use(each.read),
            *_use(each.copy),
            str(each.copy.count),
        ]
        for each in ceilings.bandwidths
    ]
    return Table(columns, rows)


def _use(samples: Samples | None) -> tuple[str, str]:
    if samples is None:
        return UNKNOWN, UNKNOWN
    return rate_text(samples.median, "B/s"), percent_text(samples.stability.relative_spread)


def _roofline(ceilings: Ceilings) -> Iterator[Section]:
    peaks, levels = _peaks(ceilings), ceilings.bandwidths
    fastest_first = sorted(levels, key=lambda each: -each.ceiling)
    slopes = ", ".join(f"{each.level} {rate_text(each.ceiling, 'B/s')}" for each in fastest_first)
    how = (
        Paragraph(f"Bandwidths, left to right: {slopes}.", "faint"),
        Paragraph(f"Marks on the axis: ridge points of {levels[-1].level}.", "faint"),
    )
    yield Section("roofline", "Roofline", (Roofline(peaks, levels), *how))
    columns = [Column("dtype"), *(Column(f"from {each.level}", "number") for each in levels)]
    rows: list[list[Cell | str]] = [
        [dtype, *(Cell(count_text(peak / x.ceiling), peak / x.ceiling) for x in levels)]
        for dtype, peak in peaks.items()
    ]
    about = "Memory-bound with fewer FLOP per byte, compute-bound with more."
    ridges = (Table(columns, rows), Paragraph(about, "faint"))
    yield Section("ridges", "Ridge points, in FLOP per byte", ridges)


def _peaks(ceilings: Ceilings) -> dict[str, float]:
    """Return the peak of each dtype, highest first."""
    peaks = {rate.dtype: ceilings.peak_flops(rate.dtype) or 0.0 for rate in ceilings.rates}
    return dict(sorted(peaks.items(), key=lambda item: -item[1]))


# ---------------------------------------------------------------- the estimate for another device


def estimate_section(estimate: HardwareEstimate) -> Section:
    """Return what a call would take, and cost, on another device."""
    title = f"On {estimate.device.name}: an estimate, not a measurement"
    blocks = (Facts([*_estimated(estimate)]), Bullets(estimate.notes, tone="unknown"))
    return Section("estimate", title, blocks)


def _estimated(estimate: HardwareEstimate) -> Iterator[tuple[str, str]]:
    source = estimate.device.source
    yield "at best", f"{seconds_text(estimate.at_best_s)} for a call, by roofline from {source}"
    expected = "unknown: the ceilings of this machine were not measured"
    if estimate.expected_s is not None:
        expected = (
            f"{seconds_text(estimate.expected_s)}, if it stays as far above its bound as here: "
            f"{factor_text(estimate.optimism)} "
            f"({seconds_text(estimate.here_measured_s)} measured, "
            f"{seconds_text(estimate.here_at_best_s)} at best)"
        )
    yield "expected", expected
    best, likely = estimate.cost_per_million(expected=False), estimate.cost_per_million()
    if best is not None:
        words = f"{count_text(best)} at best"
        words += f", {count_text(likely)} expected" if likely is not None else ""
        yield "price", f"{words}, for a million calls at {estimate.price_per_hour:g} an hour"


# ---------------------------------------------------------------- a prediction over sizes

Write = Callable[[float | None], str]

MEASURED, PREDICTED, CHECKED = "●", "◇", "x"


def scaling_document(scaling: SizeScaling) -> Document:
    """Return the prediction and its check, what was measured, and the laws through it."""
    where = f"{scaling.framework} on {scaling.device}, by {scaling.axis}"
    return Document(
        scaling.name,
        _scaling_banner(scaling),
        (_points(scaling), _scaling_plot(scaling), _trends(scaling)),
        scaling.all_notes,
        raw=scaling.to_dict(),
        file_name="scaling.json",
        subtitle=f"{where}; example inputs have {scaling.usual}",
    )


def _scaling_banner(scaling: SizeScaling) -> Banner:
    """Say what is predicted, and for each quantity whether the check found it there."""
    verdict = f"{seconds_text(scaling.time.value)} predicted at {scaling.at}"
    if scaling.check is None:
        reach = f"95% interval {_range(scaling.time, seconds_text)}."
        return Banner(verdict, reach if scaling.time.is_shown else "Inconclusive: see the notes.")
    parts = [
        f"{trend.quantity} {write(trend.measured)} {_finding(trend)}"
        for trend, write in _written(scaling)
    ]
    tones: dict[bool | None, Tone] = {True: "good", False: "bad", None: "unknown"}
    return Banner(
        verdict, f"Checked at {scaling.at}: {', '.join(parts)}.", tone=tones[scaling.holds]
    )


def _points(scaling: SizeScaling) -> Table:
    columns = [
        Column("size"),
        Column("time", "number"),
        Column("interval", "number", rank=2),
        Column("n", "number", rank=3),
        Column("FLOPs", "number", rank=1),
        Column("peak memory", "number", rank=1),
    ]
    rows = [_size_row(point, str(point.size)) for point in scaling.points]
    if scaling.check:
        rows.append(_size_row(scaling.check, f"{scaling.check.size} (check)"))
    return Table(columns, rows)


def _size_row(point: SizePoint, name: str) -> list[Cell | str]:
    interval = point.latency.median_interval()
    return [
        Cell(name, point.size),
        Cell(seconds_text(point.latency.median), point.latency.median),
        f"{seconds_text(interval.low)} to {seconds_text(interval.high)}",
        Cell(str(point.latency.count), point.latency.count),
        Cell(count_text(point.flops), point.flops),
        Cell(bytes_text(point.peak_bytes), point.peak_bytes),
    ]


def _scaling_plot(scaling: SizeScaling) -> LogPlot:
    time, at, check = scaling.time, scaling.at, scaling.check
    marks = [Mark(point.size, point.latency.median, MEASURED) for point in scaling.points]
    # A bar for an interval that shows nothing would leave no room for what was measured.
    ends = time.interval if time.is_shown else None
    low, high = (ends.low, ends.high) if ends else (None, None)
    marks.append(Mark(at, time.value, PREDICTED, low=low, high=high))
    legend = [f"{MEASURED} measured", f"{PREDICTED} predicted"]
    legend[-1] += " with its interval" if time.is_shown else ""
    if check is not None:
        marks.append(Mark(at, check.latency.median, CHECKED))
        legend.append(f"{CHECKED} measured for the check")
    return LogPlot(marks, law=time.value_at, y_unit="s", title="  ".join(legend))


def _written(scaling: SizeScaling) -> list[tuple[Trend, Write]]:
    """Return the trends that there are, each with how to write its numbers."""
    pairs: list[tuple[Trend | None, Write]] = [
        (scaling.time, seconds_text),
        (scaling.flops, count_text),
        (scaling.memory, bytes_text),
    ]
    return [(trend, write) for trend, write in pairs if trend is not None]


def _trends(scaling: SizeScaling) -> Table:
    columns = [
        Column(f"at {scaling.at}"),
        Column("predicted", "number"),
        Column("95% interval", "number", rank=2),
        Column("measured", "number", rank=3),
        Column("exponent", "number", rank=1),
        Column("grows", rank=4),
    ]
    rows: list[list[Cell | str]] = [
        [
            trend.quantity,
            write(trend.value),
            _range(trend, write),
            "" if trend.measured is None else write(trend.measured),
            _exponent(trend),
            # A note has the whole sentence, for which a table has no room.
            "not resolved" if trend.words == NOT_RESOLVED else trend.words,
        ]
        for trend, write in _written(scaling)
    ]
    return Table(columns, rows, is_sortable=False)


def _range(trend: Trend, write: Write) -> str:
    if trend.interval is None:
        return UNKNOWN
    if trend.law.is_exact:
        return "exact"
    return f"{write(trend.interval.low)} to {write(trend.interval.high)}"


def _exponent(trend: Trend) -> str:
    exponent, reach = f"{trend.law.exponent:.2f}", trend.exponent_reach
    is_open = trend.law.is_exact or not math.isfinite(reach)
    return exponent if is_open else f"{exponent} ± {reach:.2f}"


def _finding(trend: Trend) -> str:
    if trend.interval is None:
        return "is inconclusive (no interval)"
    if trend.holds is None:
        return "is inconclusive (the interval is too wide)"
    if trend.law.is_exact:
        return "is exactly as predicted" if trend.holds else "is not as predicted"
    return "is inside its interval" if trend.holds else "is outside its interval"


# ---------------------------------------------------------------- which implementation of an
# operation won where

LEGEND = (
    "Columns with the name of an implementation: its time over that of the chosen one, with the "
    "interval. The default changes only where another one is shown to be faster; what computes "
    "something else than the reference is never chosen."
)
NO_CHOICES = "no choices yet: they are made at the first call of an operation, or by tune()"


def kernels_document(report: KernelReport) -> Document:
    """Return a row for each operation and size class, and why some were left out."""
    faster = sum(row.verdict == FASTER for row in report.rows)
    verdict = (
        f"another implementation than the default is faster in {faster} of {len(report.rows)} "
        "operations and size classes"
    )
    names = _implementations(report)
    columns = [
        Column("operation", least=12),
        Column("size class", rank=3, least=24),
        Column("chosen"),
        Column("verdict", rank=1),
        *(Column(name, "number", rank=2) for name in names),
        Column("call", "number", rank=4),
        Column("n", "number", rank=5),
    ]
    table = Table(columns, [_choice_row(row, names) for row in report.rows])
    blocks: list[Block] = [table, Paragraph(LEGEND, "faint")]
    left_out = dict.fromkeys(
        f"{row.op}, {rival.name} left out: {rival.note}"
        for row in report.rows
        for rival in row.rivals
        if rival.note
    )
    return Document(
        "Kernel choices",
        Banner(verdict if report.rows else NO_CHOICES),
        blocks if report.rows else (),
        (*left_out, *report.notes),
        raw=report.to_dict(),
        file_name="kernels.json",
    )


def _choice_row(row: Choice, names: list[str]) -> Row:
    cells: list[Cell | str] = [
        row.op,
        row.size_class,
        row.chosen,
        f"faster than {row.default}" if row.verdict == FASTER else row.verdict,
        *(_against(row, name) for name in names),
        Cell(UNKNOWN if row.seconds is None else seconds_text(row.seconds), row.seconds),
        Cell(str(row.n) if row.n else UNKNOWN, row.n),
    ]
    return Row(cells, tone="hot" if row.verdict == FASTER else "")


def _implementations(report: KernelReport) -> list[str]:
    names = (
        name for row in report.rows for name in (row.chosen, *(each.name for each in row.rivals))
    )
    return list(dict.fromkeys(names))


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
