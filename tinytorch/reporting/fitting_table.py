"""A table that shows as many columns as the terminal has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

__all__ = ["Column", "FittingTable"]

GAP = 2


@dataclass(frozen=True)
class Column:
    """A column with all of its cells. Where there is little room, the highest ranks go first.

    Cells may be cut down to `least` letters before that; None keeps them whole.
    """

    title: str
    cells: Sequence[str]
    rank: int = 0
    justify: Literal["left", "right"] = "right"
    least: int | None = None

    @property
    def width(self) -> int:
        return max(Text(text).cell_len for text in (self.title, *self.cells))

    @property
    def needed(self) -> int:
        """The room that it cannot do without."""
        return self.width if self.least is None else min(self.width, self.least)

    @property
    def is_blank(self) -> bool:
        """Whether no row has anything here."""
        return not any(cell.strip() for cell in self.cells)


@dataclass(frozen=True)
class FittingTable:
    """Rows with a label each. Labels are cut down to `label_least` before a column is left out."""

    title: str
    labels: Sequence[Text]
    columns: Sequence[Column]
    styles: Sequence[str] = ()
    label_least: int = 26

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = max((label.cell_len for label in self.labels), default=0)
        first = Column(self.title, ["x" * widest], least=self.label_least)
        columns = self._fitting(options.max_width - first.needed)
        widths = _widths([first, *columns], options.max_width)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        for column, width in zip([first, *columns], widths, strict=True):
            table.add_column(
                column.title,
                width=width,
                justify="left" if column is first else column.justify,
                no_wrap=True,
                overflow="ellipsis",
            )
        for index, label in enumerate(self.labels):
            style = self.styles[index] if self.styles else ""
            table.add_row(label, *(Text(column.cells[index]) for column in columns), style=style)
        yield table

    def _fitting(self, room: int) -> list[Column]:
        """Choose columns by rank as long as there is room, and keep them in their order."""
        chosen: set[int] = set()
        offered = [(index, each) for index, each in enumerate(self.columns) if not each.is_blank]
        for index, column in sorted(offered, key=lambda item: item[1].rank):
            if column.needed + GAP <= room:
                room -= column.needed + GAP
                chosen.add(index)
        return [self.columns[index] for index in sorted(chosen)]


def _widths(columns: Sequence[Column], room: int) -> list[int]:
    """Give every column what it needs, and what is left to those that were cut, in order."""
    widths = [column.needed for column in columns]
    left = room - sum(widths) - GAP * (len(columns) - 1)
    for index, column in enumerate(columns):
        more = max(0, min(left, column.width - widths[index]))
        widths[index] += more
        left -= more
    return widths
