"""Pictures that are as wide as the page, with letters of one size on any screen.

Across, places are percentages; upwards, pixels. What a page scales down as a whole, letters and
all, cannot be read on a phone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from tinytorch.reporting.html.markup import Markup, element
from tinytorch.reporting.html.svg import Scale
from tinytorch.reporting.quantities import bytes_text

__all__ = [
    "across",
    "across_axis",
    "bytes_axis",
    "cell",
    "dots",
    "legend",
    "plot",
    "stretched",
    "stretched_steps",
    "tick_text",
    "upright_axis",
    "upright_line",
    "words",
]

STRETCHED = 1000
"""Units across a path that is stretched to the width of its picture."""
DOT_STYLE = (
    "stroke:var(--tone);stroke-width:3.6;stroke-linecap:round;stroke-opacity:.75;fill:none;"
    "vector-effect:non-scaling-stroke"
)
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
    """Give a picture with room for words around it; `label` is for those who do not see it."""
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
    unit = 1024 ** max(0, math.floor(math.log(max(most, 1), 1024)))
    scale = Scale(0.0, most / unit, height, 0)
    return upright_axis(scale, lambda size: bytes_text(size * unit))


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
    """Draw an upright line at round values, with their labels below. The scale is in percent."""
    parts, short = [], tick_text(write)
    for tick in scale.ticks(most):
        x = scale(tick)
        anchor = "start" if x < 2 else "end" if x > 98 else "middle"
        parts.append(upright_line(x, 0, height, class_="grid"))
        parts.append(words(x, height + 16, short(tick), class_="tick", anchor=anchor))
    return parts


def upright_line(place: float, top: float, bottom: float, *, class_: str | None) -> Markup:
    """Draw a line upwards at a place across."""
    x = across(place)
    return element("line", x1=x, x2=x, y1=top, y2=bottom, class_=class_)


def stretched(
    part: Markup, height: float, *, y: float = 0, units: float = STRETCHED, class_: str = ""
) -> Markup:
    """Give room for paths, which know no percentages: `units` across, pixels upwards."""
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
    """Give the steps as (start, level, end) in units of a stretched path, equal ones as one."""
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
    """Give a box with a name in it, cut off where the box ends; place and width in percent."""
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
