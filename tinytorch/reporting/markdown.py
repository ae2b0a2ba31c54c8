"""Documents as Markdown in GitHub's flavour: text that stays text, charts of letters, tables."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from rich.console import Console, RenderableType

from tinytorch.benchmarking.suite_run import EntryOutcome
from tinytorch.comparison.comparison import (
    Comparison,
    quality_doubt,
    quality_loss,
)
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER
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
from tinytorch.reporting.document import (
    Beside,
    Block,
    Bullets,
    Cell,
    Chart,
    Code,
    Document,
    Facts,
    Folded,
    Item,
    Link,
    Only,
    Paragraph,
    Preformatted,
    Section,
    Strong,
    Table,
    Words,
    builder_of,
    depths,
    document_of,
    has_builder,
    loaded,
    open_rows,
    pieces,
)
from tinytorch.reporting.quantities import UNKNOWN, FittingTable, sparkline
from tinytorch.reporting.suite import (
    NO_COMPARISON,
    TITLES,
    scenario_tables,
    shared_notes,
    suite_head,
)
from tinytorch.reporting.terminal import CHARTS, SPARKLINE

__all__ = [
    "Alignment",
    "code",
    "comparison_markdown",
    "escaped",
    "fenced",
    "folded",
    "listed",
    "notebook_html",
    "report_markdown",
    "suite_markdown",
    "table_of",
    "table_rows",
    "write",
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
    return _in_fence("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _in_fence(shown: str) -> str:
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


# ---------------------------------------------------------------- documents

TONE_MARKS = {
    "good": "✅",
    "bad": "❌",
    "warning": "⚠️",
    "unknown": "❔",
    "neutral": "⚪",
}
"""Tone -> mark in front of a verdict or a row; other tones have none."""


def write(document: Document) -> str:
    """Return a document for a pull request or a wiki: the verdict as heading, notes folded."""
    banner = document.banner
    if banner is None:
        lines = [f"### {escaped(document.title)}", ""] if document.title else []
    else:
        lines = [f"### {TONE_MARKS.get(banner.tone, '')} {escaped(banner.verdict)}", ""]
        said = [escaped(each) for each in (document.title, banner.sentence) if each]
        lines += [": ".join(said), ""] if said else []
    if document.subtitle:
        lines += [escaped(document.subtitle), ""]
    lines += _blocks(document.blocks)
    return _joined([*lines, *folded("Notes", listed(document.notes))])


def _blocks(blocks: Iterable[Block]) -> list[str]:
    return [line for block in blocks for line in _block(block)]


def _block(block: Block) -> list[str]:
    return BLOCKS[Chart if isinstance(block, Chart) else type(block)](block)


def _paragraph(block: Paragraph) -> list[str]:
    return [_words(block.words), ""]


def _bullets(block: Bullets) -> list[str]:
    if not block.items:
        return []
    lines = [f"**{escaped(block.title)}**", ""] if block.title else []
    for each in block.items:
        item = each if isinstance(each, Item) else Item(each)
        lines += [f"- {_words(item.words)}", *(f"  - {_words(below)}" for below in item.below)]
    return [*lines, ""]


def _facts(block: Facts) -> list[str]:
    return [*(f"- {escaped(name)}: {_words(words)}" for name, words in block.pairs), ""]


def _preformatted(block: Preformatted) -> list[str]:
    title = [f"**{escaped(block.title)}**", ""] if block.title else []
    return [*title, _in_fence(block.text), ""]


def _table(block: Table) -> list[str]:
    columns, rows = block.filled()
    rows = list(open_rows(rows))
    marks = [TONE_MARKS.get(row.tone, "") for row in rows]
    heads = [escaped(column.title) for column in columns]
    alignments: list[Alignment] = [
        "right" if column.kind in ("number", "bar") else "left" for column in columns
    ]
    lines = [
        [
            _cell(cell, is_code=column.kind == "code")
            for cell, column in zip(row.cells, columns, strict=True)
        ]
        for row in rows
    ]
    for line, depth in zip(lines, depths(rows), strict=True):
        line[0] = f"{'&emsp;' * depth}{line[0]}"
    if any(marks):
        heads, alignments = ["", *heads], ["left", *alignments]
        lines = [[mark, *line] for mark, line in zip(marks, lines, strict=True)]
    caption = [escaped(block.caption), ""] if block.caption else []
    return [*caption, *table_rows(heads, lines, alignments=alignments), ""]


def _cell(cell: Cell | str, *, is_code: bool) -> str:
    if not isinstance(cell, str) and cell.trend:
        return sparkline(cell.trend, SPARKLINE)
    text = cell if isinstance(cell, str) else cell.text
    return code(text) if is_code and text.strip() not in ("", UNKNOWN) else escaped(text)


def _chart(chart: Chart) -> list[str]:
    if type(chart) not in CHARTS:
        return []
    head = " ".join(filter(None, (chart.title, chart.about)))
    title = [escaped(head), ""] if head else []
    return [*title, fenced(CHARTS[type(chart)](chart, WIDTH, False)), ""]


def _folded(block: Folded) -> list[str]:
    if "markdown" not in block.media:
        return []
    return folded(block.title, _blocks(block.blocks)[:-1])


def _only(block: Only) -> list[str]:
    return _blocks(block.blocks) if "markdown" in block.media else []


def _beside(block: Beside) -> list[str]:
    return _blocks(block.blocks)


def _section(section: Section) -> list[str]:
    body = _blocks(section.blocks)
    if section.is_detail:
        said = [escaped(section.about), ""] if section.about and body else []
        return folded(section.title, [*said, *body][:-1])
    about = f" {escaped(section.about)}" if section.about else ""
    return [f"**{escaped(section.title)}**{about}", "", *body] if body else []


BLOCKS: dict[type, Callable[[Any], list[str]]] = {
    Paragraph: _paragraph,
    Bullets: _bullets,
    Facts: _facts,
    Preformatted: _preformatted,
    Table: _table,
    Chart: _chart,
    Folded: _folded,
    Only: _only,
    Beside: _beside,
    Section: _section,
}


def _words(words: Words) -> str:
    return "".join(PIECES[type(each)](each) for each in pieces(words))


def _plain(text: str) -> str:
    """Escape a piece of a line; spaces at its ends part it from its neighbours."""
    before, after = text[:1].isspace(), text[1:][-1:].isspace()
    return f"{' ' * before}{escaped(text)}{' ' * after}"


PIECES: dict[type, Callable[[Any], str]] = {
    str: _plain,
    Code: lambda piece: code(piece.text),
    Strong: lambda piece: f"**{escaped(piece.text)}**",
    Link: lambda piece: _plain(piece.text),
}


# ---------------------------------------------------------------- what a terminal would show, as
# HTML for notebooks

HTML = '<pre style="font-family:monospace;line-height:1.3;overflow-x:auto">{code}</pre>'


def notebook_html(renderable: RenderableType, *, width: int = 140) -> str:
    """Give a piece of HTML that looks as a terminal of some width would show it."""
    console = Console(file=io.StringIO(), width=width, record=True, markup=False, highlight=False)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=HTML)


# ---------------------------------------------------------------- results as Markdown, for a pull
# request or a wiki: the twins of what the terminal shows

MARKS = {FASTER: "✅", SLOWER: "❌", SAME: "⚪", INCONCLUSIVE: "❔"}
LOST = "❌"


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


# Type of a result -> the module and the function that write it. By name, so that nobody waits for
# those of other results.
WRITERS = {
    "tinytorch.comparison.comparison.Comparison": (
        "tinytorch.reporting.markdown:comparison_markdown"
    ),
    "tinytorch.benchmarking.suite_run.EntryOutcome": (
        "tinytorch.reporting.markdown:suite_markdown"
    ),
    "tinytorch.tuning.optimization.Optimization": (
        "tinytorch.reporting.optimization:optimization_markdown"
    ),
}


TOGETHER = ("tinytorch.reporting.markdown:suite_markdown",)


def report_markdown(result: Any, **context: Any) -> str:
    """Write a profile, comparison or optimization, the outcomes of a suite, or some trends.

    Outcomes and trends come as sequences. What a writer can say beside the result goes into
    `context`, such as the `name` of a suite.
    """
    if has_builder(result):
        return write(document_of(result, **context))
    builder, result = builder_of(result, WRITERS, together=TOGETHER, face="Markdown")
    written: str = loaded(builder)(result, **context)
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


def _joined(lines: Sequence[str]) -> str:
    text = "\n".join(lines).rstrip("\n")
    return f"{text}\n"
