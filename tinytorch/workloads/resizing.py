"""Example inputs of another size, made of the real values that are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.workloads.workload import Workload

__all__ = ["AXES", "axis_length", "axis_number", "resize_inputs", "resize_workload"]

AXES = {"batch": 0, "sequence": 1}


def axis_number(axis: str | int) -> int:
    """Give the number of an axis that has a name."""
    if isinstance(axis, str) and axis not in AXES:
        raise SettingError(f"axis {axis!r}; it is {', '.join(AXES)} or a number from 0 on")
    number = AXES[axis] if isinstance(axis, str) else axis
    if number < 0:
        raise SettingError(f"axis {number}; it must be a number from 0 on")
    return number


def axis_length(inputs: tuple[Any, ...], axis: int) -> int:
    """Give the length of the first input that has such an axis."""
    shapes = [tuple(tensor.shape) for tensor in _tensors(inputs)]
    for shape in shapes:
        if len(shape) > axis and shape[axis]:
            return int(shape[axis])
    seen = ", ".join(map(str, shapes)) or "no tensor at all"
    raise SettingError(f"no input has an axis {axis} to change; the inputs are {seen}")


def resize_inputs(inputs: tuple[Any, ...], axis: int, size: int) -> tuple[Any, ...]:
    """Give inputs of `size` along an axis, by repeating and cutting the values that are there.

    Every input that is as long there as the first one is resized; the others stay as they are.
    """
    length = axis_length(inputs, axis)
    return tuple(_resized(value, axis, length, size) for value in inputs)


def resize_workload(workload: Workload, axis: int, size: int) -> Workload:
    """Give the workload with example inputs of another size, those given by name included."""
    given = (workload.inputs, dict(workload.keywords))
    inputs, keywords = resize_inputs(given, axis, size)
    return replace(workload, inputs=inputs, keywords=keywords)


def _resized(value: Any, axis: int, length: int, size: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _resized(item, axis, length, size) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_resized(item, axis, length, size) for item in value]
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if not _is_tensor(value) or len(value.shape) <= axis or value.shape[axis] != length:
        return value
    positions = np.arange(size) % length
    if isinstance(value, Tensor):
        return Tensor(np.take(value.data, positions, axis=axis))
    if isinstance(value, np.ndarray):
        return np.take(value, positions, axis=axis)
    repeats = [-(-size // length) if each == axis else 1 for each in range(len(value.shape))]
    return value.detach().repeat(repeats).narrow(axis, 0, size).contiguous()


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif _is_tensor(value):
        yield value


def _is_tensor(value: Any) -> bool:
    """Tell tensors of both frameworks and arrays from everything else, without importing torch."""
    return isinstance(value, Tensor | np.ndarray) or (
        hasattr(value, "shape") and hasattr(value, "detach") and hasattr(value, "contiguous")
    )
