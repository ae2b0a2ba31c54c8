"""Results as Markdown, for a pull request or a wiki: the twins of what the terminal shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from tinytorch.comparison.comparison import FASTER, NOT_SHOWN, SAME, SLOWER, Comparison
from tinytorch.comparison.quality import quality_doubt, quality_loss
from tinytorch.records.suite_outcome import EntryOutcome
from tinytorch.records.trends import Trend
from tinytorch.reporting.comparison_words import (
    beside_the_times,
    call_count_text,
    call_rows,
    forest_plot_of,
    measured_rows,
    missing_lines,
    note_lines,
    quality_headline,
    verdict_text,
)
from tinytorch.reporting.history import (
    UNLIKE,
    change_lines,
    change_share_text,
    date_text,
    machine_text,
    trend_head,
    trend_text,
    value_text,
)
from tinytorch.reporting.markdown import (
    Alignment,
    code,
    escaped,
    fenced,
    folded,
    listed,
    table_of,
    table_rows,
)
from tinytorch.reporting.quality_lines import accuracy_line, outputs_line
from tinytorch.reporting.result_types import loaded, row_for
from tinytorch.reporting.suite import (
    NO_COMPARISON,
    TITLES,
    scenario_tables,
    shared_notes,
    suite_head,
)

__all__ = [
    "comparison_markdown",
    "history_markdown",
    "report_markdown",
    "suite_markdown",
]

MARKS = {FASTER: "✅", SLOWER: "❌", SAME: "⚪", NOT_SHOWN: "❔"}
LOST = "❌"
HISTORY: dict[str, Alignment] = {
    "name": "left",
    "metric": "left",
    "n": "right",
    "last": "right",
    "change": "right",
    "date": "left",
    "machine": "left",
}
"""Columns of the table of series."""


def comparison_markdown(comparison: Comparison, *, about: Sequence[str] = ()) -> str:
    """Write a comparison: verdict, forest plot and numbers open, the rest folded."""
    quality = quality_headline(comparison)
    head = quality or verdict_text(comparison)
    lines = [f"### {_mark(comparison)} {escaped(head)}", ""]
    if quality:
        lines += [escaped(verdict_text(comparison)), ""]
    lines += [f"{escaped(line)}  " for line in about]
    lines += [*([""] if about else []), fenced(forest_plot_of(comparison)), ""]
    names = (comparison.baseline_name, comparison.candidate_name)
    rows = [[escaped(cell) for cell in row] for row in measured_rows(comparison)]
    heads = ["", *map(code, names), "ratio"]
    lines += table_rows(heads, rows, alignments=("left", "right", "right", "left"))
    lines.append("")
    said = list(beside_the_times(comparison))
    if comparison.accuracy is not None:
        said.append(accuracy_line(comparison.accuracy))
    if comparison.outputs is not None:
        said.append(outputs_line(comparison.outputs))
    lines += [*listed(said), *([""] if said else [])]
    lines += folded(f"{call_count_text(comparison)} single calls", _calls(comparison))
    lines += folded("Notes", listed(note_lines(comparison)))
    lines += folded("Not measured", listed(missing_lines(comparison)))
    return _joined(lines)


def suite_markdown(
    outcomes: Sequence[EntryOutcome],
    *,
    name: str = "suite",
    planned: int | None = None,
    run: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Write what is finished of a suite: a table per scenario, what failed, what to doubt."""
    planned = len(outcomes) if planned is None else planned
    failed = [each for each in outcomes if each.failure is not None]
    mark = f"{LOST} " if failed else ""
    head = suite_head(outcomes, planned=planned, run=run)
    lines = [f"### {mark}{escaped(name)}", "", f"{escaped(head)}.", ""]
    for scenario, (_, table) in scenario_tables(outcomes).items():
        lines += [f"**{escaped(scenario)}**: {escaped(TITLES[scenario])}", "", *table_of(table), ""]
    if failed:
        lines += [f"**Failed: {len(failed)}**", ""]
        lines += [f"- {code(each.name)}: {escaped(str(each.failure))}" for each in failed]
        lines.append("")
    lines += folded("Notes", listed([*notes, *shared_notes(outcomes)]))
    return _joined([*lines, NO_COMPARISON, ""])


def history_markdown(trends: Sequence[Trend], *, name: str = "") -> str:
    """Write trends: a table of all, then each as a picture with its changes."""
    lines = [f"### {escaped(f'History of {name}' if name else 'History')}", ""]
    if len(trends) > 1:
        rows = [_series_row(each) for each in trends]
        lines += [*table_rows(list(HISTORY), rows, alignments=list(HISTORY.values())), ""]
        lines += [f"{len(trends)} series {UNLIKE}", ""]
    for each in trends:
        lines += [f"**{escaped(each.key.name)}** {escaped(trend_head(each))}", ""]
        if len(each.points) > 1:
            lines += [fenced(Text(trend_text(each))), ""]
        said = listed([*change_lines(each), *each.notes])
        lines += [*said, *([""] if said else [])]
    return _joined(lines)


# Type of a result -> the module and the function that write it. By name, so that nobody waits for
# those of other results.
WRITERS = {
    "tinytorch.comparison.comparison.Comparison": (
        "tinytorch.reporting.result_markdown:comparison_markdown"
    ),
    "tinytorch.records.suite_outcome.EntryOutcome": (
        "tinytorch.reporting.result_markdown:suite_markdown"
    ),
    "tinytorch.records.trends.Trend": "tinytorch.reporting.result_markdown:history_markdown",
    "tinytorch.tuning.optimization.Optimization": (
        "tinytorch.reporting.optimization_markdown:optimization_markdown"
    ),
    "tinytorch.workloads.profile.Profile": "tinytorch.reporting.profile_markdown:profile_markdown",
}


def report_markdown(result: Any, **context: Any) -> str:
    """Write a profile, comparison or optimization, the outcomes of a suite, or some trends.

    Outcomes and trends come as sequences. What a writer can say beside the result goes into
    `context`, such as the `name` of a suite.
    """
    written: str = loaded(row_for(result, WRITERS, face="Markdown"))(result, **context)
    return written


def _mark(comparison: Comparison) -> str:
    if quality_loss(comparison):
        return LOST
    is_doubtful = quality_doubt(comparison) and comparison.verdict != SLOWER
    return MARKS[NOT_SHOWN if is_doubtful else comparison.verdict]


def _calls(comparison: Comparison) -> list[str]:
    rows = [[escaped(cell) for cell in row] for row in call_rows(comparison)]
    if not rows:
        return []
    names = (comparison.baseline_name, comparison.candidate_name)
    heads = ["", code(names[0]), "95% interval", code(names[1]), "95% interval"]
    return table_rows(heads, rows, alignments=("left", "right", "left", "right", "left"))


def _series_row(trend: Trend) -> list[str]:
    last = trend.points[-1]
    return [
        code(trend.key.name),
        escaped(trend.metric),
        str(len(trend.points)),
        escaped(value_text(last.value, trend.unit)),
        change_share_text(trend.last_change),
        date_text(last.created_at),
        code(machine_text(trend.key.machine)),
    ]


def _joined(lines: Sequence[str]) -> str:
    text = "\n".join(lines).rstrip("\n")
    return f"{text}\n"
