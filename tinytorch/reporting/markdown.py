"""Pieces of Markdown in GitHub's flavour: text that stays text, pictures of letters, tables."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

from rich.console import Console, RenderableType
from rich.text import Text

from tinytorch.benchmarking.suite_run import EntryOutcome
from tinytorch.comparison.comparison import Comparison, quality_doubt, quality_loss
from tinytorch.errors import SettingError
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER
from tinytorch.records.history import Trend
from tinytorch.reporting.comparison import (
    accuracy_line,
    beside_the_times,
    call_count_text,
    call_rows,
    forest_plot_of,
    measured_rows,
    missing_lines,
    note_lines,
    outputs_line,
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
from tinytorch.reporting.quantities import UNKNOWN, FittingTable
from tinytorch.reporting.suite import (
    NO_COMPARISON,
    TITLES,
    scenario_tables,
    shared_notes,
    suite_head,
)

__all__ = [
    "Alignment",
    "are_many",
    "code",
    "comparison_markdown",
    "escaped",
    "fenced",
    "folded",
    "history_markdown",
    "listed",
    "loaded",
    "notebook_html",
    "report_markdown",
    "row_for",
    "suite_markdown",
    "table_of",
    "table_rows",
]


SPECIAL = re.compile(r"([\\`*_|\[\]~#@])")
FENCE = "```"
WIDTH = 88
"""Letters in a line of a picture; about what a comment on GitHub shows without scrolling."""

Alignment = Literal["left", "right"]


def escaped(text: str) -> str:
    """Make text safe in a line, and in a cell, of Markdown.

    >>> escaped("a|b <c> `d`")
    'a\\\\|b &lt;c&gt; \\\\`d\\\\`'
    """
    in_one_line = " ".join(text.split())
    in_one_line = in_one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(r"\\\1", in_one_line)


def code(text: str) -> str:
    """Write a name as code, also inside of a cell. A backtick in it becomes an apostrophe."""
    return f"`{' '.join(text.split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def fenced(renderable: RenderableType, *, width: int = WIDTH) -> str:
    """Write what a terminal would show as a block of code, without colours."""
    console = Console(
        file=io.StringIO(), width=width, markup=False, highlight=False, color_system=None
    )
    with console.capture() as captured:
        console.print(renderable)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    shown = "\n".join(lines)
    fence = FENCE
    while fence in shown:  # or a name could end the block
        fence += "`"
    return f"{fence}text\n{shown}\n{fence}"


def table_rows(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    alignments: Sequence[Alignment] = (),
) -> list[str]:
    """Write the lines of a table whose cells are Markdown already; see :func:`escaped`."""
    alignments = alignments or ["left"] * len(heads)
    rule = "|".join("---:" if each == "right" else "---" for each in alignments)
    return [_line(heads), f"|{rule}|", *map(_line, rows)]


def table_of(table: FittingTable) -> list[str]:
    """Write a table of the terminal with all columns in which a row has something."""
    columns = [
        column
        for column in table.columns
        if any(cell.strip() not in ("", UNKNOWN) for cell in column.cells)
    ]
    heads = [escaped(each) for each in (table.title, *(column.title for column in columns))]
    rows = [
        [escaped(label.plain), *(escaped(column.cells[place]) for column in columns)]
        for place, label in enumerate(table.labels)
    ]
    return table_rows(heads, rows, alignments=["left", *(column.justify for column in columns)])


def listed(lines: Iterable[str]) -> list[str]:
    """Write lines of plain text as a list."""
    return [f"- {escaped(line)}" for line in lines]


def folded(title: str, lines: Sequence[str]) -> list[str]:
    """Fold lines of Markdown away under a title; nothing when there are none."""
    if not lines:
        return []
    return [f"<details><summary>{escaped(title)}</summary>", "", *lines, "", "</details>", ""]


def _line(cells: Sequence[str]) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


# ---------------------------------------------------------------- what a terminal would show, as
# HTML for notebooks

HTML = '<pre style="font-family:monospace;line-height:1.3;overflow-x:auto">{code}</pre>'


def notebook_html(renderable: RenderableType, *, width: int = 140) -> str:
    """Give a piece of HTML that looks as a terminal of some width would show it."""
    console = Console(file=io.StringIO(), width=width, record=True, markup=False, highlight=False)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=HTML)


# ---------------------------------------------------------------- what shows a result, found by
# its type in a table


def are_many(result: Any) -> bool:
    """Tell whether these are several results, such as the outcomes of a suite."""
    return isinstance(result, Sequence) and not isinstance(result, str)


def loaded(name: str) -> Any:
    """Return what a row such as ``package.module:function`` names; its module is imported now."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def row_for(result: Any, table: Mapping[str, str], *, face: str) -> str:
    """Find the row for the type of a result; several are of the type of the first.

    Types are written as ``package.module.Name``, so that a table imports none of them. `face` is
    what the table is about, such as "HTML report".
    """
    if are_many(result) and not result:
        raise SettingError("there is nothing to report: no results were given")
    kind = type(result[0] if are_many(result) else result)
    rows = [table.get(f"{each.__module__}.{each.__qualname__}") for each in kind.__mro__]
    found = next(filter(None, rows), None)
    if found is None:
        known = ", ".join(sorted(each.rpartition(".")[2] for each in table))
        raise SettingError(f"a {kind.__name__} has no {face}; there is one for: {known}")
    return found


# ---------------------------------------------------------------- results as Markdown, for a pull
# request or a wiki: the twins of what the terminal shows

MARKS = {FASTER: "✅", SLOWER: "❌", SAME: "⚪", INCONCLUSIVE: "❔"}
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
        "tinytorch.reporting.markdown:comparison_markdown"
    ),
    "tinytorch.benchmarking.suite_run.EntryOutcome": (
        "tinytorch.reporting.markdown:suite_markdown"
    ),
    "tinytorch.records.history.Trend": "tinytorch.reporting.markdown:history_markdown",
    "tinytorch.tuning.optimization.Optimization": (
        "tinytorch.reporting.optimization:optimization_markdown"
    ),
    "tinytorch.profiling.profile.Profile": "tinytorch.reporting.profile:profile_markdown",
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
    return MARKS[INCONCLUSIVE if is_doubtful else comparison.verdict]


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
