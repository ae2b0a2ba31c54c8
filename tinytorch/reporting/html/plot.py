"""Pictures that are as wide as the page, with letters of one size on any screen.

Across, places are percentages; upwards, pixels. What a page scales down as a whole, letters and
all, cannot be read on a phone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tinytorch.reporting.document import Picture, Pictures
from tinytorch.reporting.html.markup import Markup, element
from tinytorch.reporting.quantities import BINARY_PREFIXES

# ---------------------------------------------------------------- scales for pictures, and small
# drawings of a fixed size; charts are made by plot.py
#
# Colours come from the page's style, by class.

NICE = (1.0, 2.0, 5.0, 10.0)
FEWEST_LOG_TICKS = 3


@dataclass(frozen=True)
class Scale:
    """From values between `low` and `high` to pixels or percent between `start` and `end`.

    `start` may be the larger one, for axes that go up. What lies outside is put at the end.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __post_init__(self) -> None:
        assert not self.is_log or self.low > 0, f"a logarithmic scale has no place for {self.low}"

    def __call__(self, value: float) -> float:
        low, high, at = (self._inner(x) for x in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 2)

    def ticks(self, most: int = 6) -> tuple[float, ...]:
        """Return round values inside, at most `most` of them."""
        if not self.is_log:
            return self._even_ticks(most)
        found = _log_ticks(self.low, self.high, most)
        # Between 0.9 and 1.1 there is but one power of ten.
        is_empty = len(found) < FEWEST_LOG_TICKS and self.high < 10 * self.low
        return self._even_ticks(most) if is_empty else found

    def _inner(self, value: float) -> float:
        if not self.is_log:
            return value
        return math.log(value) if value > 0 else -math.inf

    def _even_ticks(self, most: int) -> tuple[float, ...]:
        span = self.high - self.low
        if not span > 0:
            return (self.low,)
        rough = span / max(1, most - 1)
        power = 10 ** math.floor(math.log10(rough))
        step = next(n * power for n in NICE if n * power >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        # 3 * 0.1 has a digit too many.
        return tuple(float(f"{(first + place) * step:.12g}") for place in range(count))


def drawing(width: float, height: float, *parts: Markup, label: str, class_: str = "") -> Markup:
    """Return a picture that shrinks with the page; `label` is for those who do not see it.

    On a narrow screen it stops shrinking while its words can be read, and scrolls instead.
    """
    picture = element(
        "svg",
        element("title", label),
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        class_=f"picture {class_}".strip(),
        style=f"--width:{width:g}px",
    )
    return element("div", picture, class_="scroll")


def text(x: float, y: float, words: str, *, class_: str = "label", anchor: str = "start") -> Markup:
    """Write words at a place; `anchor` is start, middle or end."""
    return element("text", words, x=x, y=y, class_=class_, text_anchor=anchor)


def polyline(points: Sequence[tuple[float, float]], *, class_: str) -> Markup:
    """Draw a line through points."""
    steps = " ".join(f"{x:g},{y:g}" for x, y in points)
    return element("polyline", points=steps, class_=class_, fill="none")


PIXEL, GAP, WORDS = 4, 36, 26
"""How large a pixel is drawn, what is between images, and what stands below them."""


def pictures_drawing(chart: Pictures) -> Markup:
    """Draw all images in a row."""
    side = max((max(each.bright.shape) for each in chart.pictures), default=0) * PIXEL
    parts = [
        part
        for place, each in enumerate(chart.pictures)
        for part in _picture(each, place * (side + GAP), side)
    ]
    label = "; ".join(each.text for each in chart.pictures)
    width = max(1, len(chart.pictures)) * (side + GAP) - GAP
    return drawing(width, side + WORDS, *parts, label=label)


def _picture(picture: Picture, left: float, side: float) -> list[Markup]:
    class_ = f"label {picture.tone}".strip()
    return [
        element("path", d=_runs(picture, left), fill="var(--ink)"),
        text(left + side / 2, side + 18, picture.text, class_=class_, anchor="middle"),
    ]


def _runs(picture: Picture, left: float) -> str:
    """Return the bright pixels of each row as boxes."""
    bright = np.pad(picture.bright, ((0, 0), (1, 1))).astype(np.int8)
    rows, columns = np.nonzero(np.diff(bright, axis=1))
    begins, ends = columns[::2], columns[1::2]
    return "".join(
        f"M{left + PIXEL * begin} {PIXEL * row}h{PIXEL * (end - begin)}v{PIXEL}"
        f"h{PIXEL * (begin - end)}z"
        for row, begin, end in zip(rows[::2], begins, ends, strict=True)
    )


def _log_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Return 1, 2, 5 times powers of ten, or only powers where these would be too many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits in ((1, 2, 5), (1,)):
        found = [d * 10.0**p for p in range(first, last + 1) for d in digits]
        inside = tuple(x for x in found if low * (1 - 1e-9) <= x <= high * (1 + 1e-9))
        if len(inside) <= most:
            return inside
    every = math.ceil(len(inside) / most)
    return inside[::every]


# ---------------------------------------------------------------- pictures that are as wide as the
# page, with letters of one size on any screen

STRETCHED = 1000
"""Units across a path that is stretched to the width of its picture."""
DOT_STYLE = (
    "stroke:var(--tone);stroke-width:3.6;stroke-linecap:round;stroke-opacity:.75;fill:none;"
    "vector-effect:non-scaling-stroke"
)
NARROWEST, WIDEST = 220.0, 1200.0
"""Pixels across a picture has, on a phone and at most."""
TICK_LETTER = 6.5
"""How wide a letter below an axis is."""
LEAST_FOR_WORDS = 3.0
"""A cell has room for a word from so many percent of the picture on."""


def across(place: float) -> str:
    """Write a place between 0 and 100 as a percentage of the width."""
    return f"{place:.4g}%"


def plot(
    height: float,
    *parts: Markup,
    label: str,
    left: int = 64,
    right: int = 12,
    top: int = 10,
    bottom: int = 24,
    class_: str = "",
) -> Markup:
    """Return a picture with room for words around it; `label` is for those who do not see it."""
    picture = element(
        "svg",
        element("title", label),
        *parts,
        role="img",
        class_=f"fluid {class_}".strip(),
        style=f"height:{height:g}px",
    )
    return element(
        "div", picture, class_="plot", style=f"padding:{top}px {right}px {bottom}px {left}px"
    )


def tick_text(write: Callable[[float], str]) -> Callable[[float], str]:
    """Write round values without digits that say nothing: ``10G`` instead of ``10.0G``."""

    def short(value: float) -> str:
        text = write(value)
        digits = re.match(r"-?[\d.]+", text)
        return f"{float(digits[0]):g}{text[digits.end() :]}" if digits else text

    return short


def bytes_axis(most: float, height: float) -> list[Markup]:
    """Draw lines across at round numbers of KiB, MiB or GiB up to `most`."""
    power = min(math.floor(math.log(max(most, 1), 1024)), len(BINARY_PREFIXES) - 1)

    def write(size: float) -> str:
        return f"{size:g} {BINARY_PREFIXES[power]}B" if size else "0 B"

    return upright_axis(Scale(0.0, most / 1024**power, height, 0), write)


def words(
    place: float, y: float, text: str, *, class_: str = "label", anchor: str = "start", dx: int = 0
) -> Markup:
    """Write words at a place across, moved by some pixels."""
    return element(
        "text", text, x=across(place), y=y, class_=class_, text_anchor=anchor, dx=dx or None
    )


def upright_axis(scale: Scale, write: Callable[[float], str], *, most: int = 5) -> list[Markup]:
    """Draw a line across at round values, with their labels before it."""
    parts, short = [], tick_text(write)
    for tick in scale.ticks(most):
        y = scale(tick)
        parts.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        parts.append(element("text", short(tick), x=-8, y=y + 4, class_="tick", text_anchor="end"))
    return parts


def across_axis(
    scale: Scale, height: float, write: Callable[[float], str], *, most: int = 5
) -> list[Markup]:
    """Draw an upright line at round values, with labels below where there is room on a phone.

    The scale is in percent.
    """
    parts, short, last = [], tick_text(write), -math.inf
    for tick in scale.ticks(most):
        x, text = scale(tick), short(tick)
        anchor = "start" if x < 2 else "end" if x > 98 else "middle"
        wide = len(text) * TICK_LETTER
        left = x / 100 * NARROWEST - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
        parts.append(upright_line(x, 0, height, class_="grid"))
        if left >= last + TICK_LETTER:
            parts.append(words(x, height + 16, text, class_="tick", anchor=anchor))
            last = left + wide
    return parts


def upright_line(place: float, top: float, bottom: float, *, class_: str | None) -> Markup:
    """Draw a line upwards at a place across."""
    x = across(place)
    return element("line", x1=x, x2=x, y1=top, y2=bottom, class_=class_)


def stretched(
    part: Markup, height: float, *, y: float = 0, units: float = STRETCHED, class_: str = ""
) -> Markup:
    """Return a canvas for paths, which know no percentages: `units` across, pixels upwards."""
    return element(
        "svg",
        part,
        viewBox=f"0 0 {units:g} {height:g}",
        preserveAspectRatio="none",
        width="100%",
        height=height,
        y=y or None,
        overflow="visible",
        class_=class_ or None,
    )


def dots(places: Sequence[tuple[float, float]], *, class_: str, title: str) -> Markup:
    """Draw many round dots as one path, which takes a fifth of the letters of many circles.

    They stay round where the path is stretched.
    """
    steps = "".join(f"M{x:.4g} {y:.4g}h0" for x, y in places)
    return element("path", element("title", title), d=steps, class_=class_, style=DOT_STYLE)


def stretched_steps(
    places: Sequence[float],
    lower: Sequence[float],
    upper: Sequence[float],
    height: float,
    *,
    class_: str,
    title: str = "",
) -> Markup:
    """Fill what lies between two stairs, stretched to the whole width of the picture.

    A stair has one level in pixels from each place (percent) until the next; the last one lasts
    until the end.
    """
    forth, back = _stairs(places, upper), _stairs(places, lower)
    steps = f"M0 {back[0][1]:g}" + "".join(f"V{y:g}H{end:g}" for _, y, end in forth)
    steps += "".join(f"V{y:g}H{start:g}" for start, y, _ in reversed(back)) + "Z"
    path = element("path", *([element("title", title)] if title else []), d=steps)
    return stretched(path, height, class_=class_)


def _stairs(places: Sequence[float], levels: Sequence[float]) -> list[tuple[float, float, float]]:
    """Return the steps as (start, level, end) in units of a stretched path, equal ones as one."""
    steps: list[tuple[float, float, float]] = []
    ends = [*places[1:], 100.0]
    for place, end, level in zip(places, ends, levels, strict=True):
        start, stop = (round(x * STRETCHED / 100, 1) for x in (place, end))
        y = round(level, 1)
        if steps and steps[-1][1] == y:
            steps[-1] = steps[-1][0], y, stop
        else:
            steps.append((start, y, stop))
    return steps


def cell(
    place: float, width: float, y: float, height: float, *, name: str, title: str, class_: str
) -> Markup:
    """Return a box with a name in it, cut off where the box ends; place and width in percent."""
    named = width >= LEAST_FOR_WORDS
    return element(
        "svg",
        element("title", title),
        element("rect", class_=class_),
        element("text", name, x=5, y=round(height * 0.7, 1)) if named else Markup(""),
        x=across(place),
        y=y,
        width=across(width),
        height=height,
    )


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Explain colours: pairs of a class such as ``series-1`` and what it stands for."""
    return element(
        "ul", *(element("li", text, class_=name) for name, text in entries), class_="legend"
    )


# ---------------------------------------------------------------- letters beside points: they cover
# neither points nor each other, at any width of the picture

LETTER, LINE = 8.0, 13.0
"""How wide a letter of a label is, and how high a line."""
RINGS = (10.0, 18.0, 28.0, 40.0, 54.0)
"""How many pixels beyond the edge of its point a label is tried, the nearest first."""
DIRECTIONS = ((1, 0), (-1, 0), (0, -1), (0, 1), (0.8, -0.7), (-0.8, -0.7), (0.8, 0.7), (-0.8, 0.7))


@dataclass(frozen=True)
class Spot:
    """A point with its letters: percent across, pixels upwards, and its radius."""

    x: float
    y: float
    text: str
    radius: float = 5.5


@dataclass(frozen=True)
class Box:
    """A part of a picture; `left` and `right` are pixels beside a place in percent."""

    x: float
    left: float
    right: float
    top: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Tell whether they share anything at some width: what keeps its side at both ends does."""
        if self.bottom <= other.top or other.bottom <= self.top:
            return False
        widths = (NARROWEST, WIDEST)
        is_left = all(self._end(self.right, w) <= other._end(other.left, w) for w in widths)
        is_right = all(other._end(other.right, w) <= self._end(self.left, w) for w in widths)
        return not (is_left or is_right)

    def is_inside(self, height: float) -> bool:
        """Tell whether it is between the axes at every width."""
        is_across = all(
            self._end(self.left, w) >= 0 and self._end(self.right, w) <= w
            for w in (NARROWEST, WIDEST)
        )
        return is_across and self.top >= 0 and self.bottom <= height

    def _end(self, beside: float, width: float) -> float:
        return self.x * width / 100 + beside


def placed_labels(
    spots: Sequence[Spot], height: float, taken: Sequence[Box] = ()
) -> list[tuple[Spot, Box]]:
    """Return a box for the letters of each spot, as near to it as there is room.

    Spots in one place share a label. What finds no room has none.
    """
    together: dict[tuple[int, int], Spot] = {}
    for each in spots:
        place = (round(each.x), round(each.y / 3))
        known = together.get(place)
        together[place] = replace(known, text=f"{known.text}, {each.text}") if known else each
    boxes = [*taken, *(_dot_box(each) for each in spots)]
    found: list[tuple[Spot, Box]] = []
    for spot in together.values():
        options = (box for box in _options(spot) if box.is_inside(height))
        free = next((b for b in options if not any(b.overlaps(other) for other in boxes)), None)
        if free is not None:
            boxes.append(free)
            found.append((spot, free))
    return found


def labels(spots: Sequence[Spot], height: float, taken: Sequence[Box] = ()) -> list[Markup]:
    """Write letters beside their points, with a line to those that stand further away."""
    parts = []
    for spot, box in placed_labels(spots, height, taken):
        dx, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
        if math.hypot(dx, y - spot.y) > spot.radius + RINGS[1]:
            near = f"M0 0L{dx:.4g} {y - spot.y:.4g}"
            line = element("path", d=near, class_="leader")
            parts.append(element("svg", line, x=across(spot.x), y=spot.y, overflow="visible"))
        parts.append(
            words(
                spot.x, y + 4, spot.text, class_="label halo letter", anchor="middle", dx=round(dx)
            )
        )
    return parts


def _dot_box(spot: Spot) -> Box:
    r = spot.radius
    return Box(spot.x, -r, r, spot.y - r, spot.y + r)


def _options(spot: Spot) -> Iterator[Box]:
    half = LETTER * len(spot.text) / 2
    for ring in RINGS:
        for across_by, up_by in DIRECTIONS:
            dx = across_by * (spot.radius + ring - 4 + half)
            y = spot.y + up_by * (spot.radius + ring)
            yield Box(spot.x, dx - half, dx + half, y - LINE / 2, y + LINE / 2)


# ---------------------------------------------------------------- pictures in their place: under
# their titles, beside each other where there is room


def figure(picture: Markup, *, title: str, about: str = "") -> Markup:
    """Put a picture under its title, and a few words about it."""
    caption = element("figcaption", element("b", title), f" {about}" if about else "")
    return element("figure", caption, picture)


def beside(*figures: Markup) -> Markup:
    """Put figures in rows of two, or below each other; the last one fills its row."""
    return element("div", *figures, class_="beside")
