"""Ratios with their intervals as a forest plot made of letters: right of 1 is faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tinytorch.reporting.document import Chart
from tinytorch.reporting.quantities import ratio_text

WIDEST = 100
LEAST_CANVAS = 16
GAP = 2
MARGIN = 0.05
"""The part of the width that is left free at each end."""
OUTER_SHARE = 0.05
"""This share of the points at each end may lie outside of the picture; one wild point must not
squeeze the rest."""


COLOURS = {"good": "green", "bad": "red", "neutral": "cyan", "unknown": "yellow"}
"""Tone -> colour of an interval in a terminal."""


@dataclass(frozen=True)
class _Letters:
    one: str
    floor: str
    band: str
    line: str
    ends: str
    value: str
    beyond: str
    heights: str


LETTERS = _Letters("│", "┊", "░", "─", "├┤", "●", "◄►", "▁▂▃▄▅▆▇█")
PLAIN_LETTERS = _Letters("|", ":", ".", "-", "[]", "o", "<>", ".-=+*%#@")


@dataclass(frozen=True)
class ForestRow:
    """One ratio with its interval; `text` stands beside it."""

    label: str
    value: float
    low: float
    high: float
    text: str = ""
    tone: str = ""


@dataclass(frozen=True)
class ForestPlot(Chart):
    """Rows over one logarithmic axis, with minimum effect and equivalence band around 1.

    A `floor`, the minimum effect, of 0 is none.

    `points`, such as the ratios of single rounds, are drawn below as a strip, the higher the more
    of them lie at a place. `sides` say what left and right of 1 mean.
    """

    rows: Sequence[ForestRow]
    floor: float
    band: float
    points: Sequence[float] = ()
    points_label: str = "rounds"
    sides: tuple[str, str] = ("slower", "faster")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        letters = PLAIN_LETTERS if options.ascii_only else LETTERS
        for line in self.lines(min(WIDEST, options.max_width), letters):
            line.overflow = "fold"
            yield line

    def lines(self, width: int, letters: _Letters = LETTERS) -> list[Text]:
        """Draw the plot in `width` columns.

        Labels that leave no room for the picture stand in a line of their own; where even the texts
        do not, these are all that is shown.
        """
        labels = [row.label for row in self.rows] + ([self.points_label] if self.points else [])
        text_width = max((len(row.text) for row in self.rows), default=0)
        beside = text_width + GAP if text_width else 0
        room = width - beside - LEAST_CANVAS
        if room < 0:
            return [Text(f"{row.label}  {row.text}", _style(row)) for row in self.rows]
        is_above = max(map(len, labels)) + GAP > room
        label_width = 0 if is_above else max(map(len, labels))
        indent = " " * (0 if is_above else label_width + GAP)
        axis = self._axis(width - beside - len(indent))
        lines = []
        for row in self.rows:
            canvas = [" "] * axis.columns
            canvas[axis.place(1)] = letters.one
            _draw(row, axis, canvas, letters)
            text = f"{'':{GAP}}{row.text}" if row.text else ""
            lines += _line(row.label, label_width, "".join(canvas), text, _style(row))
        if self.points:
            lines += _line(self.points_label, label_width, _strip(self.points, axis, letters))
        lines.append(Text(indent + self._ruler(axis, letters), "dim"))
        lines.append(Text(indent + axis.labels(), "dim"))
        return [*lines, *self._legend(letters, width, indent)]

    @property
    def ends(self) -> tuple[float, float]:
        """The ratios at both ends of the axis."""
        known = [1 / (1 + self.band) ** 2, (1 + self.band) ** 2, *_inner(self.points)]
        known += [end for row in self.rows for end in (row.value, row.low, row.high)]
        logs = [math.log(each) for each in known if 0 < each < math.inf]
        low, high = min(logs), max(logs)
        spare = MARGIN * (high - low)
        return math.exp(low - spare), math.exp(high + spare)

    def _axis(self, columns: int) -> _Axis:
        low, high = self.ends
        return _Axis(math.log(low), math.log(high), columns)

    def _ruler(self, axis: _Axis, letters: _Letters) -> str:
        """Draw 1, minimum effect and equivalence band in their own line: intervals hide them."""
        canvas = [" "] * axis.columns
        for place in range(axis.place(1 / (1 + self.band)), axis.place(1 + self.band) + 1):
            canvas[place] = letters.band
        for edge in (1 / (1 + self.floor), 1 + self.floor) if self.floor else ():
            canvas[axis.place(edge)] = letters.floor
        canvas[axis.place(1)] = letters.one
        return "".join(canvas)

    def _legend(self, letters: _Letters, width: int, indent: str) -> list[Text]:
        """Say what is drawn, in as many lines as it takes."""
        parts = [
            f"{letters.one} equal",
            f"{letters.floor} minimum effect {100 * self.floor:.3g}%" if self.floor else "",
            f"{letters.band} equivalence band {100 * self.band:.3g}%",
            f"{self.sides[0]} < 1x < {self.sides[1]}",
        ]
        lines: list[str] = []
        for part in filter(None, parts):
            if lines and len(f"{indent}{lines[-1]}  {part}") <= width:
                lines[-1] += f"  {part}"
            else:
                lines.append(part)
        widest = max(map(len, lines))
        before = indent if len(indent) + widest <= width else ""
        return [Text(f"{before}{each}", "dim") for each in lines]


@dataclass(frozen=True)
class _Axis:
    """Logarithms from `low` to `high` over some columns."""

    low: float
    high: float
    columns: int

    def place(self, ratio: float) -> int:
        """Return the column of a ratio; what lies outside is put at the end."""
        if ratio <= 0:
            return 0
        share = (math.log(ratio) - self.low) / (self.high - self.low) if ratio < math.inf else 1.0
        return min(max(round(share * (self.columns - 1)), 0), self.columns - 1)

    def labels(self) -> str:
        """Write the ends, and 1 where it is."""
        first, last = ratio_text(math.exp(self.low)), ratio_text(math.exp(self.high))
        line = [" "] * self.columns
        line[: len(first)] = first
        line[self.columns - len(last) :] = last
        start = self.place(1) - 1
        if len(first) < start < self.columns - len(last) - 2:
            line[start : start + 2] = "1x"
        return "".join(line)


def _draw(row: ForestRow, axis: _Axis, canvas: list[str], letters: _Letters) -> None:
    left, right, middle = axis.place(row.low), axis.place(row.high), axis.place(row.value)
    for place in range(left, right + 1):
        canvas[place] = letters.line
    canvas[left] = letters.ends[0] if row.low > 0 else letters.beyond[0]
    canvas[right] = letters.ends[1] if row.high < math.inf else letters.beyond[1]
    canvas[middle] = letters.value


def _style(row: ForestRow) -> str:
    return COLOURS.get(row.tone, row.tone)


def _strip(points: Sequence[float], axis: _Axis, letters: _Letters) -> str:
    counts = [0] * axis.columns
    for point in points:
        counts[axis.place(point)] += 1
    most, top = max(counts), len(letters.heights) - 1
    return "".join(letters.heights[round(count / most * top)] if count else " " for count in counts)


def _inner(points: Sequence[float]) -> list[float]:
    """Return the ends of what is left without the outermost points."""
    if not points:
        return []
    ordered = sorted(points)
    outer = int(OUTER_SHARE * len(ordered))
    return [ordered[outer], ordered[-1 - outer]]


def _line(label: str, width: int, canvas: str, beside: str = "", style: str = "") -> list[Text]:
    drawn = Text.assemble((canvas, style), beside)
    if width:
        return [Text.assemble(f"{label:<{width}}{'':{GAP}}", drawn)]
    return [Text(label), drawn]
