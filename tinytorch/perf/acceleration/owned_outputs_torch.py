"""Copies of outputs whose memory is about to be used again. Imported after torch."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

__all__ = ["OutputTemplate", "owned"]

FEW = 4
"""So many tensors are copied one by one; more are copied by a single kernel."""
ATOMS = (str, bytes, bool, int, float, complex, type(None), type, torch.dtype, torch.device)


class OutputTemplate:
    """An output whose tensors are overwritten by every call, ready to be copied.

    Objects of any kind are copied as far as they lead to tensors, such as a cache of keys and
    values; what holds none is shared.
    """

    def __init__(self, output: Any) -> None:
        self.output = output
        self.tensors: list[torch.Tensor] = []
        self._shared: dict[int, Any] = {}
        self._look_into(output, set())

    def copied(self) -> Any:
        """Give the output in memory of its own."""
        copies = self._copies()
        if isinstance(self.output, torch.Tensor):
            return copies[0]
        twins = dict(zip(map(id, self.tensors), copies, strict=True))
        return _twin(self.output, twins | self._shared)

    def _copies(self) -> list[torch.Tensor]:
        if len(self.tensors) <= FEW or torch.is_grad_enabled():
            return [tensor.clone() for tensor in self.tensors]
        copies = [torch.empty_like(tensor) for tensor in self.tensors]
        torch._foreach_copy_(copies, self.tensors)
        return copies

    def _look_into(self, value: Any, seen: set[int]) -> bool:
        """Find the tensors of a value, and share whatever has none; tell whether it has any."""
        if isinstance(value, ATOMS):
            return False
        if id(value) in seen:
            return True  # it is being looked into, or was: whatever leads here is copied
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return True
        parts = () if isinstance(value, nn.Module) else _parts(value)
        found = [self._look_into(part, seen) for part in parts]  # all of them, also after the first
        if any(found):
            return True
        if not isinstance(value, (tuple, list, dict)):
            self._shared[id(value)] = value
        return False


def owned(output: Any) -> Any:
    """Give an output in memory of its own."""
    return OutputTemplate(output).copied()


def _twin(value: Any, twins: dict[int, Any]) -> Any:
    """Copy a value with the tensors, and whatever else, that stand in for its parts.

    `copy.deepcopy` would do the same, in twenty times the time.
    """
    if isinstance(value, ATOMS):
        return value
    if id(value) in twins:
        return twins[id(value)]
    kind: Any = type(value)
    if kind is tuple:
        return tuple(_twin(item, twins) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(_twin(item, twins) for item in value))
    if kind is list:
        rows = twins[id(value)] = []
        rows.extend(_twin(item, twins) for item in value)
        return rows
    if isinstance(value, dict):
        twin = twins[id(value)] = {} if kind is dict else copy.copy(value)
        for key, item in value.items():
            twin[key] = _twin(item, twins)
        for key, item in getattr(value, "__dict__", {}).items():
            twin.__dict__[key] = _twin(item, twins)
        return twin
    if hasattr(value, "__dict__") and kind.__new__ is object.__new__ and not _slots(kind):
        twin = twins[id(value)] = object.__new__(kind)
        twin.__dict__.update({key: _twin(item, twins) for key, item in vars(value).items()})
        return twin
    return copy.deepcopy(value, twins)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (tuple, list, set, frozenset, deque)):
        yield from value
    yield from getattr(value, "__dict__", {}).values()
    kind: Any = type(value)
    yield from (getattr(value, name) for name in _slots(kind) if hasattr(value, name))


@cache
def _slots(kind: type) -> tuple[str, ...]:
    found = (each.__dict__.get("__slots__", ()) for each in kind.__mro__)
    names = (name for each in found for name in ((each,) if isinstance(each, str) else each))
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
