"""What checks share: a clock that follows a script, and comparisons with what was promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinytorch.learning.work import expect


class ScriptedClock:
    """A clock that moves when it is told to, and by `step` with every reading."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.reads, self._step = 1000.0, 0, step

    def __call__(self) -> float:
        self.reads += 1
        self.now += self._step
        return self.now


def close(one: Any, other: Any, *, tolerance: float = 1e-6) -> bool:
    """Return whether numbers or arrays are equal but for rounding; None and text never are.

    The tolerance is relative: to each number, and to the largest of them where all are below 1.
    """
    try:
        first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    except (TypeError, ValueError):
        return False
    if first.shape != second.shape:
        return False
    largest = max(float(np.abs(each).max(initial=0.0)) for each in (first, second))
    near = tolerance * min(1.0, largest)
    return bool(np.allclose(first, second, rtol=tolerance, atol=near))


def keys_of(found: Any, what: str, names: Sequence[str]) -> None:
    """Raise Missed unless a dictionary has these keys."""
    expect(
        isinstance(found, Mapping),
        "no-dictionary",
        f"{what} should return a dictionary, and returned {type(found).__name__}",
    )
    missing = [name for name in names if name not in found]
    expect(not missing, "missing-keys", f"the dictionary of {what} has no {', '.join(missing)}")


def number_text(value: Any) -> str:
    """Return what a learner returned, in a few letters."""
    return f"{value:.6g}" if isinstance(value, (int, float)) else repr(value)[:40]
