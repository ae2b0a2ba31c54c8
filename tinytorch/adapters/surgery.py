"""Putting other layers into a model of TinyTorch, wherever the old ones are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tinytorch.adapters.adapter import owner_of
from tinytorch.adapters.values import rebuilt
from tinytorch.core.module import Module

__all__ = ["replace_layers"]


def replace_layers(model: Any, layers: Mapping[int, Any]) -> Any:
    """Replace layers in place, by the `id` of the old one, and give the model.

    A layer that is used in several places is replaced in each. The new one takes over the mode and
    the backend of the old one. If the model itself is replaced, the new one is given.
    """
    if id(model) in layers:
        return _in_place_of(model, layers[id(model)])

    def change(leaf: Any) -> Any:
        new = layers.get(id(leaf))
        return leaf if new is None else _in_place_of(leaf, new)

    changed: dict[int, tuple[Any, Any]] = {}  # a list in two places stays one list
    for holder in list(_holders(owner_of(model), set())):
        for name, value in list(vars(holder).items()):
            _, new = changed.setdefault(id(value), (value, rebuilt(value, change)))
            if new is not value:
                setattr(holder, name, new)
    return model


def _in_place_of(old: Any, new: Any) -> Any:
    if isinstance(old, Module) and isinstance(new, Module):
        for module in new.modules():
            module.training = old.training
        new._execution = old._execution
    return new


def _holders(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the modules of a tree, and the plain objects with a `forward` that hold some."""
    is_holder = isinstance(value, Module) or (
        hasattr(value, "forward") and hasattr(value, "__dict__") and not isinstance(value, type)
    )
    if not is_holder or id(value) in seen:
        return
    seen.add(id(value))
    yield value
    for item in list(vars(value).values()):
        for leaf in _leaves(item):
            yield from _holders(leaf, seen)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what lies in lists, tuples and dictionaries, where a module keeps its layers."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
