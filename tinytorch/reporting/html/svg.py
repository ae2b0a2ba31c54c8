"""Scales for pictures, and small drawings of a fixed size; charts are made by plot.py.

Colours come from the page's style, by class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinytorch.reporting.html.markup import Markup, element

__all__ = ["Scale", "drawing", "polyline", "text"]

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
        """Give round values inside, at most so many."""
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
    """Give a picture that shrinks with the page; `label` is for those who do not see it.

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


def _log_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Give 1, 2, 5 times powers of ten, or only powers where these would be too many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits in ((1, 2, 5), (1,)):
        found = [d * 10.0**p for p in range(first, last + 1) for d in digits]
        inside = tuple(x for x in found if low * (1 - 1e-9) <= x <= high * (1 + 1e-9))
        if len(inside) <= most:
            return inside
    every = math.ceil(len(inside) / most)
    return inside[::every]
