"""The reports of the classic profiling tools in the terminal.

A megabyte (MB) is 2**20 bytes here, as everywhere in these tools.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinytorch.measure.samples import Samples
from tinytorch.reporting.quantities import (
    count_text,
    percent_text,
    rate_text,
    seconds_text,
)

if TYPE_CHECKING:
    from tinytorch.profiling.context import CallProfile, Measured, ProfilerContext
    from tinytorch.profiling.flops import FLOPCounter
    from tinytorch.profiling.profiler import OperationTotal


TEXT_WIDTH = 100
MOST_LAYERS = 12
"""Longer breakdowns are cut; the rest is one row."""


def show(renderable: RenderableType) -> None:
    """Print a report on stdout, as the terminal allows; plain lines are not wrapped."""
    console = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
    console.print(renderable, soft_wrap=isinstance(renderable, Text))


def as_text(renderable: RenderableType) -> str:
    """Return a report as plain text."""
    console = Console(
        file=io.StringIO(),
        width=TEXT_WIDTH,
        color_system=None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


# ---------------------------------------------------------------- time


def render_timing(samples: Samples, name: str) -> RenderableType:
    """Lay out what a function takes: the median first, then what it hides."""
    return Group(_heading(f"{name}: time"), _timing_rows(samples), *_notes(samples.notes))


def render_nothing(name: str) -> RenderableType:
    """Say that there is nothing to report."""
    return Text(f"{name}: nothing was measured yet")


def render_call(call: CallProfile) -> RenderableType:
    """Put one call of a decorated function on one line."""
    ending = f", raised {call.raised}" if call.raised else ""
    return Text(
        f"{call.name}: {seconds_text(call.wall_time)} "
        f"({seconds_text(call.cpu_time)} of processor time){ending}"
    )


def _timing_rows(samples: Samples) -> Table:
    rows = _rows()
    if samples.count == 1:
        rows.add_row("time", Text(seconds_text(samples.median), style="bold"), "of a single run")
        return rows
    rows.add_row("median", Text(seconds_text(samples.median), style="bold"), _between(samples))
    rows.add_row(
        "mean", seconds_text(samples.mean), f"standard deviation {seconds_text(samples.std)}"
    )
    rows.add_row("range", seconds_text(samples.minimum), f"to {seconds_text(samples.maximum)}")
    rows.add_row(
        "tail",
        seconds_text(samples.percentile(95)),
        f"95th percentile; 99th: {seconds_text(samples.percentile(99))}",
    )
    outliers = samples.outliers
    severe = outliers.low_severe + outliers.high_severe
    rows.add_row("runs", str(samples.count), f"{outliers.total} outliers, {severe} of them severe")
    if samples.stability.note not in samples.notes:
        rows.add_row("", "", samples.stability.note)
    return rows


def _between(samples: Samples) -> str:
    interval = samples.median_interval()
    low, high = seconds_text(interval.low), seconds_text(interval.high)
    return f"{low} to {high} with {interval.coverage:.0%} confidence"


# ---------------------------------------------------------------- memory


def render_memory(stats: Mapping[str, Any], name: str) -> RenderableType:
    """Lay out what a function allocated."""
    return Group(_heading(f"{name}: memory"), _memory_rows(stats))


def _memory_rows(stats: Mapping[str, Any]) -> Table:
    rows = _rows()
    above = stats["peak_mb"] - stats["baseline_mb"]
    rows.add_row("peak", Text(mb_text(above), style="bold"), "held at once, beyond what was there")
    rows.add_row("kept", mb_text(stats["allocated_mb"]), "still allocated at the end")
    rows.add_row(
        "traced",
        mb_text(stats["baseline_mb"]),
        f"before; {mb_text(stats['final_mb'])} after",
    )
    if stats.get("tensor_peak_mb"):
        rows.add_row(
            "tensors", mb_text(stats["tensor_peak_mb"]), "of the peak, PyTorch's on the host"
        )
    if stats.get("process_after_mb") is not None:
        before, after = (
            mb_text(stats["process_before_mb"]),
            mb_text(stats["process_after_mb"]),
        )
        rows.add_row("process", after, f"resident after, {before} before")
    if stats.get("device_peak_mb") is not None:
        kept = mb_text(stats["device_allocated_mb"])
        rows.add_row("device", mb_text(stats["device_peak_mb"]), f"held at once; {kept} kept")
    return rows


# ---------------------------------------------------------------- FLOPs


def render_flops(counter: FLOPCounter, name: str) -> RenderableType:
    """Lay out what a counter has counted, and in which convention."""
    return Group(_heading(f"{name}: FLOPs"), *_flop_parts(counter))


def _flop_parts(counter: FLOPCounter) -> list[RenderableType]:
    counts = counter.operation_counts
    if not counts["total_flops"] and not counter.not_counted:
        return [Text("  nothing was counted")]
    unit = "multiply-accumulates" if counter.convention == "macs" else "FLOPs"
    rows = _rows()
    rows.add_row("total", Text(f"{counts['total_flops']:,}", style="bold"), f"{unit} and biases")
    if counts["multiply"]:
        rows.add_row("multiply", f"{counts['multiply']:,}", "")
        rows.add_row("add", f"{counts['add']:,}", "")
    if counter.other_flops:
        rows.add_row("other", f"{counter.other_flops:,}", "elementwise and the like, in no total")
    once = "once" if counter.convention == "macs" else "twice"
    parts: list[RenderableType] = [rows, *_notes([f"a multiply-accumulate counts {once}"])]
    parts += [_breakdown(counter.layer_breakdown, counts["total_flops"])]
    parts += _notes(counter.notes)
    if counter.not_counted:
        missing = ", ".join(f"{kind} ({calls}x)" for kind, calls in counter.not_counted.items())
        parts += _notes([f"not counted, nothing is assumed about: {missing}"])
    return parts


def _breakdown(layers: Mapping[str, int], total: int) -> RenderableType:
    ordered = sorted(layers.items(), key=lambda item: -item[1])
    rows = _rows()
    for layer, count in ordered[:MOST_LAYERS]:
        rows.add_row(layer, f"{count:,}", percent_text(count / total) if total else "")
    rest = [count for _, count in ordered[MOST_LAYERS:]]
    if rest:
        rows.add_row(f"{len(rest)} more", f"{sum(rest):,}", percent_text(sum(rest) / total))
    return rows


# ---------------------------------------------------------------- models and blocks


def render_quick_profile(facts: Mapping[str, Any]) -> RenderableType:
    """Lay out the most important numbers of a model."""
    rows = _rows()
    rows.add_row("parameters", f"{facts['parameters']:,}", mb_text(facts["parameter_memory_mb"]))
    batch = facts["batch_size"]
    per = "per sample" if batch else "per call"
    rows.add_row(
        "FLOPs", f"{facts['flops']:,}", f"{per}, contractions, two per multiply-accumulate"
    )
    low, high = facts["latency_ci_low_ms"] / 1e3, facts["latency_ci_high_ms"] / 1e3
    rows.add_row(
        "latency",
        seconds_text(facts["latency_ms"] / 1e3),
        f"median, {seconds_text(low)} to {seconds_text(high)}"
        + (f", batch of {batch}" if batch else ""),
    )
    rate = rate_text(facts["achieved_gflops_per_second"] * 1e9)
    share = facts["computational_efficiency"]
    of_peak = "" if share is None else f"; {percent_text(share)} of this machine's peak"
    rows.add_row("speed", rate, f"of all work{of_peak}")
    rows.add_row(
        "memory",
        mb_text(facts["peak_memory_mb"]),
        f"peak; {mb_text(facts['activation_memory_mb'])} made",
    )
    rows.add_row("bottleneck", facts["bottleneck"] or "-", facts["bound_note"])
    return Group(_heading(facts["layer_type"]), rows, *_notes(facts["notes"]))


def render_top_operations(
    operations: Sequence[OperationTotal], elapsed_s: float, n: int
) -> RenderableType:
    """Put the slowest operations on one line each: ``45% - Matrix multiplication``."""
    if not operations:
        return Text(
            f"no operation of TinyTorch or PyTorch ran in this thread during the block "
            f"({seconds_text(elapsed_s)})"
        )
    lines = [
        f"{operation.share:.0%} - {operation.name} "
        f"({seconds_text(operation.seconds)}, {_times(operation.calls)})"
        for operation in operations[:n]
    ]
    rest = operations[n:]
    if rest:
        share = sum(operation.share for operation in rest)
        lines.append(f"{share:.0%} - {len(rest)} other operations")
    inside = sum(operation.seconds for operation in operations)
    lines.append(f"100% - {seconds_text(inside)} in operations")
    lines.append(f"The block took {seconds_text(elapsed_s)}, watching included.")
    return Text("\n".join(lines))


def render_context(context: ProfilerContext) -> RenderableType:
    """Lay out everything that a ProfilerContext has measured."""
    parts: list[RenderableType] = [_heading(f"Profile of {context.name}")]
    if context.raised is not None:
        kind = type(context.raised).__name__
        parts.append(Text(f"stopped by {kind}: {context.raised}", style="red"))
    if not context.measured:
        parts.append(Text("  nothing was measured"))
    insights = context.insights
    for measured in context.measured:
        parts += _measured_parts(measured, said_below=insights)
    if context.flop_count is not None:
        parts += [_heading("FLOPs"), *_flop_lines(context)]
    if insights:
        parts += [_heading("Insights"), *(_hanging("-", insight) for insight in insights)]
    return Group(*parts)


def _measured_parts(measured: Measured, said_below: Sequence[str]) -> list[RenderableType]:
    parts = [_heading(f"{measured.name}: time"), _timing_rows(measured.samples)]
    if measured.memory is not None:
        parts += [_heading(f"{measured.name}: memory"), _memory_rows(measured.memory)]
    return [*parts, *_notes([note for note in measured.notes if note not in said_below])]


def _flop_lines(context: ProfilerContext) -> list[RenderableType]:
    total = context.flop_count or 0
    rows = _rows()
    rows.add_row("total", Text(f"{total:,}", style="bold"), f"FLOPs per call ({count_text(total)})")
    seconds = context.measured[-1].samples.median if context.measured else 0.0
    if seconds:
        rows.add_row("speed", rate_text(total / seconds), "at the median time")
    parts: list[RenderableType] = [rows]
    if len(context.flop_counter.layer_breakdown) > 1:
        parts.append(_breakdown(context.flop_counter.layer_breakdown, total))
    return parts


# ---------------------------------------------------------------- pieces


def _heading(text: str) -> RenderableType:
    return Text(f"\n{text}", style="bold")


def _rows() -> Table:
    """Make a table of what, how much, and a remark."""
    rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    rows.add_column(min_width=10)
    rows.add_column(justify="right", no_wrap=True)
    rows.add_column(style="dim")
    return rows


def _notes(notes: Sequence[str]) -> list[RenderableType]:
    return [_hanging("note:", note, style="dim") for note in notes]


def _hanging(mark: str, text: str, style: str = "") -> RenderableType:
    """Put a sentence behind a mark, with its further lines below its first one."""
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(Text(mark, style=style), Text(text, style=style))
    return row


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def mb_text(size: float | None) -> str:
    """Write a size in MB; small ones in bytes, so that they are not shown as nothing."""
    if size is None:
        return "-"
    return f"{size:.2f} MB" if abs(size) >= 0.01 or size == 0 else f"{size * 2**20:,.0f} bytes"
