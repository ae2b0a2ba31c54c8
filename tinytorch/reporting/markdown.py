"""Documents as Markdown in GitHub's flavour: text that stays text, charts of letters, tables."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from rich.console import Console, RenderableType

from tinytorch.reading import as_plain
from tinytorch.reporting import document as doc
from tinytorch.reporting.quantities import UNKNOWN, sparkline
from tinytorch.reporting.terminal import CHARTS, SPARKLINE

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
    in_one_line = as_plain(" ".join(text.split()))
    in_one_line = in_one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(r"\\\1", in_one_line)


def code(text: str) -> str:
    """Write a name as code, also inside of a cell. A backtick in it becomes an apostrophe."""
    return f"`{as_plain(' '.join(text.split())).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def fenced(renderable: RenderableType) -> str:
    """Write what a terminal would show as a block of code, without colours."""
    console = Console(
        file=io.StringIO(), width=WIDTH, markup=False, highlight=False, color_system=None
    )
    with console.capture() as captured:
        console.print(renderable)
    return _in_fence("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _in_fence(shown: str) -> str:
    fence, shown = FENCE, as_plain(shown)
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


def write(document: doc.Document) -> str:
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


def _blocks(blocks: Iterable[doc.Block]) -> list[str]:
    return [line for block in blocks for line in _block(block)]


def _block(block: doc.Block) -> list[str]:
    return BLOCKS[doc.Chart if isinstance(block, doc.Chart) else type(block)](block)


def _paragraph(block: doc.Paragraph) -> list[str]:
    return [_words(block.words), ""]


def _bullets(block: doc.Bullets) -> list[str]:
    if not block.items:
        return []
    lines = [f"**{escaped(block.title)}**", ""] if block.title else []
    for item in block.whole_items:
        lines += [f"- {_words(item.words)}", *(f"  - {_words(below)}" for below in item.below)]
    return [*lines, ""]


def _facts(block: doc.Facts) -> list[str]:
    return [*(f"- {escaped(name)}: {_words(words)}" for name, words in block.pairs), ""]


def _preformatted(block: doc.Preformatted) -> list[str]:
    title = [f"**{escaped(block.title)}**", ""] if block.title else []
    return [*title, _in_fence(block.text), ""]


def _table(block: doc.Table) -> list[str]:
    columns, rows = doc.walked(block)
    marks = [TONE_MARKS.get(row.tone, "") for row, _ in rows]
    heads = [escaped(column.title) for column in columns]
    alignments: list[Alignment] = [
        "right" if column.kind in ("number", "bar") else "left" for column in columns
    ]
    lines = [
        [
            _cell(cell, is_code=column.kind == "code")
            for cell, column in zip(row.cells, columns, strict=True)
        ]
        for row, _ in rows
    ]
    for line, (_, depth) in zip(lines, rows, strict=True):
        line[0] = f"{'&emsp;' * depth}{line[0]}"
    if any(marks):
        heads, alignments = ["", *heads], ["left", *alignments]
        lines = [[mark, *line] for mark, line in zip(marks, lines, strict=True)]
    caption = [escaped(block.caption), ""] if block.caption else []
    return [*caption, *table_rows(heads, lines, alignments=alignments), ""]


def _cell(cell: doc.Cell | str, *, is_code: bool) -> str:
    if not isinstance(cell, str) and cell.trend:
        return sparkline(cell.trend, SPARKLINE)
    text = cell if isinstance(cell, str) else cell.text
    return code(text) if is_code and text.strip() not in ("", UNKNOWN) else escaped(text)


def _chart(chart: doc.Chart) -> list[str]:
    if type(chart) not in CHARTS:
        return []
    title = [escaped(chart.heading), ""] if chart.heading else []
    return [*title, fenced(CHARTS[type(chart)](chart, WIDTH, False)), ""]


def _folded(block: doc.Folded) -> list[str]:
    return folded(block.title, _inside(block)[:-1])


def _inside(block: doc.Folded | doc.Only | doc.Beside) -> list[str]:
    return _blocks(doc.inside(block, "markdown"))


def _section(section: doc.Section) -> list[str]:
    body = _blocks(section.blocks)
    if section.is_detail:
        said = [escaped(section.about), ""] if section.about and body else []
        return folded(section.title, [*said, *body][:-1])
    about = f" {escaped(section.about)}" if section.about else ""
    return [f"**{escaped(section.title)}**{about}", "", *body] if body else []


BLOCKS: dict[type, Callable[[Any], list[str]]] = {
    doc.Paragraph: _paragraph,
    doc.Bullets: _bullets,
    doc.Facts: _facts,
    doc.Preformatted: _preformatted,
    doc.Attachment: lambda block: [],
    doc.Table: _table,
    doc.Chart: _chart,
    doc.Folded: _folded,
    doc.Only: _inside,
    doc.Beside: _inside,
    doc.Section: _section,
}


def _words(words: doc.Words) -> str:
    return "".join(PIECES[type(each)](each) for each in doc.pieces(words))


def _plain(text: str) -> str:
    """Escape a piece of a line; spaces at its ends part it from its neighbours."""
    before, after = text[:1].isspace(), text[1:][-1:].isspace()
    return f"{' ' * before}{escaped(text)}{' ' * after}"


PIECES: dict[type, Callable[[Any], str]] = {
    str: _plain,
    doc.Code: lambda piece: code(piece.text),
    doc.Strong: lambda piece: f"**{escaped(piece.text)}**",
    doc.Link: lambda piece: _plain(piece.text),
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
    return write(doc.document_of(result, **context))


def _joined(lines: Sequence[str]) -> str:
    text = "\n".join(lines).rstrip("\n")
    return f"{text}\n"
