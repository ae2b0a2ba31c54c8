"""A backend for a model: it computes the model wherever that is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from tinytorch.core.backends import Backend
from tinytorch.core.dispatch import use_backend
from tinytorch.core.module import Execution, Module
from tinytorch.errors import SettingError

__all__ = ["model_backend", "set_model_backend", "without_model_backends"]


class GivesBackend(Protocol):
    """What can be used as a backend, such as an OptimizedBackend."""

    def as_backend(self) -> Backend: ...


def set_model_backend(model: Module, backend: str | Backend | GivesBackend | None) -> None:
    """Let a backend compute a model, or a layer with everything below it; None takes it back.

    It decides against the backend of the process and of a `use_backend` block around the call; a
    layer below that has its own keeps that. The backward pass runs on it too; losses and optimizer
    steps, which are outside of the model, do not. Copies of the model keep it, files do not.
    """
    if not isinstance(model, Module):
        raise SettingError(
            f"a {type(model).__name__} cannot have a backend of its own; call it in a block: "
            "`with use_backend(...)`"
        )
    _set(model, None if backend is None else _found(backend))


def model_backend(model: Module) -> Backend | None:
    """Give the backend that a model was given, or None."""
    return None if model._execution is None else model._execution.backend


@contextmanager
def without_model_backends(model: Module) -> Iterator[None]:
    """Take the backends of a model and its layers away inside the block."""
    own = [(module, module._execution) for module in model.modules() if module._execution]
    for module, _ in own:
        _set(module, None)
    try:
        yield
    finally:
        for module, execution in own:
            module._execution = execution


def _found(backend: Any) -> Backend:
    if hasattr(backend, "as_backend"):
        backend = backend.as_backend()
    with use_backend(backend) as found:
        return found


def _set(module: Module, backend: Backend | None) -> None:
    execution = replace(module._execution or Execution(), backend=backend)
    if execution != Execution():
        module._execution = execution
    else:
        vars(module).pop("_execution", None)
