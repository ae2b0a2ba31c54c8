"""Documents in a terminal: text, tables that fit, and charts made of letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from tinytorch.reading import as_plain
from tinytorch.reporting import document as doc
from tinytorch.reporting.forest_plot import ForestPlot
from tinytorch.reporting.quantities import (
    BESIDE,
    LEAST_COLUMNS,
    WIDTH,
    braille_image,
    framed,
    log_plot,
    share_bar,
    sparkline,
    value_text,
)
from tinytorch.reporting.roofline import Roofline, roofline_letters

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
USUAL_WIDTH = 80
SPARKLINE = 16
BAR, BAR_TEXT = 8, 6


def render(
    document: doc.Document, *, is_brief: bool = False, more: Sequence[tuple[str, str]] = ()
) -> RenderableType:
    """Return what a terminal shows of a document: the verdict first, notes at the end.

    With `is_brief` it is what answers the question, where the document has that; `more` are pairs
    of what else there is and how to see it.
    """
    if is_brief and document.brief:
        about = f" ({document.subtitle})" if document.subtitle else ""
        said = f"{document.title}{about}"
        head = _banner(document.banner) if document.banner else []
        lines = [*head, *([Text(said, "dim")] if said else [])]
        *blocks, last = document.brief
        ending = _ending(document, more)
        if isinstance(last, doc.Facts):
            ending = (*last.pairs, *ending)
        else:
            blocks.append(last)
        parts = [lines, _blocks(blocks), _facts(doc.Facts(ending))]
    else:
        notes = _bullets(doc.Bullets(document.notes, "Notes", "unknown"))
        parts = [_head(document), _blocks(document.blocks), notes]
    return Cleaned(Group(*_apart([part for part in parts if part])))


@dataclass(frozen=True)
class Cleaned:
    """What is shown, without letters of others that would steer the terminal."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for each in console.render(self.content, options):
            yield each if each.control else Segment(as_plain(each.text), each.style)


def plain(document: doc.Document) -> str:
    """Return the text of a document in brief, without colours and as wide as usual terminals."""
    console = Console(width=USUAL_WIDTH, color_system=None, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(render(document, is_brief=True))
    return "\n".join(map(str.rstrip, captured.get().splitlines()))


def _ending(
    document: doc.Document, more: Sequence[tuple[str, str]]
) -> tuple[tuple[str, doc.Words], ...]:
    """Return the first note that is not minor, how many others there are, where the rest is."""
    notes = [each for each in document.notes if each not in document.minor][:1]
    others = len(document.notes) - len(notes)
    count = f"{others} more note{'s' if others > 1 else ''}"
    if notes and others:
        notes = [f"{notes[0]} (and {count})"]
    elif others:
        notes = [f"{others} on how it was measured"]
    return (*(("note", each) for each in notes), *more)


def _head(document: doc.Document) -> list[RenderableType]:
    said = filter(None, (document.title, document.subtitle))
    lines: list[RenderableType] = [Text(each, "dim") for each in said]
    return [*_banner(document.banner), *lines] if document.banner else lines


def _banner(banner: doc.Banner) -> list[RenderableType]:
    lines = [Text(banner.verdict, f"bold {STYLES[banner.tone]}")]
    return [*lines, Text(banner.sentence)] if banner.sentence else [*lines]


def _apart(parts: Sequence[list[RenderableType]]) -> Iterator[RenderableType]:
    """Put a blank line between parts of which each is some lines."""
    for place, part in enumerate(parts):
        if place:
            yield Text("")
        yield from part


def _blocks(blocks: Sequence[doc.Block]) -> list[RenderableType]:
    """Return blocks with blank lines between them, but for paragraphs in a row."""
    lines: list[RenderableType] = []
    before: doc.Block | None = None
    for block in blocks:
        part = _block(block)
        if not part:
            continue
        is_joined = isinstance(block, doc.Paragraph) and isinstance(before, doc.Paragraph)
        lines += part if before is None or is_joined else [Text(""), *part]
        before = block
    return lines


def _block(block: doc.Block) -> list[RenderableType]:
    return BLOCKS[doc.Chart if isinstance(block, doc.Chart) else type(block)](block)


def _paragraph(block: doc.Paragraph) -> list[RenderableType]:
    return [_text(block.words, STYLES[block.tone])]


def _bullets(block: doc.Bullets) -> list[RenderableType]:
    if not block.items:
        return []
    lines: list[RenderableType] = [Text(block.title, "bold")] if block.title else []
    for item in block.whole_items:
        lines.append(_text(("- ", *doc.pieces(item.words)), STYLES[block.tone]))
        lines += [_text(("  - ", *doc.pieces(below)), STYLES[block.tone]) for below in item.below]
    return lines


def _facts(block: doc.Facts) -> list[RenderableType]:
    if not block.pairs:
        return []
    drawn = RichTable.grid(padding=(0, GAP, 0, 0))
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, words in block.pairs:
        drawn.add_row(Text(name), _text(words, ""))
    return [drawn]


def _preformatted(block: doc.Preformatted) -> list[RenderableType]:
    title: list[RenderableType] = [Text(block.title, "bold")] if block.title else []
    return [*title, Text(block.text)]


def _table(block: doc.Table) -> list[RenderableType]:
    caption: list[RenderableType] = [Text(block.caption, "dim")] if block.caption else []
    return [*caption, _FittingTable(*doc.walked(block))]


def _chart(chart: doc.Chart) -> list[RenderableType]:
    if type(chart) not in CHARTS:
        return []
    title: list[RenderableType] = [Text(chart.heading, "dim")] if chart.heading else []
    return [*title, _Drawn(chart)]


def _inside(block: doc.Folded | doc.Only | doc.Beside) -> list[RenderableType]:
    return _blocks(doc.inside(block, "terminal"))


def _section(section: doc.Section) -> list[RenderableType]:
    body = _blocks(section.blocks)
    if not body:
        return []
    about = [Text("  "), Text(section.about, "dim")] if section.about else []
    title = Text(section.title, f"bold {STYLES[section.tone]}")
    return [Text.assemble(title, *about), *body]


BLOCKS: dict[type, Callable[[Any], list[RenderableType]]] = {
    doc.Paragraph: _paragraph,
    doc.Bullets: _bullets,
    doc.Facts: _facts,
    doc.Preformatted: _preformatted,
    doc.Attachment: lambda block: [],
    doc.Table: _table,
    doc.Chart: _chart,
    doc.Folded: _inside,
    doc.Only: _inside,
    doc.Beside: _inside,
    doc.Section: _section,
}


def _text(words: doc.Words, style: str) -> Text:
    parts = [
        Text(each) if isinstance(each, str) else Text(each.text, PIECES[type(each)])
        for each in doc.pieces(words)
    ]
    return Text.assemble(*parts, style=style)


PIECES = {doc.Code: "", doc.Strong: "bold", doc.Link: ""}


# ---------------------------------------------------------------- a table that shows as many
# columns as the terminal has room for


@dataclass(frozen=True)
class _FittingTable:
    columns: Sequence[doc.Column]
    rows: Sequence[tuple[doc.Row, int]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [_cells(row, depth) for row, depth in self.rows]
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
        for (row, _), line in zip(self.rows, lines, strict=True):
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


def _cells(row: doc.Row, depth: int) -> list[str]:
    texts = [_cell_text(each) for each in row.cells]
    return [f"{'  ' * depth}{texts[0]}", *texts[1:]]


def _cell_text(cell: doc.Cell | str) -> str:
    if isinstance(cell, str):
        return cell
    if cell.trend:
        return sparkline(cell.trend, SPARKLINE)
    if cell.bar is None:
        return cell.text
    if not cell.text:
        return share_bar(cell.bar, BAR + 1 + BAR_TEXT)  # the room that words would take
    return f"{share_bar(cell.bar, BAR)} {cell.text:>{BAR_TEXT}}"


def _style(cell: doc.Cell | str) -> str:
    return "" if isinstance(cell, str) else STYLES[cell.tone]


# ---------------------------------------------------------------- charts made of letters


@dataclass(frozen=True)
class _Drawn:
    """A chart, as wide as the terminal allows."""

    chart: doc.Chart

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        draw = CHARTS[type(self.chart)]
        yield draw(self.chart, min(WIDEST, options.max_width), options.ascii_only)


def _trend_line(chart: doc.TrendLine, width: int, ascii_only: bool) -> Text:
    return Text(trend_plot(chart, width=width), no_wrap=True, overflow="crop")


def _log_plot(chart: doc.LogPlot, width: int, ascii_only: bool) -> Text:
    return Text(letters_of(chart, width=width), no_wrap=True, overflow="crop")


def letters_of(chart: doc.LogPlot, *, width: int = WIDTH) -> str:
    """Draw marks over logarithmic axes; `width` is at most that of the picture."""
    return log_plot(
        chart.marks,
        chart.law or (lambda _: 0.0),  # without a law, only what was measured
        x_text=lambda x: value_text(x, chart.x_unit),
        y_text=lambda y: value_text(y, chart.y_unit),
        width=min(WIDTH, width),
    )


def _pictures(chart: doc.Pictures, width: int, ascii_only: bool) -> Columns:
    drawn = [
        Group(Text(braille_image(each.bright, 0.5)), Text(each.text, STYLES[each.tone]))
        for each in chart.pictures
    ]
    return Columns(drawn, padding=(0, GAP))


def _forest_plot(chart: ForestPlot, width: int, ascii_only: bool) -> RenderableType:
    return chart


POINT, INTERVAL, STEP, LEVEL = "●", "│", "┊", "─"


def trend_plot(chart: doc.TrendLine, *, width: int = 80, height: int = 11) -> str:
    """Draw values from left to right; `width` is that of the whole picture."""
    values, (low, high) = chart.values, chart.range
    labels = [value_text(each, chart.unit) for each in (high, (low + high) / 2, low)]
    columns = max(LEAST_COLUMNS, width - max(map(len, labels)) - len(BESIDE))

    def column(index: float) -> int:
        return round(index / max(1, len(values) - 1) * (columns - 1))

    def row(value: float) -> int:
        share = (high - min(max(value, low), high)) / (high - low)
        return round(share * (height - 1)) if np.isfinite(share) else 0  # of 1e308, say

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
    first, last = chart.ends
    gap = columns - len(first) - len(last)
    return framed(grid, labels, f"{first}{' ' * gap}{last}" if gap > 0 else last[:columns])


CHARTS: dict[type[doc.Chart], Callable[[Any, int, bool], RenderableType]] = {
    doc.TrendLine: _trend_line,
    ForestPlot: _forest_plot,
    doc.LogPlot: _log_plot,
    Roofline: roofline_letters,
    doc.Pictures: _pictures,
}
"""Kind of chart -> what draws it in so many columns, with plain letters where nothing else is
there. Charts that are not named are left out of terminals."""
