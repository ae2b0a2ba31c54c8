"""Small images of two colours beside each other, with words below each."""

from __future__ import annotations

import numpy as np

from tinytorch.reporting.document import Picture, Pictures
from tinytorch.reporting.html.markup import Markup, element
from tinytorch.reporting.html.plot import drawing, text

__all__ = ["pictures_drawing"]

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
