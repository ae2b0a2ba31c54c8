"""The roofline in letters: what a machine allows, and where the layers of a model stand below it.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from string import ascii_uppercase
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from tinytorch.errors import SettingError
from tinytorch.measure.ceilings import Bandwidth
from tinytorch.profiling.profile import BottleneckFacts, describe_hotspot
from tinytorch.reporting.profile_words import hotspot_label
from tinytorch.reporting.quantities import (
    Column,
    FittingTable,
    braille_image,
    bytes_text,
    count_text,
    percent_text,
    rate_text,
)

if TYPE_CHECKING:
    from tinytorch.profiling.profile import Profile

__all__ = [
    "INDENT",
    "ROWS",
    "Roofline",
    "RooflinePoint",
    "find_roofline",
    "ridge_mark",
    "roofline_picture",
    "roofline_view",
]


# ---------------------------------------------------------------- what a roofline shows of a
# profile, and the words beside it, in letters or on a page


@dataclass(frozen=True)
class Roofline:
    """The slowest layers of a profile, and the ceilings above them.

    `peak` is that of `dtype` in FLOP/s, `home` the level of memory that holds what a call touches.
    """

    dtype: str
    peak: float
    bandwidths: tuple[Bandwidth, ...]
    home: Bandwidth
    working_set_bytes: int
    found: tuple[BottleneckFacts, ...]

    @property
    def ridge(self) -> float:
        """Give the FLOP per byte from which on computing is the limit."""
        return self.peak / self.home.ceiling

    def reached(self, found: BottleneckFacts) -> float:
        """Give the FLOP/s of some layers."""
        return (found.of_peak or 0) * self.peak

    def explanation(self, *, ridge_mark: str, point: str) -> Iterator[str]:
        """Yield sentences on how to read the picture, in which a layer is a `point`."""
        ridge = f"{ridge_mark} ({count_text(self.ridge)} FLOP per byte)"
        yield (
            f"The line is what is possible here. It rises with the bandwidth of {self.home.level}, "
            f"{rate_text(self.home.ceiling, 'B/s')}, which holds the "
            f"{bytes_text(self.working_set_bytes)} that a call touches, up to the {self.dtype} "
            f"peak. Left of {ridge} moving bytes is the limit, right of it computing. The further "
            f"a {point} is below the line, the faster its layers could be."
        )
        others = sorted(self.bandwidths, key=lambda each: -each.ceiling)
        named = [f"{x.level} {rate_text(x.ceiling, 'B/s')}" for x in others if x is not self.home]
        if named:
            yield f"Dotted, from left: {', '.join(named)}."
        if any((each.of_attainable or 0) > 1 for each in self.found):
            yield (
                "What is above the line had its bytes in a faster level, or a ceiling or a count "
                "is wrong."
            )


def find_roofline(profile: Profile, most: int) -> Roofline | None:
    """Give the slowest layers, at most so many, below the roof of the profile's dtype.

    None without ceilings, and where no layer has a bound. Layers without FLOPs have no place on
    logarithmic axes.
    """
    ceilings = profile.ceilings
    peak = ceilings.peak_flops(profile.dtype) if ceilings else None
    found = (describe_hotspot(profile, hotspot) for hotspot in profile.hotspots)
    placed = (each for each in found if each.bound and each.intensity)
    drawn = tuple(islice(placed, most))
    if ceilings is None or peak is None or not drawn:
        return None
    size = profile.working_set_bytes
    level = ceilings.level(size)
    home = next(each for each in ceilings.bandwidths if each.level == level)
    return Roofline(profile.dtype, peak, ceilings.bandwidths, home, size, drawn)


# ---------------------------------------------------------------- the roofline in letters: what a
# machine allows, and where the layers of a model stand below it

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
MOST_POINTS = 6


@dataclass(frozen=True)
class RooflinePoint:
    """A piece of work in the picture: its FLOP per byte moved, and the FLOP/s that it reached."""

    letter: str
    intensity: float
    flops_per_s: float

    def __post_init__(self) -> None:
        if len(self.letter) != 1:
            raise SettingError(f"letter={self.letter!r}; a point has room for exactly one letter")
        for name in ("intensity", "flops_per_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise SettingError(f"{name}={value}; axes are logarithmic: give a positive number")


@dataclass(frozen=True)
class _Frame:
    """Where numbers lie in the picture: powers of two across and up."""

    left: float
    right: float
    bottom: float
    top: float

    def column(self, intensity: float, width: int) -> int:
        """Give the column; one left or right of the picture is not between 0 and `width`."""
        share = (math.log2(intensity) - self.left) / (self.right - self.left)
        return math.floor(share * width)

    def row(self, flops: float, height: int) -> int:
        """Give the row, counted from the top."""
        share = (self.top - math.log2(flops)) / (self.top - self.bottom)
        return math.floor(share * height)

    def intensities(self, width: int) -> npt.NDArray[np.float64]:
        """Give the intensity in the middle of each column."""
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

    Every level of the memory is a slope, every dtype of `peaks` (FLOP/s) a flat roof. With `home`,
    the level that the bytes come from, its slope and the roofs behind it are lines and everything
    else is dotted. A mark on the axis shows where the slope of `home`, or else of the last level,
    meets a roof. Of `points` in one place the first is drawn; a line below names them all. `plain`
    is ASCII only.
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


def ridge_mark(*, plain: bool = False) -> str:
    """Give the letter that marks a ridge on the axis."""
    return "^" if plain else "▲"


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
    """Give the letters at each row and column, in the order of the points."""
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
    """Give the text beside each row; roofs that are close together stand below each other."""
    labels: dict[int, str] = {}
    for dtype, peak in peaks.items():
        row = frame.row(peak, ROWS)
        while row in labels:
            row += 1
        if 0 <= row < ROWS:
            labels[row] = f"{dtype} {count_text(peak)}"
    return labels


def _powers_of_ten(low: float, high: float) -> list[float]:
    """Give the powers of ten between two logarithms of base two."""
    first, last = math.ceil(low * math.log10(2)), math.floor(high * math.log10(2))
    return [10.0**power for power in range(first, last + 1)]


def _upright_labels(frame: _Frame) -> dict[int, str]:
    """Give the text before each row that stands for a power of ten."""
    powers = _powers_of_ten(frame.bottom, frame.top)
    return {frame.row(power, ROWS): _short(count_text(power)) for power in powers}


def _short(text: str) -> str:
    """Write 100G instead of 100.0G."""
    digits = text.rstrip("kMGTPE")
    return f"{float(digits):g}{text[len(digits) :]}"


def _axis(frame: _Frame, ridges: Sequence[float], columns: int, *, plain: bool) -> str:
    """Give the line below the canvas, with a mark at each ridge."""
    corner, line = ("+", "-") if plain else ("└", "─")
    axis = [line] * columns
    for ridge in ridges:
        column = frame.column(ridge, columns)
        if 0 <= column < columns:
            axis[column] = ridge_mark(plain=plain)
    return f"{'':{INDENT - 1}}{corner}{''.join(axis)} FLOP per byte"


def _axis_labels(frame: _Frame, columns: int) -> str:
    """Give the line of numbers below the axis; what would touch its neighbour is left out."""
    line = ""
    for power in _powers_of_ten(frame.left, frame.right):
        start = frame.column(power, columns)
        if not line or len(line) < start:
            line = f"{line.ljust(start)}{power:g}"
    return line


# ---------------------------------------------------------------- the layers of a profile


def roofline_view(profile: Profile, top: int = MOST_POINTS) -> RenderableType | None:
    """Show the slowest layers, at most six, below the roof of the profile's dtype.

    None without ceilings, and where no layer has a bound.
    """
    found = find_roofline(profile, min(top, MOST_POINTS))
    return None if found is None else _RooflineView(found)


@dataclass(frozen=True)
class _RooflineView:
    """A picture as wide as the terminal allows, its letters explained, and how to read it."""

    roofline: Roofline

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - INDENT - BESIDE
        picture = roofline_picture(
            {self.roofline.dtype: self.roofline.peak},
            self.roofline.bandwidths,
            points=self.points,
            home=self.roofline.home.level,
            columns=max(FEWEST_COLUMNS, min(COLUMNS, room)),
            plain=options.ascii_only,
        )
        for line in picture.split("\n"):
            yield self._line(line)
        yield self._legend()
        mark = ridge_mark(plain=options.ascii_only)
        explanation = self.roofline.explanation(ridge_mark=mark, point="letter")
        yield Text(" ".join(explanation), style="dim")

    @property
    def points(self) -> list[RooflinePoint]:
        return [
            RooflinePoint(letter, each.intensity, self.roofline.reached(each))
            for letter, each in zip(ascii_uppercase, self.roofline.found, strict=False)
            if each.intensity and each.of_peak
        ]

    def _line(self, line: str) -> Text:
        """Give a line of the picture with its points in bold."""
        text = Text(line, no_wrap=True, overflow="crop")
        letters = {point.letter for point in self.points}
        for place, letter in enumerate(line):
            # Elsewhere are words, and a roof's number may end in E.
            if place >= INDENT and line[INDENT - 1] in "│|" and letter in letters:
                text.stylize("bold cyan", place, place + 1)
        return text

    def _legend(self) -> FittingTable:
        found = self.roofline.found
        return FittingTable(
            "",
            [
                Text.assemble((letter, "bold cyan"), "  ", hotspot_label(each))
                for letter, each in zip(ascii_uppercase, found, strict=False)
            ],
            [
                Column("time", [percent_text(each.share) for each in found]),
                Column("FLOP/B", [count_text(each.intensity) for each in found], 2),
                Column("reached", [rate_text(self.roofline.reached(each)) for each in found], 1),
                Column("of possible", [percent_text(each.of_attainable) for each in found]),
            ],
        )
