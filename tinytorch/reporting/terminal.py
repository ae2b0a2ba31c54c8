"""Documents in a terminal: text, tables that fit, and charts made of letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from tinytorch.reporting.document import (
    Attachment,
    Banner,
    Beside,
    Block,
    Bullets,
    Cell,
    Chart,
    Code,
    Column,
    Document,
    Facts,
    Folded,
    Item,
    Link,
    LogPlot,
    Only,
    Paragraph,
    Pictures,
    Preformatted,
    Row,
    Section,
    Strong,
    Table,
    TrendLine,
    Words,
    depths,
    open_rows,
    pieces,
)
from tinytorch.reporting.forest_plot import ForestPlot
from tinytorch.reporting.quantities import (
    BESIDE,
    LEAST_COLUMNS,
    WIDTH,
    braille_image,
    log_plot,
    share_bar,
    sparkline,
    value_text,
)
from tinytorch.reporting.roofline import Roofline, roofline_letters

__all__ = ["letters_of", "render", "trend_plot"]

STYLES = {
    "": "",
    "good": "green",
    "bad": "bold red",
    "warning": "red",
    "unknown": "yellow",
    "neutral": "cyan",
    "faint": "dim",
    "hot": "bold",
    "total": "bold",
}
"""Tone -> style of rich."""
WIDEST = 100
"""Columns of the widest chart."""
GAP = 2
LEAST_LABEL = 26
"""Letters that the first column of a table keeps, unless it says otherwise."""
SPARKLINE = 16
BAR = 8


def render(document: Document) -> RenderableType:
    """Return what a terminal shows of a document: the verdict first, notes at the end."""
    notes = _bullets(Bullets(document.notes, "Notes", "unknown"))
    parts = [part for part in (_head(document), _blocks(document.blocks), notes) if part]
    return Group(*_apart(parts))


def _head(document: Document) -> list[RenderableType]:
    said = filter(None, (document.title, document.subtitle))
    lines: list[RenderableType] = [Text(each, "dim") for each in said]
    return [*_banner(document.banner), *lines] if document.banner else lines


def _banner(banner: Banner) -> list[RenderableType]:
    lines = [Text(banner.verdict, f"bold {STYLES[banner.tone]}")]
    return [*lines, Text(banner.sentence)] if banner.sentence else [*lines]


def _apart(parts: Sequence[list[RenderableType]]) -> Iterator[RenderableType]:
    """Put a blank line between parts of which each is some lines."""
    for place, part in enumerate(parts):
        if place:
            yield Text("")
        yield from part


def _blocks(blocks: Sequence[Block]) -> list[RenderableType]:
    """Return blocks with blank lines between them, but for paragraphs in a row."""
    lines: list[RenderableType] = []
    before: Block | None = None
    for block in blocks:
        part = _block(block)
        if not part:
            continue
        is_joined = isinstance(block, Paragraph) and isinstance(before, Paragraph)
        lines += part if before is None or is_joined else [Text(""), *part]
        before = block
    return lines


def _block(block: Block) -> list[RenderableType]:
    return BLOCKS[Chart if isinstance(block, Chart) else type(block)](block)


def _paragraph(block: Paragraph) -> list[RenderableType]:
    return [_text(block.words, STYLES[block.tone])]


def _bullets(block: Bullets) -> list[RenderableType]:
    if not block.items:
        return []
    lines: list[RenderableType] = [Text(block.title, "bold")] if block.title else []
    for each in block.items:
        item = each if isinstance(each, Item) else Item(each)
        lines.append(_text(("- ", *pieces(item.words)), STYLES[block.tone]))
        lines += [_text(("  - ", *pieces(below)), STYLES[block.tone]) for below in item.below]
    return lines


def _facts(block: Facts) -> list[RenderableType]:
    width = max((len(name) for name, _ in block.pairs), default=0)
    return [_text((f"{name:<{width}}  ", *pieces(words)), "") for name, words in block.pairs]


def _preformatted(block: Preformatted) -> list[RenderableType]:
    title: list[RenderableType] = [Text(block.title, "bold")] if block.title else []
    return [*title, Text(block.text)]


def _table(block: Table) -> list[RenderableType]:
    caption: list[RenderableType] = [Text(block.caption, "dim")] if block.caption else []
    return [*caption, _FittingTable(*block.filled())]


def _chart(chart: Chart) -> list[RenderableType]:
    if type(chart) not in CHARTS:
        return []
    head = " ".join(filter(None, (chart.title, chart.about)))
    title: list[RenderableType] = [Text(head, "dim")] if head else []
    return [*title, _Drawn(chart)]


def _folded(block: Folded) -> list[RenderableType]:
    return _blocks(block.blocks) if "terminal" in block.media else []


def _only(block: Only) -> list[RenderableType]:
    return _blocks(block.blocks) if "terminal" in block.media else []


def _beside(block: Beside) -> list[RenderableType]:
    return _blocks(block.blocks)


def _section(section: Section) -> list[RenderableType]:
    body = _blocks(section.blocks)
    if not body:
        return []
    about = [Text("  "), Text(section.about, "dim")] if section.about else []
    title = Text(section.title, f"bold {STYLES[section.tone]}")
    return [Text.assemble(title, *about), *body]


BLOCKS: dict[type, Callable[[Any], list[RenderableType]]] = {
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


def _text(words: Words, style: str) -> Text:
    parts = [
        Text(each) if isinstance(each, str) else Text(each.text, PIECES[type(each)])
        for each in pieces(words)
    ]
    return Text.assemble(*parts, style=style)


PIECES = {Code: "", Strong: "bold", Link: ""}


# ---------------------------------------------------------------- a table that shows as many
# columns as the terminal has room for


@dataclass(frozen=True)
class _FittingTable:
    columns: Sequence[Column]
    rows: Sequence[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = list(open_rows(self.rows))
        lines = [_cells(row, depth) for row, depth in zip(rows, depths(rows), strict=True)]
        widths = [
            max(Text(text).cell_len for text in (column.title, *(line[place] for line in lines)))
            for place, column in enumerate(self.columns)
        ]
        places = self._fitting(widths, options.max_width)
        final = self._final(places, widths, options.max_width)
        drawn = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        for place in places:
            column = self.columns[place]
            drawn.add_column(
                Text(column.title),
                width=final[place],
                justify="right" if column.kind == "number" else "left",
                no_wrap=not column.wraps,
                overflow="fold" if column.wraps else "ellipsis",
            )
        for row, line in zip(rows, lines, strict=True):
            cells = [Text(line[place], _style(row.cells[place])) for place in places]
            drawn.add_row(*cells, style=STYLES[row.tone])
        yield drawn

    def _needed(self, place: int, width: int) -> int:
        least = self.columns[place].least
        if place == 0 and least is None:
            least = LEAST_LABEL
        return width if least is None else min(width, least)

    def _fitting(self, widths: Sequence[int], room: int) -> list[int]:
        """Choose columns by rank as long as there is room, and keep them in their order."""
        chosen = [0]
        room -= self._needed(0, widths[0])
        for place in sorted(range(1, len(widths)), key=lambda each: self.columns[each].rank):
            needed = self._needed(place, widths[place]) + GAP
            if needed <= room:
                room -= needed
                chosen.append(place)
        return sorted(chosen)

    def _final(self, places: Sequence[int], widths: Sequence[int], room: int) -> dict[int, int]:
        """Return what every column needs, and what is left to those that were cut, in order."""
        final = {place: self._needed(place, widths[place]) for place in places}
        left = room - sum(final.values()) - GAP * (len(places) - 1)
        for place in places:
            more = max(0, min(left, widths[place] - final[place]))
            final[place] += more
            left -= more
        return final


def _cells(row: Row, depth: int) -> list[str]:
    texts = [_cell_text(each) for each in row.cells]
    return [f"{'  ' * depth}{texts[0]}", *texts[1:]]


def _cell_text(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return cell
    if cell.trend:
        return sparkline(cell.trend, SPARKLINE)
    return cell.text if cell.bar is None else f"{share_bar(cell.bar, BAR)} {cell.text:>6}"


def _style(cell: Cell | str) -> str:
    return "" if isinstance(cell, str) else STYLES[cell.tone]


# ---------------------------------------------------------------- charts made of letters


@dataclass(frozen=True)
class _Drawn:
    """A chart, as wide as the terminal allows."""

    chart: Chart

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        draw = CHARTS[type(self.chart)]
        yield draw(self.chart, min(WIDEST, options.max_width), options.ascii_only)


def _trend_line(chart: TrendLine, width: int, ascii_only: bool) -> Text:
    return Text(trend_plot(chart, width=width), no_wrap=True, overflow="crop")


def _log_plot(chart: LogPlot, width: int, ascii_only: bool) -> Text:
    return Text(letters_of(chart, width=width), no_wrap=True, overflow="crop")


def letters_of(chart: LogPlot, *, width: int = WIDTH) -> str:
    """Draw marks over logarithmic axes; `width` is at most that of the picture."""
    return log_plot(
        chart.marks,
        chart.law or (lambda _: 0.0),  # without a law, only what was measured
        x_text=lambda x: value_text(x, chart.x_unit),
        y_text=lambda y: value_text(y, chart.y_unit),
        width=min(WIDTH, width),
    )


def _pictures(chart: Pictures, width: int, ascii_only: bool) -> Columns:
    drawn = [
        Group(Text(braille_image(each.bright, 0.5)), Text(each.text, STYLES[each.tone]))
        for each in chart.pictures
    ]
    return Columns(drawn, padding=(0, GAP))


def _forest_plot(chart: ForestPlot, width: int, ascii_only: bool) -> RenderableType:
    return chart


POINT, INTERVAL, STEP, LEVEL = "●", "│", "┊", "─"


def trend_plot(chart: TrendLine, *, width: int = 80, height: int = 11) -> str:
    """Draw values from left to right; `width` is that of the whole picture."""
    values, (low, high) = chart.values, chart.range
    labels = [value_text(each, chart.unit) for each in (high, (low + high) / 2, low)]
    columns = max(LEAST_COLUMNS, width - max(map(len, labels)) - len(BESIDE))

    def column(index: float) -> int:
        return round(index / max(1, len(values) - 1) * (columns - 1))

    def row(value: float) -> int:
        return round((high - min(max(value, low), high)) / (high - low) * (height - 1))

    grid = [[" "] * columns for _ in range(height)]
    for start, end in pairwise([0, *chart.steps, len(values)] if chart.has_levels else []):
        level = row(float(np.median(values[start:end])))
        for place in range(column(start), column(end - 1) + 1):
            grid[level][place] = LEVEL
    for step in chart.steps:
        for line in grid:
            line[column(step - 0.5)] = STEP
    for index, interval in enumerate(chart.intervals):
        if interval is not None:
            for place in range(row(interval[1]), row(interval[0]) + 1):
                grid[place][column(index)] = INTERVAL
    for index, value in enumerate(values):
        grid[row(value)][column(index)] = POINT
    return _framed_trend(grid, labels, chart.ends)


def _framed_trend(grid: list[list[str]], labels: Sequence[str], ends: tuple[str, str]) -> str:
    room, columns = max(map(len, labels)), len(grid[0])
    beside = [""] * len(grid)
    beside[0], beside[len(grid) // 2], beside[-1] = labels
    lines = [
        f"{label:>{room}}{BESIDE}{''.join(line)}".rstrip()
        for label, line in zip(beside, grid, strict=True)
    ]
    first, last = ends
    gap = columns - len(first) - len(last)
    ticks = f"{first}{' ' * gap}{last}" if gap > 0 else last[:columns]
    return "\n".join([*lines, f"{'':>{room}} └{'─' * columns}", f"{'':>{room}}  {ticks}"])


CHARTS: dict[type[Chart], Callable[[Any, int, bool], RenderableType]] = {
    TrendLine: _trend_line,
    ForestPlot: _forest_plot,
    LogPlot: _log_plot,
    Roofline: roofline_letters,
    Pictures: _pictures,
}
"""Kind of chart -> what draws it in so many columns, with plain letters where nothing else is
there. Charts that are not named are left out of terminals."""
