"""Whether a model still has the tensors that something was made from. Imported after torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["SameWeights"]

Mark = tuple[int, int]
REGISTRIES = ("_parameters", "_buffers", "_modules")


class SameWeights:
    """The layers and tensors of a model, and on request how often the tensors were written.

    A graph on a device reads tensors where they were: it sees numbers that are written there, and
    nothing of a tensor that took their place. Packed weights are copies, which see neither.
    Looked at are parameters, buffers, and tensors that are attributes of a layer or lie in a list
    or dictionary that is one. What is written through `.data`, or to tensors that were made in
    inference mode, nobody counts.
    """

    def __init__(self, model: nn.Module, *, also_numbers: bool) -> None:
        self._model, self._also_numbers = model, also_numbers
        self._layers = list(_layers(model))
        modules = list(model.modules())
        self._registered = [
            (registry, name)
            for module in modules
            for registry in (module._parameters, module._buffers)
            for name, tensor in registry.items()
            if tensor is not None
        ]
        self._attributes = [place for module in modules for place in _attributes(module)]
        # Held, so that nothing else gets their memory while a graph may read it.
        self._held = [_at(*place) for place in self._attributes]
        self._seen = self._marks()

    def still_hold(self) -> bool:
        """Tell whether all is the same, as far as anybody can tell from outside."""
        for registry, layers in self._layers:
            if tuple(registry.values()) != layers:
                return False
        return self._marks() == self._seen

    def ignore_what_changed(self) -> None:
        """Take what has changed by now for the state of the model, which calls of it write."""
        marks = self._marks()
        same = [now == before for now, before in zip(marks, self._seen, strict=True)]
        self._layers = list(_layers(self._model))
        self._seen = _only(marks, same)
        registered, attributes = same[: len(self._registered)], same[len(self._registered) :]
        self._registered = _only(self._registered, registered)
        self._attributes = _only(self._attributes, attributes)
        self._held = _only(self._held, attributes)

    def _marks(self) -> list[Any]:
        tensors = [names.get(name) for names, name in self._registered]
        if self._attributes:
            tensors += [_at(*place) for place in self._attributes]
        if self._also_numbers:
            return [_written(tensor) for tensor in tensors]
        try:  # before every call, so in the shortest way
            return list(map(torch.Tensor.data_ptr, tensors))  # type: ignore[arg-type]
        except (RuntimeError, TypeError):
            return [_lies(tensor) for tensor in tensors]


def _layers(model: nn.Module) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Yield where layers are registered, and which."""
    for module in model.modules():
        if module._modules:
            yield module._modules, tuple(module._modules.values())


def _attributes(module: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Yield where a layer keeps tensors that are not registered: the holder, and its key."""
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            yield vars(module), name
        elif name in REGISTRIES or not isinstance(value, (dict, list, tuple)):
            continue
        else:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((value, key) for key, each in items if isinstance(each, torch.Tensor))


def _at(holder: Any, key: Any) -> torch.Tensor | None:
    try:
        found = holder[key]
    except (KeyError, IndexError):
        return None
    return found if isinstance(found, torch.Tensor) else None


def _only(values: list[Any], wanted: list[bool]) -> list[Any]:
    return [value for value, is_wanted in zip(values, wanted, strict=True) if is_wanted]


def _lies(tensor: torch.Tensor | None) -> int:
    try:
        return id(tensor) if tensor is None else tensor.data_ptr()
    except RuntimeError:  # of tensors that are made of others
        return id(tensor)


def _written(tensor: torch.Tensor | None) -> Mark:
    if tensor is None or tensor.is_inference():  # nobody counts how often these are written
        return (_lies(tensor), 0)
    return (_lies(tensor), tensor._version)
