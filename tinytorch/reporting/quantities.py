"""Numbers with units, and pictures and tables made of letters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# ---------------------------------------------------------------- numbers with units, short enough
# for a table: three digits that count, and a prefix
#
# Prefixes are powers of a thousand, but for sizes in memory: these have KiB and MiB, powers of
# 1024, as caches and pages do. What is not known is a dash, never a zero.

UNKNOWN = "-"
PREFIXES = ("", "k", "M", "G", "T", "P", "E")
BINARY_PREFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
SMALL_SECONDS = ((1e-6, 1e-9, "ns"), (1e-3, 1e-6, "us"), (1.0, 1e-3, "ms"))
"""Below the first number, in units of the second."""
MINUTE_S, HOUR_S = 60.0, 3600.0


def seconds_text(seconds: float | None) -> str:
    """Write a time: ``8.50 us``, ``2.69 ms``, ``1.20 s``, ``2 min 5 s``.

    >>> seconds_text(0.00269), seconds_text(None)
    ('2.69 ms', '-')
    """
    if seconds is None or not math.isfinite(seconds):
        return _without_digits(seconds)
    size = abs(seconds)
    if size == 0:
        return "0 s"
    for limit, unit, name in SMALL_SECONDS:
        if float(f"{size / unit:.3g}") * unit < limit:
            return f"{_three_digits(seconds / unit)} {name}"
    if size < MINUTE_S:
        return f"{_three_digits(seconds)} s"
    sign, whole = "-" if seconds < 0 else "", round(size)
    if whole < HOUR_S:
        return f"{sign}{whole // 60} min {whole % 60} s"
    return f"{sign}{whole // 3600} h {whole % 3600 // 60} min"


def bytes_text(size: float | None) -> str:
    """Write a size in memory: ``512 B``, ``3.09 MiB``."""
    return _scaled(size, " ", "B", base=1024, prefixes=BINARY_PREFIXES)


def count_text(count: float | None) -> str:
    """Write a number of things: ``640``, ``109k``, ``55.1M``.

    >>> count_text(640), count_text(55_123_968)
    ('640', '55.1M')
    """
    return _scaled(count, "", "")


def rate_text(rate: float | None, unit: str = "FLOP/s") -> str:
    """Write something per second: ``41.2 GFLOP/s``, ``48.6 GB/s``."""
    return _scaled(rate, " ", unit)


def percent_text(share: float | None) -> str:
    """Write a share of 1 as a percentage; what is there but tiny is not shown as nothing."""
    if share is None or not math.isfinite(share):
        return _without_digits(share)
    if 0 < abs(share) < 0.0005:
        return "<0.1%" if share > 0 else ">-0.1%"
    return f"{share:.1%}" if abs(share) < 9.995 else f"{share:,.0%}"


def factor_text(factor: float | None) -> str:
    """Write how many times: ``1.25x``."""
    if factor is None or not math.isfinite(factor):
        return _without_digits(factor)
    return f"{factor:.2f}x" if abs(factor) < 99.995 else f"{factor:,.0f}x"


def ratio_text(ratio: float | None) -> str:
    """Write how many times, with one digit more near 1, where it matters.

    >>> ratio_text(1.3149), ratio_text(0.9968), ratio_text(0.0412), ratio_text(None)
    ('1.31x', '0.997x', '0.041x', '-')
    """
    if ratio is None or math.isnan(ratio):
        return UNKNOWN
    if math.isinf(ratio):
        return "inf"
    if 0.9 <= ratio <= 1.1:
        return f"{ratio:.3f}x"
    if ratio < 0.1:
        return f"{ratio:.3f}x" if ratio >= 0.01 else f"{ratio:.2g}x"
    return f"{ratio:.2f}x" if ratio < 99.995 else f"{ratio:,.0f}x"


def value_text(value: float | None, unit: str) -> str:
    """Write a number in its unit: seconds, bytes, shares and rates as they are usually read.

    >>> value_text(0.0025, "s"), value_text(2048, "B"), value_text(0.93, "fraction")
    ('2.50 ms', '2 KiB', '93.0%')
    """
    if unit == "s":
        return seconds_text(value)
    if unit in ("B", "bytes"):
        return bytes_text(value)
    if unit in ("fraction", "share"):
        return percent_text(value)
    if value is None:
        return UNKNOWN
    if unit == "x":
        return ratio_text(value)
    if unit in ("FLOP/s", "B/s"):
        return rate_text(value, unit)
    digits = f"{value:.4g}" if abs(value) < 1e3 else count_text(value)
    return f"{digits} {unit}".rstrip()


def range_text(interval: Iterable[float], write: Callable[[float], str]) -> str:
    """Write both ends of an interval: ``2.31 ms to 2.46 ms``; an open end is a dash."""
    return " to ".join(write(end) if math.isfinite(end) else UNKNOWN for end in interval)


def date_text(moment: str) -> str:
    """Write a moment without its seconds; it is UTC."""
    return moment[:16].replace("T", " ")


def _scaled(
    number: float | None,
    space: str,
    unit: str,
    *,
    base: int = 1000,
    prefixes: Sequence[str] = PREFIXES,
) -> str:
    if number is None or not math.isfinite(number):
        return _without_digits(number)
    power = 0
    # 999.7 thousand rounds to 1000 thousand, which is better called one million.
    while float(f"{abs(number):.3g}") >= 1000 and power < len(prefixes) - 1:
        number, power = number / base, power + 1
    is_whole = float(number).is_integer() and (power == 0 or base == 1024)
    digits = f"{number:.0f}" if is_whole else _three_digits(number)
    return f"{digits}{space}{prefixes[power]}{unit}".rstrip()


def _three_digits(number: float) -> str:
    """Write three significant digits without an exponent: 8.50, 41.2, 455."""
    size = float(f"{abs(number):.3g}")
    if size == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(size)))
    return f"{number:.{min(decimals, 6)}f}"


NUMBER = re.compile(r"\d[\d.]*")


def without_numbers(text: str) -> str:
    """Return a key that texts share which differ in their numbers alone, to show one for all."""
    return NUMBER.sub("#", text)


def _without_digits(number: float | None) -> str:
    if number is None or math.isnan(number):
        return UNKNOWN
    return "inf" if number > 0 else "-inf"


# ---------------------------------------------------------------- bars made of letters

EIGHTHS = "▏▎▍▌▋▊▉█"


def share_bar(share: float, width: int) -> str:
    """Draw a share of 1 as a bar, padded to `width`; what is there but tiny is a thin line.

    >>> share_bar(0.5, 4), share_bar(0.0, 4)
    ('██  ', '    ')
    """
    if math.isnan(share):
        return " " * width
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest - 1] if rest else "")).ljust(width)


# ---------------------------------------------------------------- pictures made of letters, for
# terminals

BARS = "▁▂▃▄▅▆▇█"
BRAILLE_START = 0x2800
# The bit of each dot of a braille letter, four rows of two.
BRAILLE_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Draw values as a row of bars; many values are averaged into `width` of them."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return ""
    pieces = np.array_split(np.array(finite), min(width, len(finite)))
    means = np.array([piece.mean() for piece in pieces])
    low, high = means.min(), means.max()
    heights = (means - low) / (high - low) if high > low else np.zeros_like(means)
    return "".join(BARS[round(height * (len(BARS) - 1))] for height in heights)


def braille_image(image: npt.NDArray[np.floating] | npt.NDArray[np.bool_], threshold: float) -> str:
    """Draw the bright pixels of an image, eight to a letter, as lines of text."""
    rows, columns = -(-image.shape[0] // 4), -(-image.shape[1] // 2)
    bright = np.zeros((4 * rows, 2 * columns), dtype=np.int64)
    bright[: image.shape[0], : image.shape[1]] = image > threshold
    cells = bright.reshape(rows, 4, columns, 2).transpose(0, 2, 1, 3)
    codes = BRAILLE_START + (cells * BRAILLE_DOTS).sum(axis=(2, 3))
    return "\n".join("".join(chr(code) for code in line) for line in codes)


# ---------------------------------------------------------------- a small picture of a trend with
# logarithmic axes, made of letters

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
    return framed(grid, labels, _ticks(marks, column, x_text, columns))


def framed(grid: Sequence[Sequence[str]], labels: Sequence[str], ticks: str) -> str:
    """Return a canvas with `labels` spread evenly beside it, and `ticks` below its axis."""
    room = max(map(len, labels))
    beside = [""] * len(grid)
    for place, label in enumerate(labels):
        beside[place * (len(grid) - 1) // (len(labels) - 1)] = label
    lines = [
        f"{label:>{room}}{BESIDE}{''.join(line)}" for label, line in zip(beside, grid, strict=True)
    ]
    axis = f"{'':>{room}} └{'─' * len(grid[0])}"
    return "\n".join(line.rstrip() for line in (*lines, axis, f"{'':>{room}}  {ticks}"))


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
