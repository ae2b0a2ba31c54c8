"""A small picture of a trend with logarithmic axes, made of letters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["WIDTH", "Mark", "log_plot"]

WIDTH = 66
BESIDE = " ┤"
LEAST_COLUMNS = 12
"""A smaller canvas shows nothing; rather is the picture too wide."""

HEADROOM = 0.06
"""The part of the height that is left free above and below."""


@dataclass(frozen=True)
class Mark:
    """A letter at a place; both numbers must be positive. `low` and `high` draw a bar behind it."""

    x: float
    y: float
    letter: str
    low: float | None = None
    high: float | None = None


def log_plot(
    marks: Sequence[Mark],
    law: Callable[[float], float],
    *,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    width: int = WIDTH,
    height: int = 11,
) -> str:
    """Draw marks and the line of a law, with the ends of both axes and the places of marks named.

    `width` is that of the whole picture with the numbers beside it, `height` that of the canvas.
    Marks that come later cover earlier ones.
    """
    xs = [math.log(mark.x) for mark in marks]
    ends = [y for mark in marks for y in (mark.y, mark.low, mark.high) if y and math.isfinite(y)]
    low, high = math.log(min(ends)), math.log(max(ends))
    margin = HEADROOM * (high - low) or 0.5
    low, high = low - margin, high + margin
    left, right = min(xs), max(xs)
    labels = y_text(math.exp(high)), y_text(math.exp(low))
    columns = max(LEAST_COLUMNS, width - max(map(len, labels)) - len(BESIDE))

    def column(x: float) -> int:
        return round((math.log(x) - left) / ((right - left) or 1.0) * (columns - 1))

    def row(y: float) -> int:
        return round((high - math.log(y)) / (high - low) * (height - 1))

    grid = [[" "] * columns for _ in range(height)]
    for index in range(columns):
        y = law(math.exp(left + index / (columns - 1) * (right - left)))
        if y > 0 and 0 <= row(y) < height:
            grid[row(y)][index] = "·"
    for mark in marks:
        if mark.low and mark.high and math.isfinite(mark.high):
            for line in range(max(0, row(mark.high)), min(height, row(mark.low) + 1)):
                grid[line][column(mark.x)] = "│"
    for mark in marks:
        grid[row(mark.y)][column(mark.x)] = mark.letter
    return _framed(grid, labels, _ticks(marks, column, x_text, columns))


def _framed(grid: list[list[str]], ends: tuple[str, str], ticks: str) -> str:
    label_width = max(map(len, ends))
    labels = [ends[0], *[""] * (len(grid) - 2), ends[1]]
    lines = [
        f"{label:>{label_width}}{BESIDE}{''.join(line)}"
        for label, line in zip(labels, grid, strict=True)
    ]
    axis = f"{'':>{label_width}} └{'─' * len(grid[0])}"
    return "\n".join(line.rstrip() for line in (*lines, axis, f"{'':>{label_width}}  {ticks}"))


def _ticks(
    marks: Sequence[Mark],
    column: Callable[[float], int],
    x_text: Callable[[float], str],
    columns: int,
) -> str:
    """Write the places of the marks below the axis, the last one in any case."""
    line = [" "] * columns
    taken = len(line) + 1
    for x in sorted({mark.x for mark in marks}, reverse=True):
        text = x_text(x)
        start = max(0, min(column(x) - len(text) // 2, len(line) - len(text)))
        if start + len(text) < taken:
            line[start : start + len(text)] = text
            taken = start
    return "".join(line).rstrip()
