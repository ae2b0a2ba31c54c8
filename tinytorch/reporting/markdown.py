"""Pieces of Markdown in GitHub's flavour: text that stays text, pictures of letters, tables."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from rich.console import Console, RenderableType

from tinytorch.reporting.fitting_table import FittingTable
from tinytorch.reporting.quantities import UNKNOWN

__all__ = [
    "Alignment",
    "code",
    "escaped",
    "fenced",
    "folded",
    "listed",
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
