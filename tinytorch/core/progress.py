"""A line that shows how far long work has come."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TextIO

__all__ = ["ProgressLine"]

WIDTH = 24
PATIENCE_S = 2.0
REDRAW_S = 0.1


class ProgressLine:
    """One line on a terminal that redraws itself, once the work takes longer than two seconds.

    Nothing is written when the stream is not a terminal.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total = max(1, total)
        self.done = 0
        self._stream = sys.stderr if stream is None else stream
        self._visible = self._stream.isatty()
        self._next_draw = monotonic() + PATIENCE_S
        self._drawn = False

    def advance(self, text: str = "") -> None:
        """Count one step and say what is known so far."""
        self.done += 1
        if self._visible and monotonic() >= self._next_draw:
            self._next_draw = monotonic() + REDRAW_S
            self._drawn = True
            share = min(1.0, self.done / self.total)
            bar = ("#" * int(WIDTH * share)).ljust(WIDTH, ".")
            self._stream.write(f"\r[{bar}] {int(100 * share):3d}% {text}\x1b[K")
            self._stream.flush()

    def close(self) -> None:
        """Clear the line."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False
