"""A small picture of values in their order, made of letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

__all__ = ["trend_plot", "trend_range"]

POINT, BAR, STEP, LEVEL = "●", "│", "┊", "─"
BESIDE = " ┤"
LEAST_COLUMNS = 12
HEADROOM = 0.06
"""The part of the height that is left free above and below."""


def trend_plot(
    values: Sequence[float],
    *,
    bars: Sequence[tuple[float, float] | None] = (),
    steps: Sequence[int] = (),
    y_text: Callable[[float], str],
    ends: tuple[str, str],
    width: int = 80,
    height: int = 11,
) -> str:
    """Draw values from left to right, with their intervals, and a line where a level begins.

    `steps` are the indices of the first values of new levels; a level is drawn at its median.
    `ends` are the labels of the first and the last value. `width` is that of the whole picture.
    """
    low, high = trend_range(values, bars)
    labels = y_text(high), y_text((low + high) / 2), y_text(low)
    columns = max(LEAST_COLUMNS, width - max(map(len, labels)) - len(BESIDE))

    def column(index: float) -> int:
        return round(index / max(1, len(values) - 1) * (columns - 1))

    def row(value: float) -> int:
        return round((high - min(max(value, low), high)) / (high - low) * (height - 1))

    grid = [[" "] * columns for _ in range(height)]
    for start, end in pairwise([0, *steps, len(values)]):
        level = row(float(np.median(values[start:end])))
        for place in range(column(start), column(end - 1) + 1):
            grid[level][place] = LEVEL
    for step in steps:
        for line in grid:
            line[column(step - 0.5)] = STEP
    for index, bar in enumerate(bars):
        if bar is not None:
            for place in range(row(bar[1]), row(bar[0]) + 1):
                grid[place][column(index)] = BAR
    for index, value in enumerate(values):
        grid[row(value)][column(index)] = POINT
    return _framed(grid, labels, ends)


def trend_range(
    values: Sequence[float], bars: Sequence[tuple[float, float] | None]
) -> tuple[float, float]:
    """Give the lowest and highest number to draw, with room around them.

    An interval reaches beyond the values by as much as these extend, at most: one wide interval
    must not flatten the rest.
    """
    low, high = min(values), max(values)
    reach = high - low
    inside = [end for bar in bars if bar for end in bar if low - reach <= end <= high + reach]
    low, high = min([low, *inside]), max([high, *inside])
    margin = HEADROOM * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _framed(grid: list[list[str]], labels: tuple[str, str, str], ends: tuple[str, str]) -> str:
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
