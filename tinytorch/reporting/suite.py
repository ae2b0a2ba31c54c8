"""A suite in the terminal: a table per scenario, what failed, and what to doubt."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.measure.samples import Interval
from tinytorch.perf.benchmarking.entries import Entry
from tinytorch.records.suite_outcome import EntryOutcome
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    seconds_text,
)

__all__ = [
    "NO_COMPARISON",
    "TITLES",
    "render_entries",
    "render_suite",
    "scenario_tables",
    "shared_notes",
    "suite_head",
]

TITLES = {
    "single-stream": "one query after the other",
    "offline": "all queries at once, in batches",
    "server": "queries arrive at random, one worker",
}
NUMBER = re.compile(r"\d[\d.]*")
NO_COMPARISON = (
    "Entries were measured one after the other, each in a process of its own: ratios between them, "
    "or to an earlier run, are hints. `tinytorch compare` and `tinytorch gate` compare."
)


def render_entries(entries: Sequence[Entry]) -> RenderableType:
    """List entries that were not run."""
    table = FittingTable(
        "entry",
        [Text(entry.name) for entry in entries],
        [
            Column("budget", [seconds_text(entry.budget) for entry in entries]),
            Column("key", [entry.key for entry in entries], 1, "left"),
        ],
    )
    count = "1 entry, it was not run" if len(entries) == 1 else f"{len(entries)} entries, none run"
    return Group(table, Text(count, style="dim"))


def render_suite(
    name: str,
    outcomes: Sequence[EntryOutcome],
    *,
    planned: int,
    run: str = "",
    notes: Sequence[str] = (),
) -> RenderableType:
    """Lay out what is finished of a suite."""
    failed = [each for each in outcomes if each.failure is not None]
    head = suite_head(outcomes, planned=planned, run=run)
    parts: list[RenderableType] = [Text.assemble((name, "bold"), "  ", (head, "dim"))]
    for scenario, (_, table) in scenario_tables(outcomes).items():
        title = Text.assemble((scenario, "bold"), f"  {TITLES[scenario]}")
        parts += [Text(""), title, table]
    if failed:
        parts += [Text(""), Text(f"Failed: {len(failed)}", style="bold red")]
        parts += [Text(f"{each.name}: {each.failure}", style="red") for each in failed]
    parts.append(Text(""))
    said = [*notes, *shared_notes(outcomes)]
    parts += [Text(f"- {note}", style="yellow") for note in said]
    return Group(*parts, Text(NO_COMPARISON, style="dim"))


def suite_head(outcomes: Sequence[EntryOutcome], *, planned: int, run: str = "") -> str:
    """Say which run it is, and how much of it is finished."""
    count = f"{len(outcomes)} of {planned}" if len(outcomes) < planned else str(planned)
    words = f"{count} {'entry' if planned == 1 else 'entries'}"
    return f"run {run}, {words}" if run else words


def scenario_tables(
    outcomes: Sequence[EntryOutcome],
) -> dict[str, tuple[list[EntryOutcome], FittingTable]]:
    """Give what was measured: for each scenario its entries, and a table with a row for each."""
    measured = [each for each in outcomes if each.failure is None]
    found = {}
    for scenario, table in TABLES.items():
        rows = [each for each in measured if each.scenario == scenario]
        if rows:
            found[scenario] = (rows, table(rows))
    return found


def _single_stream(rows: Sequence[EntryOutcome]) -> FittingTable:
    return _table(
        rows,
        [
            Column("p50", [_percentile(row, 50) for row in rows]),
            Column("95% interval", [_percentile_range(row, 50) for row in rows], 4),
            Column("p90", [_percentile(row, 90) for row in rows], 5),
            Column("p99", [_percentile(row, 99) for row in rows], 1),
            Column("95% interval", [_percentile_range(row, 99) for row in rows], 6),
            Column("n", [_count(row) for row in rows], 8),
        ],
    )


def _offline(rows: Sequence[EntryOutcome]) -> FittingTable:
    return _table(
        rows,
        [
            Column("throughput", [_throughput(row) for row in rows]),
            Column("95% interval", [_throughput_range(row) for row in rows], 3),
            Column("rounds", [_count(row) for row in rows], 8),
        ],
    )


def _server(rows: Sequence[EntryOutcome]) -> FittingTable:
    found = [row.server or {} for row in rows]
    return _table(
        rows,
        [
            Column("queries/s", [count_text(each.get("rate")) for each in found]),
            Column("is", [_certainty(each) for each in found], 1, "left"),
            Column("not above", [count_text(each.get("too_high")) for each in found], 3),
            Column("bound", [_bound(each) for each in found], 2, "left"),
            Column("latency there", [_server_latency(row) for row in rows], 4),
            Column("95% interval", [_server_range(row) for row in rows], 6),
            Column("queries", [_queries(row) for row in rows], 8),
            Column("rates", [str(len(each.get("trials", ()))) for each in found], 9),
        ],
    )


TABLES = {"single-stream": _single_stream, "offline": _offline, "server": _server}


def _table(rows: Sequence[EntryOutcome], columns: Sequence[Column]) -> FittingTable:
    resources = [
        Column("memory", [bytes_text(row.peak_bytes) for row in rows], 2),
        Column("size", [bytes_text(row.file_bytes) for row in rows], 6),
        Column("score", [_score(row) for row in rows], 3),
        Column("95% interval", [_score_range(row) for row in rows], 7),
        Column("time vs last", [factor_text(row.time_ratio) for row in rows], 5),
    ]
    labels = [Text(row.label) for row in rows]
    return FittingTable("entry", labels, [*columns, *resources], label_least=30)


def _percentile(row: EntryOutcome, q: float) -> str:
    return seconds_text(None if row.latency is None else row.latency.percentile(q))


def _percentile_range(row: EntryOutcome, q: float) -> str:
    return UNKNOWN if row.latency is None else _seconds_range(row.latency.percentile_interval(q))


def _seconds_range(interval: Interval) -> str:
    """Write an interval; an end that nobody knows is a dash."""
    ends = (seconds_text(end) if math.isfinite(end) else UNKNOWN for end in _ends(interval))
    return " to ".join(ends)


def _ends(interval: Interval) -> tuple[float, float]:
    return interval.low, interval.high


def _count(row: EntryOutcome) -> str:
    return UNKNOWN if row.main is None else str(row.main.count)


def _throughput(row: EntryOutcome) -> str:
    return UNKNOWN if row.main is None else f"{count_text(row.main.median)} {row.main.unit}"


def _throughput_range(row: EntryOutcome) -> str:
    if row.main is None:
        return UNKNOWN
    return " to ".join(map(count_text, _ends(row.main.median_interval())))


def _certainty(found: Mapping[str, Any]) -> str:
    """Say how sure the rate is."""
    if found.get("rate") is None:
        return "none shown"
    return "shown twice" if found["is_confirmed"] else "shown once"


def _bound(found: Mapping[str, Any]) -> str:
    if "bound_s" not in found:
        return UNKNOWN
    origin = "" if found["bound_is_given"] else " (own)"
    return f"p{found['percentile']:g} <= {seconds_text(found['bound_s'])}{origin}"


def _server_latency(row: EntryOutcome) -> str:
    return UNKNOWN if row.server is None else _percentile(row, row.server["percentile"])


def _server_range(row: EntryOutcome) -> str:
    return UNKNOWN if row.server is None else _percentile_range(row, row.server["percentile"])


def _queries(row: EntryOutcome) -> str:
    return UNKNOWN if row.latency is None else str(row.latency.count)


def _score(row: EntryOutcome) -> str:
    return UNKNOWN if row.accuracy is None else _score_text(row.accuracy, row.accuracy["mean"])


def _score_range(row: EntryOutcome) -> str:
    found = row.accuracy
    if found is None or not found["confidence"]:
        return UNKNOWN
    return " to ".join(_score_text(found, found[end]) for end in ("low", "high"))


def _score_text(found: Mapping[str, Any], value: float) -> str:
    return percent_text(value) if found["metric"] == "accuracy" else f"{value:.4g}"


def shared_notes(outcomes: Sequence[EntryOutcome]) -> list[str]:
    """Say what holds for several entries once, also where only its numbers differ."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for each in outcomes:
        for note in _notes_of(each):
            alike.setdefault(NUMBER.sub("#", note), []).append((each.name, note))
    return [_said_once(pairs, len(outcomes)) for pairs in alike.values()]


def _said_once(pairs: Sequence[tuple[str, str]], total: int) -> str:
    (name, note), others = pairs[0], pairs[1:]
    if not others:
        return f"{name}: {note}"
    if all(text == note for _, text in others):
        whose = "all entries" if len(pairs) == total else f"{name} and {len(others)} more"
        return f"{whose}: {note}"
    return f"{name}: {note}; the like of {len(others)} more (--json has all)"


def _notes_of(outcome: EntryOutcome) -> list[str]:
    notes = list(outcome.record.notes)
    metric = (outcome.accuracy or {}).get("metric", "accuracy")
    if metric != "accuracy":
        notes.append(f"the score is {metric}")
    resources = outcome.record.details.get("resources", {})
    missing = resources.get("not_measured", {})
    for name, shown in (("peak_bytes", "memory"), ("file_bytes", "size")):
        if name in missing:
            notes.append(f"no {shown}: {missing[name]}")
    if outcome.not_compared:
        notes.append(f"not compared with the last run: {outcome.not_compared}")
    return [*notes, *([outcome.kept_note] if outcome.kept_note else [])]
