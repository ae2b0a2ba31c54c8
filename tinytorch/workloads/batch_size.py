"""How many examples one call works on, from the shapes of what goes in and comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["batch_size"]


def batch_size(inputs: tuple[Any, ...], output: Any) -> int | None:
    """Give the number of examples, if every input and the first output have as many on axis 0."""
    first = [*_first_axes(inputs), *list(_first_axes(output))[:1]]
    return first[0] if first and len(set(first)) == 1 else None


def _first_axes(value: Any) -> Iterator[int | None]:
    """Give the length of the first axis of every tensor, None for one that has no second axis."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _first_axes(item)
    elif hasattr(value, "shape"):
        shape = tuple(value.shape)
        yield int(shape[0]) if len(shape) > 1 else None
