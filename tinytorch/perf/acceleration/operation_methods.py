"""A method for each operation, made from the table of kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tinytorch.core.backends import REFERENCE
from tinytorch.perf.acceleration.tensor_operations import TENSOR_OPERATIONS

__all__ = ["with_a_method_for_each_operation"]

Class = TypeVar("Class", bound=type)


def with_a_method_for_each_operation(cls: Class) -> Class:
    """Give a class with `dispatch` a method for each operation, to be found and asked for help."""
    for kind in REFERENCE.kernels:
        assert not hasattr(cls, kind), f"the operation {kind} hides a method of {cls.__name__}"
        setattr(cls, kind, _method(kind, cls.__name__))
    return cls


def _method(kind: str, owner: str) -> Callable[..., Any]:
    """Give the method of an operation, with a signature and a docstring for those who look."""

    def method(self: Any, *arguments: Any, **settings: Any) -> Any:
        return self.dispatch(kind, *arguments, **settings)

    has_gradients = kind in TENSOR_OPERATIONS
    method.__name__ = kind
    method.__qualname__ = f"{owner}.{kind}"
    method.__doc__ = (
        f"Compute `{kind}` with the fastest implementation for its size, "
        f"{'with' if has_gradients else 'without'} gradients."
    )
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    found = _parameters(TENSOR_OPERATIONS.get(kind, REFERENCE.kernels[kind]))
    method.__signature__ = inspect.Signature([*own, *found])  # type: ignore[attr-defined]
    return method


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    if isinstance(function, np.ufunc):
        names = ("a", "b")[: function.nin] if function.nin > 1 else ("x",)
        return [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    found = inspect.signature(function).parameters.values()
    return [each.replace(annotation=inspect.Parameter.empty) for each in found]
