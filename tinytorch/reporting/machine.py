"""The machine and its ceilings, estimates for other devices and sizes, and choices of kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tinytorch.measure.ceilings import Bandwidth, Ceilings, Rate
from tinytorch.measure.environment import Environment
from tinytorch.measure.samples import Samples
from tinytorch.profiling.hardware import HardwareEstimate
from tinytorch.profiling.size_laws import NOT_RESOLVED, SizePoint, Trend
from tinytorch.profiling.size_scaling import SizeScaling
from tinytorch.reporting import document as doc
from tinytorch.reporting.quantities import (
    UNKNOWN,
    Mark,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    range_text,
    rate_text,
    ratio_text,
    seconds_text,
)
from tinytorch.reporting.roofline import Roofline
from tinytorch.transforms.kernel_choice import FASTER, Choice, KernelReport


def machine_document(environment: Environment, ceilings: Ceilings) -> doc.Document:
    """Return the machine, its measured ceilings and its roofline."""
    pairs = [(name, text) for name, text in _machine_facts(environment, ceilings).items() if text]
    about = doc.Paragraph("Ceiling: the 90th percentile of n values.", "faint")
    parts = [
        doc.Section("machine", "Machine", (doc.Facts(pairs),)),
        doc.Section("products", "Matrix products", (_rates(ceilings),)),
        doc.Section("memory", "Memory", (_bandwidths(ceilings), about)),
        *(_roofline(ceilings) if ceilings.rates else ()),
    ]
    if ceilings.not_measured:
        missing = doc.Facts([*ceilings.not_measured.items()])
        parts.append(doc.Section("missing", "Not measured", (missing,)))
    return doc.Document(
        "Machine",
        doc.Banner(_summary(ceilings)),
        parts,
        _notes(ceilings),
        environment,
        {"ceilings": ceilings.to_dict()},
        "machine.json",
        brief=(doc.Facts(_brief_facts(environment, ceilings)), _levels(ceilings)),
    )


BRIEF = ("device", "processor", "cores", "memory", "threads", "busy")


def _brief_facts(environment: Environment, ceilings: Ceilings) -> list[tuple[str, str]]:
    facts = _machine_facts(environment, ceilings)
    peaks = ", ".join(f"{dtype} {rate_text(peak)}" for dtype, peak in _peaks(ceilings).items())
    shown = [(name, facts[name]) for name in BRIEF if facts[name]]
    return [*shown, *([("peaks", peaks)] if peaks else [])]


def _levels(ceilings: Ceilings) -> doc.Table:
    """Return the bandwidth of each level, and from where on the highest peak is the limit."""
    first = next(iter(_peaks(ceilings).items()), None)

    def ridge(each: Bandwidth) -> str:
        return f"{count_text(first[1] / each.ceiling)} FLOP/B" if first else ""

    return doc.table_of(
        ceilings.bandwidths,
        doc.column("level", lambda each: each.level),
        doc.column("holds", level_text, "number"),
        doc.column("bandwidth", lambda each: bandwidth_text(each.ceiling), "number"),
        doc.column(f"{first[0]} compute-bound from" if first else "", ridge, "number"),
    )


def level_text(each: Bandwidth) -> str:
    """Return how much a level of the memory holds."""
    return bytes_text(each.capacity_bytes) if each.capacity_bytes else "the rest"


def bandwidth_text(rate: float | None) -> str:
    return rate_text(rate, "B/s")


def _summary(ceilings: Ceilings) -> str:
    """Return the highest peak of computing, and the bandwidth of the memory."""
    last = ceilings.bandwidths[-1]
    said = [f"{dtype} {rate_text(peak)}" for dtype, peak in [*_peaks(ceilings).items()][:1]]
    return ", ".join([*said, f"{last.level} {bandwidth_text(last.ceiling)}"])


def _notes(ceilings: Ceilings) -> list[str]:
    remedy = "the ceilings are probably higher, --refresh measures again"
    return [*ceilings.notes, *(f"{note}; {remedy}" for note in ceilings.disturbances)]


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


def _rates(ceilings: Ceilings) -> doc.Table:
    def ceiling(rate: Rate) -> doc.Cell:
        tone = "hot" if rate.ceiling == ceilings.peak_flops(rate.dtype) else ""
        return doc.Cell(_rate_text(rate, rate.ceiling), rate.ceiling, tone=tone)

    def median(rate: Rate) -> doc.Cell:
        return doc.Cell(_rate_text(rate, rate.median), rate.median)

    return doc.table_of(
        ceilings.rates,
        doc.column("dtype", lambda rate: rate.dtype),
        doc.column("library", lambda rate: rate.library),
        doc.column("ceiling", ceiling, "number"),
        doc.column("median", median, "number"),
        doc.number("spread", lambda rate: rate.spread, percent_text),
        doc.number("n", lambda rate: rate.samples.count, str),
    )


def _rate_text(rate: Rate, number: float) -> str:
    return rate_text(number, "OP/s" if rate.dtype.startswith("int") else "FLOP/s")


def _bandwidths(ceilings: Ceilings) -> doc.Table:
    titles = ("holds", "ceiling", "read", "spread", "copy", "spread", "n")
    columns = [doc.Column("level"), *(doc.Column(title, "number") for title in titles)]
    rows: list[list[doc.Cell | str]] = [
        [
            each.level,
            bytes_text(each.capacity_bytes) if each.capacity_bytes else UNKNOWN,
            doc.Cell(bandwidth_text(each.ceiling), each.ceiling, tone="hot"),
            *_use(each.read),
            *_use(each.copy),
            str(each.copy.count),
        ]
        for each in ceilings.bandwidths
    ]
    return doc.Table(columns, rows)


def _use(samples: Samples | None) -> tuple[str, str]:
    if samples is None:
        return UNKNOWN, UNKNOWN
    return bandwidth_text(samples.median), percent_text(samples.stability.relative_spread)


def _roofline(ceilings: Ceilings) -> Iterator[doc.Section]:
    peaks, levels = _peaks(ceilings), ceilings.bandwidths
    fastest_first = sorted(levels, key=lambda each: -each.ceiling)
    slopes = ", ".join(f"{each.level} {bandwidth_text(each.ceiling)}" for each in fastest_first)
    how = (
        doc.Paragraph(f"Bandwidths, left to right: {slopes}.", "faint"),
        doc.Paragraph(f"Marks on the axis: ridge points of {levels[-1].level}.", "faint"),
    )
    yield doc.Section("roofline", "Roofline", (Roofline(peaks, levels), *how))
    columns = [
        doc.Column("dtype"),
        *(doc.Column(f"from {each.level}", "number") for each in levels),
    ]
    rows: list[list[doc.Cell | str]] = [
        [dtype, *(doc.Cell(count_text(peak / x.ceiling), peak / x.ceiling) for x in levels)]
        for dtype, peak in peaks.items()
    ]
    about = "Memory-bound with fewer FLOP per byte, compute-bound with more."
    ridges = (doc.Table(columns, rows), doc.Paragraph(about, "faint"))
    yield doc.Section("ridges", "Ridge points, in FLOP per byte", ridges)


def _peaks(ceilings: Ceilings) -> dict[str, float]:
    """Return the peak of each dtype, highest first."""
    peaks = {rate.dtype: ceilings.peak_flops(rate.dtype) or 0.0 for rate in ceilings.rates}
    return dict(sorted(peaks.items(), key=lambda item: -item[1]))


# ---------------------------------------------------------------- the estimate for another device


def estimate_section(estimate: HardwareEstimate) -> doc.Section:
    """Return what a call would take, and cost, on another device."""
    title = f"On {estimate.device.name}: an estimate, not a measurement"
    blocks = (doc.Facts([*_estimated(estimate)]), doc.Bullets(estimate.notes, tone="unknown"))
    return doc.Section("estimate", title, blocks)


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
    best, likely = estimate.cost_at_best, estimate.expected_cost
    if best is not None:
        words = f"{count_text(best)} at best"
        words += f", {count_text(likely)} expected" if likely is not None else ""
        yield "price", f"{words}, for a million calls at {estimate.price_per_hour:g} an hour"


# ---------------------------------------------------------------- a prediction over sizes

Write = Callable[[float | None], str]

MEASURED, PREDICTED, CHECKED = "●", "◇", "x"


def scaling_document(scaling: SizeScaling) -> doc.Document:
    """Return the prediction and its check, what was measured, and the laws through it."""
    where = f"{scaling.framework} on {scaling.device}, by {scaling.axis}"
    return doc.Document(
        scaling.name,
        _scaling_banner(scaling),
        (_points(scaling), _scaling_plot(scaling), _trends(scaling)),
        scaling.all_notes,
        raw=scaling.to_dict(),
        file_name="scaling.json",
        subtitle=f"{where}; example inputs have {scaling.usual}",
        brief=(_trends(scaling), doc.Facts([("next", each) for each in _next_steps(scaling)])),
    )


def _next_steps(scaling: SizeScaling) -> Iterator[str]:
    """Yield what makes the prediction surer."""
    if not scaling.time.is_shown:
        largest = max(point.size for point in scaling.points)
        sizes = ",".join(str(largest * part // 4) for part in (1, 2, 3, 4))
        yield f"a larger --budget, or fewer and larger sizes: --sizes {sizes}"
    elif scaling.check is None:
        yield f"--check measures {scaling.at} as well"


def _scaling_banner(scaling: SizeScaling) -> doc.Banner:
    """Say what is predicted, and for each quantity whether the check found it there."""
    verdict = f"{seconds_text(scaling.time.value)} predicted at {scaling.at}"
    if scaling.check is None:
        reach = f"95% interval {_range(scaling.time, seconds_text)}."
        return doc.Banner(
            verdict, reach if scaling.time.is_shown else "Inconclusive: see the notes."
        )
    parts = [
        f"{trend.quantity} {write(trend.measured)} {_finding(trend)}"
        for trend, write in _written(scaling)
    ]
    tones: dict[bool | None, doc.Tone] = {True: "good", False: "bad", None: "unknown"}
    return doc.Banner(
        verdict, f"Checked at {scaling.at}: {', '.join(parts)}.", tone=tones[scaling.holds]
    )


def _points(scaling: SizeScaling) -> doc.Table:
    points = [*scaling.points, *([scaling.check] if scaling.check else [])]

    def size(point: SizePoint) -> doc.Cell:
        check = " (check)" if point is scaling.check else ""
        return doc.Cell(f"{point.size}{check}", point.size)

    def interval(point: SizePoint) -> str:
        return range_text(point.latency.median_interval(), seconds_text)

    return doc.table_of(
        points,
        doc.column("size", size),
        doc.number("time", lambda point: point.latency.median, seconds_text),
        doc.column("interval", interval, "number", rank=2),
        doc.number("n", lambda point: point.latency.count, str, rank=3),
        doc.number("FLOPs", lambda point: point.flops, count_text, rank=1),
        doc.number("peak memory", lambda point: point.peak_bytes, bytes_text, rank=1),
    )


def _scaling_plot(scaling: SizeScaling) -> doc.LogPlot:
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
    return doc.LogPlot(marks, law=time.value_at, y_unit="s", title="  ".join(legend))


def _written(scaling: SizeScaling) -> list[tuple[Trend, Write]]:
    """Return the trends that there are, each with how to write its numbers."""
    pairs: list[tuple[Trend | None, Write]] = [
        (scaling.time, seconds_text),
        (scaling.flops, count_text),
        (scaling.memory, bytes_text),
    ]
    return [(trend, write) for trend, write in pairs if trend is not None]


def _trends(scaling: SizeScaling) -> doc.Table:
    def measured(pair: tuple[Trend, Write]) -> str:
        trend, write = pair
        return "" if trend.measured is None else write(trend.measured)

    def words(pair: tuple[Trend, Write]) -> str:
        # A note has the whole sentence, for which a table has no room.
        return "not resolved" if pair[0].words == NOT_RESOLVED else pair[0].words

    return doc.table_of(
        _written(scaling),
        doc.column(f"at {scaling.at}", lambda pair: pair[0].quantity),
        doc.column("predicted", lambda pair: pair[1](pair[0].value), "number"),
        doc.column("95% interval", lambda pair: _range(*pair), "number", rank=2),
        doc.column("measured", measured, "number", rank=3),
        doc.column("exponent", lambda pair: _exponent(pair[0]), "number", rank=1),
        doc.column("grows", words, rank=4),
        is_sortable=False,
    )


def _range(trend: Trend, write: Write) -> str:
    if trend.interval is None:
        return UNKNOWN
    if trend.law.is_exact:
        return "exact"
    return range_text(trend.interval, write)


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
    "interval. The default changes only where another one is faster; what computes "
    "something else than the reference is never chosen."
)
NO_CHOICES = "no choices yet: they are made at the first call of an operation, or by tune()"


def kernels_document(report: KernelReport) -> doc.Document:
    """Return a row for each operation and size class, and why some were left out."""
    faster = sum(row.verdict == FASTER for row in report.rows)
    verdict = (
        f"another implementation than the default is faster in {faster} of {len(report.rows)} "
        "operations and size classes"
    )
    blocks: list[doc.Block] = [_choices(report), doc.Paragraph(LEGEND, "faint")]
    left_out = dict.fromkeys(
        f"{row.op}, {rival.name} left out: {rival.note}"
        for row in report.rows
        for rival in row.rivals
        if rival.note
    )
    return doc.Document(
        "Kernel choices",
        doc.Banner(verdict if report.rows else NO_CHOICES),
        blocks if report.rows else (),
        (*left_out, *report.notes),
        raw=report.to_dict(),
        file_name="kernels.json",
    )


def _choices(report: KernelReport) -> doc.Table:
    def verdict(row: Choice) -> str:
        return f"faster than {row.default}" if row.verdict == FASTER else row.verdict

    def against(name: str) -> doc.Field:
        return doc.column(name, lambda row: _against(row, name), "number", rank=2)

    return doc.table_of(
        report.rows,
        doc.column("operation", lambda row: row.op, least=12),
        doc.column("size class", lambda row: row.size_class, rank=3, least=24),
        doc.column("chosen", lambda row: row.chosen),
        doc.column("verdict", verdict, rank=1),
        *map(against, _implementations(report)),
        doc.number("call", lambda row: row.seconds, seconds_text, rank=4),
        doc.number("n", lambda row: row.n or None, str, rank=5),
        tone=lambda row: "hot" if row.verdict == FASTER else "",
    )


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
