"""Check, then time: does an implementation compute what the reference computes?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinytorch.core.backends import Array, Kernel

__all__ = ["IN_PLACE", "Check", "copied"]

IN_PLACE: dict[str, tuple[int, ...]] = {"sgd_step": (0, 2), "adam_step": (0, 2, 3)}
"""Operations that change some of their arguments, and which."""
ROUNDINGS = 200
"""So many roundings of the largest element may lie between two results: different orders of adding
up, and different exponentials. Sums of very many terms may differ by more; then the exact result
decides."""
AS_GOOD_AS = 4.0
"""A result may be so many times further from the exact one than the reference's."""


def copied(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Copy the arrays among arguments, also those in a tuple, with the same strides."""
    return tuple(
        _copy(value)
        if isinstance(value, np.ndarray)
        else copied(value)
        if isinstance(value, (tuple, list))
        else value
        for value in arguments
    )


def _copy(array: Array) -> Array:
    """Copy an array with its gaps and repeated elements: a kernel may mind them."""
    dense = array.copy(order="K")
    if dense.strides == array.strides or array.size == 0 or array.dtype.hasobject:
        return dense
    reaches = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    before = -sum(min(reach, 0) for reach in reaches)
    size = before + sum(max(reach, 0) for reach in reaches) + array.itemsize
    result: Array = np.ndarray(
        array.shape, array.dtype, np.zeros(size, np.uint8), before, array.strides
    )
    result[...] = dense
    return result


class Check:
    """What the reference computes from some arguments, and whether others do so too.

    All results count, also those that only the backward pass reads. Everything runs on copies.
    Arguments that the reference cannot use raise what it raises.
    """

    def __init__(
        self, kind: str, reference: Kernel, arguments: Sequence[Any], settings: Mapping[str, Any]
    ) -> None:
        self.kind = kind
        self.reference = reference
        self.arguments = tuple(arguments)
        self.settings = settings
        self.expected = self._results(reference, copied(arguments))

    def why_wrong(self, kernel: Kernel) -> str | None:
        """Give the reason why an implementation cannot be used on these arguments, or None."""
        if kernel is self.reference:
            return None
        own = copied(self.arguments)
        try:
            found = self._results(kernel, own)
        except Exception as error:  # whatever a kernel raises, there are others
            return f"raised {type(error).__name__}: {error}"
        if self._changed(own):
            return "changes its inputs"
        if len(found) != len(self.expected):
            return f"gives {len(found)} results, the reference {len(self.expected)}"
        for position, (one, other) in enumerate(zip(found, self.expected, strict=True)):
            if _form(one) != _form(other):
                return f"result {position} is {_form(one)}, the reference's {_form(other)}"
        if all(map(_are_close, found, self.expected)):
            return None
        return self._why_further_from_exact(found)

    def _results(self, kernel: Kernel, arguments: tuple[Any, ...]) -> list[Any]:
        """Run a kernel and give everything that it computed: what it gives, or what it changed."""
        result = kernel(*arguments, **self.settings)
        if self.kind in IN_PLACE:
            return [arguments[position] for position in IN_PLACE[self.kind]]
        return list(result) if isinstance(result, tuple) else [result]

    def _changed(self, after: Sequence[Any]) -> bool:
        return any(
            isinstance(before, np.ndarray) and not _equal(before, now)
            for position, (before, now) in enumerate(zip(self.arguments, after, strict=True))
            if position not in IN_PLACE.get(self.kind, ())
        )

    def _why_further_from_exact(self, found: list[Any]) -> str | None:
        """Compare both with the result in float64, which is as good as exact for the others."""
        precise = self._results(self.reference, _in_float64(self.arguments))
        triples = zip(found, self.expected, precise, strict=True)
        for position, (own, theirs, exact) in enumerate(triples):
            if theirs is None or np.asarray(theirs).dtype.kind != "f":
                if not _are_close(own, theirs):
                    return f"result {position} differs from the reference"
                continue
            own, theirs = np.asarray(own), np.asarray(theirs)
            exact = np.where(np.isfinite(theirs), exact, theirs)  # float64 overflows later
            error, usual = _distance(own, exact), _distance(theirs, exact)
            rounding = float(np.finfo(theirs.dtype).eps)
            if not error <= max(AS_GOOD_AS * usual, ROUNDINGS * rounding):
                return (
                    f"result {position} is off by {error:.1e} of the largest element, the "
                    f"reference by {usual:.1e}"
                )
        return None


def _equal(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _form(value: Any) -> str:
    if value is None:
        return "nothing"
    array = np.asarray(value)
    return f"{array.dtype} {array.shape}"


def _are_close(found: Any, expected: Any) -> bool:
    if expected is None:
        return True
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind != "f":
        return np.array_equal(found, expected)
    return _distance(found, expected) <= ROUNDINGS * np.finfo(expected.dtype).eps


def _distance(found: Array, expected: Array) -> float:
    """Give the largest difference as a share of the largest element; infinite for a lost NaN."""
    is_finite = np.isfinite(expected)
    if not np.array_equal(found[~is_finite], expected[~is_finite], equal_nan=True):
        return math.inf
    exact = expected[is_finite].astype(np.float64)
    gap = float(np.abs(found[is_finite] - exact).max(initial=0.0))
    largest = float(np.abs(exact).max(initial=0.0))
    if math.isnan(gap):
        return math.inf
    return gap / largest if largest > 0 else gap


def _in_float64(arguments: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        value.astype(np.float64)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        else _in_float64(value)
        if isinstance(value, (tuple, list))
        else value
        for value in arguments
    )
