"""The tensors that models of TinyTorch hold, and their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinytorch.adapters.adapter import adapter_for, held_by
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor

__all__ = ["named_tensors", "own_tensors"]


def own_tensors(module: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a layer holds itself, not those of the layers in it.

    What was computed and kept is none of them.
    """
    for name, each in held_by(module, (Tensor, Module)):
        if isinstance(each, Tensor) and each.creator is None:
            yield name, each


def named_tensors(model: Any) -> dict[str, Tensor]:
    """Give every tensor that a model holds, once, under its first name."""
    found: dict[int, tuple[str, Tensor]] = {}
    for path, module in adapter_for(model).modules(model).items():
        for name, tensor in own_tensors(module):
            found.setdefault(id(tensor), (f"{path}.{name}" if path else name, tensor))
    return dict(found.values())
