"""What checks share: random cases, a clock with a script, arrays that note what is done to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinytorch.core.tensor import Tensor
from tinytorch.learning.work import expect

Rng = np.random.Generator
Array = np.ndarray[Any, Any]

NEAR_SUM = 1e-4
"""Sums of float32 in another order differ by about 1e-6 of numbers around 1."""
OWN_CLOCK = "the clock that was passed in was never read; use `clock()`, not a clock of your own"
PRODUCTS = {"matmul", "dot", "einsum", "tensordot", "inner", "vdot", "vecdot", "matvec", "vecmat"}
"""Functions of NumPy that are a product of matrices."""


class ScriptedClock:
    """A clock that moves when it is told to, and by `step` with every reading."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.reads, self._step = 1000.0, 0, step

    def __call__(self) -> float:
        self.reads += 1
        self.now += self._step
        return self.now


class WatchedArray(np.ndarray[Any, Any]):
    """An array that notes what is called with it, as do the results.

    `calls` has the name of each function, and the type of the numbers that came out.
    """

    calls: list[tuple[str, Any]]

    @classmethod
    def of(cls, array: Array, calls: list[tuple[str, Any]]) -> WatchedArray:
        watched = array.view(cls)
        watched.calls = calls
        return watched

    def __array_finalize__(self, other: Any) -> None:
        self.calls = getattr(other, "calls", [])

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        if settings.get("out"):
            settings["out"] = tuple(map(_plain, settings["out"]))
        found = getattr(ufunc, method)(*map(_plain, inputs), **settings)
        return self._noted(ufunc.__name__, found)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._noted(func.__name__, super().__array_function__(func, types, args, kwargs))

    def dot(self, other: Any, out: Any = None) -> Any:
        return self._noted("dot", _plain(self).dot(_plain(other)))

    def _noted(self, name: str, found: Any) -> Any:
        self.calls.append((name, getattr(found, "dtype", None)))
        return WatchedArray.of(found, self.calls) if isinstance(found, np.ndarray) else found


def _plain(array: Any) -> Any:
    return array.view(np.ndarray) if isinstance(array, WatchedArray) else array


def draw(rng: Rng, *shape: int) -> Array:
    """Return random numbers around 0, float32."""
    return rng.standard_normal(shape).astype(np.float32)


def draw_sizes(rng: Rng, count: int, low: int = 2, high: int = 7) -> list[int]:
    """Return random sizes from `low` to below `high`."""
    return [int(each) for each in rng.integers(low, high, count)]


def near_sum(one: Any, other: Any) -> bool:
    """Return whether sums of float32 are equal but for their order."""
    return close(one, other, tolerance=NEAR_SUM)


def array_of(found: Any, what: str, shape: tuple[int, ...], dtype: Any = None) -> Array:
    """Return the array of what a learner returned; raise Missed for another shape or type."""
    array = np.asarray(found.data if isinstance(found, Tensor) else found)
    expect(
        array.shape == shape,
        "wrong-shape",
        f"{what} has the shape {array.shape}; it should be {shape}",
    )
    expect(
        dtype is None or array.dtype == dtype,
        "wrong-dtype",
        f"{what} is of {array.dtype}; it should be {np.dtype(dtype)}",
    )
    return array


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
