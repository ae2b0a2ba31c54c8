"""Pictures made of letters, for terminals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["braille_image", "sparkline"]

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


def braille_image(image: npt.NDArray[np.floating], threshold: float) -> str:
    """Draw the bright pixels of an image, eight to a letter, as lines of text."""
    rows, columns = -(-image.shape[0] // 4), -(-image.shape[1] // 2)
    bright = np.zeros((4 * rows, 2 * columns), dtype=np.int64)
    bright[: image.shape[0], : image.shape[1]] = image > threshold
    cells = bright.reshape(rows, 4, columns, 2).transpose(0, 2, 1, 3)
    codes = BRAILLE_START + (cells * BRAILLE_DOTS).sum(axis=(2, 3))
    return "\n".join("".join(chr(code) for code in line) for line in codes)
