"""Documents as Markdown in GitHub's flavour: text that stays text, charts of letters, tables."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from rich.console import Console, RenderableType

from tinytorch.reporting.document import (
    Attachment,
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
    depths,
    document_of,
    open_rows,
    pieces,
)
from tinytorch.reporting.quantities import UNKNOWN, sparkline
from tinytorch.reporting.terminal import CHARTS, SPARKLINE

__all__ = [
    "Alignment",
    "code",
    "escaped",
    "fenced",
    "folded",
    "listed",
    "notebook_html",
    "report_markdown",
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
    Attachment: lambda block: [],
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
    """Return a piece of HTML that looks as a terminal of some width would show it."""
    console = Console(file=io.StringIO(), width=width, record=True, markup=False, highlight=False)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=HTML)


# ---------------------------------------------------------------- any result as Markdown


def report_markdown(result: Any, **context: Any) -> str:
    """Return a profile, comparison or optimization, the outcomes of a suite, or some trends.

    Outcomes and trends come as sequences. What a document can say beside the result goes into
    `context`, such as the `name` of a suite.
    """
    return write(document_of(result, **context))


def _joined(lines: Sequence[str]) -> str:
    text = "\n".join(lines).rstrip("\n")
    return f"{text}\n"
