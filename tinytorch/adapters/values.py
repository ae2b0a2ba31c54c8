"""The tensors in what a model is given and in what it returns, however deep they lie."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.core.tensor import Tensor

__all__ = ["Array", "copied_array", "copied_plainly", "leaves", "plain_arrays", "rebuilt"]

Array = npt.NDArray[Any]


def leaves(value: Any) -> Iterator[Any]:
    """Yield what lies in tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Give tuples, lists and dictionaries again, with everything in them changed.

    Containers in which nothing changes are given as they are, and so are objects of other kinds.
    """
    if isinstance(value, (dict, UserDict)):
        items = {key: rebuilt(item, change) for key, item in value.items()}
        changed = {key: item for key, item in items.items() if item is not value[key]}
        if not changed:
            return value
        twin = copy.copy(value)  # dictionaries of other classes know more than their items
        for key, item in changed.items():
            twin[key] = item
        return twin
    if isinstance(value, (list, tuple)):
        parts = [rebuilt(item, change) for item in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        if isinstance(value, list):
            rows = copy.copy(value)  # lists of other classes may be made in another way
            rows[:] = parts
            return rows
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return change(value)


def plain_arrays(leaf: Any) -> tuple[Array, ...]:
    """Give the array of a Tensor, an array or a number, copied; nothing of anything else.

    Half precision becomes float32, so that differences can be computed.
    """
    if isinstance(leaf, Tensor):
        leaf = leaf.data
    if not isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex)):
        return ()
    array = np.array(leaf)
    if array.dtype.kind not in "biufc":
        return ()
    return (array.astype(np.float32) if array.dtype == np.float16 else array,)


def copied_plainly(leaf: Any) -> Any:
    """Give a Tensor or an array in a buffer of its own; anything else as it is."""
    if isinstance(leaf, np.ndarray):
        return copied_array(leaf)
    if isinstance(leaf, Tensor):
        return type(leaf)(copied_array(leaf.data), requires_grad=leaf.requires_grad)
    return leaf


def copied_array(array: Array) -> Array:
    """Copy an array with its memory layout; axes along which memory repeats go on doing so."""
    repeats = [
        step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)
    ]
    if not any(repeats):
        return array.copy(order="K")
    single = array[tuple(slice(1) if again else slice(None) for again in repeats)]
    return np.broadcast_to(single.copy(order="K"), array.shape)
