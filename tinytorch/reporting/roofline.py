"""The roofline in letters: what a machine allows, and where the layers of a model stand below it.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.text import Text

from tinytorch.errors import SettingError
from tinytorch.measure.ceilings import Bandwidth
from tinytorch.reporting.document import Chart
from tinytorch.reporting.quantities import braille_image, count_text

COLUMNS, ROWS = 50, 15
FEWEST_COLUMNS = 20
INDENT = 8
"""The letters before the canvas: numbers and the upright axis."""
BESIDE = 15
"""The letters after the canvas: a roof with its number, or the name of the axis."""
REFERENCE = "float32"
"""The dtype whose roof must be well inside the picture."""
MARGIN = 4.0
"""How far the picture reaches beyond the first and last ridge, as a factor."""
HEADROOM = 1.6
POINT_MARGIN = 1.5
"""How far the picture reaches beyond a point, as a factor."""
EMPTY_BRAILLE = "\u2800"
"""A space that some fonts draw as empty circles."""
DOTTED_EVERY = 4
"""Of the lines that do not count for a model, every so manieth dot is drawn."""


@dataclass(frozen=True)
class RooflinePoint:
    """A piece of work in the picture: its FLOP per byte moved, and the FLOP/s that it achieved.

    Without a letter it is a small dot on the page, and left out of letters. `weight` is its part
    of the time, `title` what is said about it.
    """

    letter: str
    intensity: float
    flops_per_s: float
    weight: float = 0.0
    title: str = ""

    def __post_init__(self) -> None:
        if len(self.letter) > 1:
            raise SettingError(f"letter={self.letter!r}; a point has room for exactly one letter")
        for name in ("intensity", "flops_per_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise SettingError(f"{name}={value}; axes are logarithmic: give a positive number")


@dataclass(frozen=True)
class Roofline(Chart):
    """FLOP/s over FLOP per byte: a slope for each level of the memory, a roof for each dtype.

    `peaks` are FLOP/s by dtype. With `home`, the level that the bytes come from, its slope and the
    roofs behind it are lines and everything else is dotted.
    """

    peaks: Mapping[str, float]
    bandwidths: Sequence[Bandwidth]
    points: Sequence[RooflinePoint] = ()
    home: str | None = None


def roofline_letters(chart: Roofline, width: int, ascii_only: bool) -> Text:
    """Draw a roofline for a terminal, with its points in bold."""
    points = [point for point in chart.points if point.letter]
    columns = max(FEWEST_COLUMNS, min(COLUMNS, width - INDENT - BESIDE))
    picture = roofline_picture(
        chart.peaks,
        chart.bandwidths,
        points=points,
        home=chart.home,
        columns=columns,
        plain=ascii_only,
    )
    text = Text(no_wrap=True, overflow="crop")
    letters = {point.letter for point in points}
    for line in picture.splitlines(keepends=True):
        # Elsewhere are words, and a roof's number may end in E.
        is_canvas = len(line) >= INDENT and line[INDENT - 1] in "│|"
        for place, letter in enumerate(line):
            is_point = is_canvas and 0 <= place - INDENT < columns and letter in letters
            text.append(letter, "bold cyan" if is_point else "")
    return text


@dataclass(frozen=True)
class _Frame:
    """Where numbers lie in the picture: powers of two across and up."""

    left: float
    right: float
    bottom: float
    top: float

    def column(self, intensity: float, width: int) -> int:
        """Return the column; one left or right of the picture is not between 0 and `width`."""
        share = (math.log2(intensity) - self.left) / (self.right - self.left)
        return math.floor(share * width)

    def row(self, flops: float, height: int) -> int:
        """Return the row, counted from the top."""
        share = (self.top - math.log2(flops)) / (self.top - self.bottom)
        return math.floor(share * height)

    def intensities(self, width: int) -> npt.NDArray[np.float64]:
        """Return the intensity in the middle of each column."""
        return np.exp2(self.left + (self.right - self.left) * (np.arange(width) + 0.5) / width)


def roofline_picture(
    peaks: Mapping[str, float],
    bandwidths: Sequence[Bandwidth],
    *,
    points: Sequence[RooflinePoint] = (),
    home: str | None = None,
    columns: int = COLUMNS,
    plain: bool = False,
) -> str:
    """Draw the roofline: FLOP/s over FLOP per byte, both logarithmic.

    A mark on the axis is the ridge point of `home`, or else of the last level. Of `points` in one
    place the first is drawn; a line below names them all. `plain` is ASCII only.
    """
    _check(peaks, bandwidths, home, columns)
    peaks = dict(sorted(peaks.items(), key=lambda item: -item[1]))
    frame = _frame(peaks, bandwidths, points)
    places = _places(points, frame, columns)
    lines = _canvas(peaks, bandwidths, frame, home=home, columns=columns, plain=plain)
    upright = "|" if plain else "│"
    roofs, ticks = _roof_labels(peaks, frame), _upright_labels(frame)
    picture = ["FLOP/s".rjust(INDENT - 1)]
    for row, line in enumerate(lines):
        letters = list(line)
        for (its_row, column), sharing in places.items():
            if its_row == row:
                letters[column] = sharing[0]
        beside = f"{upright}{''.join(letters)} {roofs.get(row, '')}"
        picture.append(f"{ticks.get(row, ''):>{INDENT - 2}} {beside}".rstrip())
    meeting = next((each for each in bandwidths if each.level == home), bandwidths[-1])
    ridges = [peak / meeting.ceiling for peak in peaks.values()]
    picture.append(_axis(frame, ridges, columns, plain=plain))
    picture.append(f"{'':{INDENT}}{_axis_labels(frame, columns)}")
    together = "; ".join(", ".join(sharing) for sharing in places.values() if len(sharing) > 1)
    if together:
        picture.append(f"{'':{INDENT}}in one place: {together}")
    return "\n".join(picture)


def _check(
    peaks: Mapping[str, float], bandwidths: Sequence[Bandwidth], home: str | None, columns: int
) -> None:
    if not peaks or not bandwidths:
        seen = f"{len(peaks)} peaks and {len(bandwidths)} bandwidths"
        raise SettingError(f"{seen}; a roofline needs at least one of each")
    levels = [each.level for each in bandwidths]
    if home is not None and home not in levels:
        raise SettingError(f"home={home!r}; the levels are {', '.join(levels)}")
    if columns < FEWEST_COLUMNS:
        raise SettingError(f"columns={columns}; a roofline needs at least {FEWEST_COLUMNS}")


# ---------------------------------------------------------------- the drawing


def _frame(
    peaks: Mapping[str, float], bandwidths: Sequence[Bandwidth], points: Sequence[RooflinePoint]
) -> _Frame:
    fastest = max(each.ceiling for each in bandwidths)
    slowest = min(each.ceiling for each in bandwidths)
    top = max(peaks.values())
    first = peaks.get(REFERENCE, top) / fastest / MARGIN
    across, up = [first, top / slowest * MARGIN], [first * slowest, top * HEADROOM]
    for point in points:
        across += [point.intensity / POINT_MARGIN, point.intensity * POINT_MARGIN]
        up += [point.flops_per_s / POINT_MARGIN, point.flops_per_s * POINT_MARGIN]
    return _Frame(*(math.log2(end) for end in (min(across), max(across), min(up), max(up))))


def _places(
    points: Sequence[RooflinePoint], frame: _Frame, columns: int
) -> dict[tuple[int, int], list[str]]:
    """Return the letters at each row and column, in the order of the points."""
    places: dict[tuple[int, int], list[str]] = defaultdict(list)
    for point in points:
        place = frame.row(point.flops_per_s, ROWS), frame.column(point.intensity, columns)
        places[place].append(point.letter)
    return places


def _canvas(
    peaks: Mapping[str, float],
    bandwidths: Sequence[Bandwidth],
    frame: _Frame,
    *,
    home: str | None,
    columns: int,
    plain: bool,
) -> list[str]:
    """Draw slopes and roofs as lines of text."""
    across, down = (1, 1) if plain else (2, 4)  # the dots of a letter
    width, height = columns * across, ROWS * down
    slopes, roofs, dotted = (np.zeros((height, width)) for _ in range(3))
    top, fastest = max(peaks.values()), max(each.ceiling for each in bandwidths)
    solid_from = next((each.ceiling for each in bandwidths if each.level == home), fastest)
    for column, intensity in enumerate(frame.intensities(width)):
        for each in bandwidths:
            if each.ceiling * intensity <= top:
                image = slopes if home in (None, each.level) else dotted
                _mark(image, frame.row(each.ceiling * intensity, height), column)
        for peak in peaks.values():
            if fastest * intensity >= peak:
                image = roofs if solid_from * intensity >= peak else dotted
                _mark(image, frame.row(peak, height), column)
    if plain:
        slope = "." if home is None else "+"
        letters = np.where(dotted > 0, ".", " ")
        letters = np.where(roofs > 0, "-", np.where(slopes > 0, slope, letters))
        return ["".join(line) for line in letters]
    dotted[:, np.arange(width) % DOTTED_EVERY > 0] = 0
    picture = braille_image(np.maximum(np.maximum(slopes, roofs), dotted), 0.5)
    return picture.replace(EMPTY_BRAILLE, " ").split("\n")


def _mark(image: npt.NDArray[np.float64], row: int, column: int) -> None:
    if 0 <= row < len(image):
        image[row, column] = 1


def _roof_labels(peaks: Mapping[str, float], frame: _Frame) -> dict[int, str]:
    """Return the text beside each row; roofs that are close together stand below each other."""
    labels: dict[int, str] = {}
    for dtype, peak in peaks.items():
        row = frame.row(peak, ROWS)
        while row in labels:
            row += 1
        if 0 <= row < ROWS:
            labels[row] = f"{dtype} {count_text(peak)}"
    return labels


def _powers_of_ten(low: float, high: float) -> list[float]:
    """Return the powers of ten between two logarithms of base two."""
    first, last = math.ceil(low * math.log10(2)), math.floor(high * math.log10(2))
    return [10.0**power for power in range(first, last + 1)]


def _upright_labels(frame: _Frame) -> dict[int, str]:
    """Return the text before each row that stands for a power of ten."""
    powers = _powers_of_ten(frame.bottom, frame.top)
    return {frame.row(power, ROWS): _short(count_text(power)) for power in powers}


def _short(text: str) -> str:
    """Write 100G instead of 100.0G."""
    digits = text.rstrip("kMGTPE")
    return f"{float(digits):g}{text[len(digits) :]}"


def _axis(frame: _Frame, ridges: Sequence[float], columns: int, *, plain: bool) -> str:
    """Return the line below the canvas, with a mark at each ridge."""
    corner, line = ("+", "-") if plain else ("└", "─")
    axis = [line] * columns
    for ridge in ridges:
        column = frame.column(ridge, columns)
        if 0 <= column < columns:
            axis[column] = "^" if plain else "▲"
    return f"{'':{INDENT - 1}}{corner}{''.join(axis)} FLOP per byte"


def _axis_labels(frame: _Frame, columns: int) -> str:
    """Return the line of numbers below the axis; what would touch its neighbour is left out."""
    line = ""
    for power in _powers_of_ten(frame.left, frame.right):
        start = frame.column(power, columns)
        if not line or len(line) < start:
            line = f"{line.ljust(start)}{power:g}"
    return line
