"""Which implementation of an operation won where, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.perf.acceleration.kernel_choice import FASTER, Choice, KernelReport
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.forest_plot import ratio_text
from tinytorch.reporting.quantities import UNKNOWN, seconds_text

__all__ = ["render_kernel_choices"]

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
            Column("verdict", [_verdict(row) for row in rows], 1, "left"),
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


def _verdict(row: Choice) -> str:
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
