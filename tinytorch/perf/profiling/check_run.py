"""The first calls of a model: do they work, and do two of them give the same?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any

from tinytorch.adapters.adapter import Adapter
from tinytorch.adapters.layer_watch import entering_layers
from tinytorch.errors import ModelError

__all__ = ["check_run"]


def check_run(adapter: Adapter, model: Any, call: Callable[[], Any]) -> tuple[str, ...]:
    """Call a model twice and give notes about what makes its measurements doubtful.

    An exception becomes a ModelError that names the layer.
    """
    with adapter.naming_failures(model):
        output = call()
    if isinstance(output, (Generator, Coroutine, AsyncGenerator)):
        raise ModelError(
            f"{type(model).__name__} returned a {type(output).__name__}, which has computed "
            "nothing yet; profile a function that runs it to the end"
        )
    if output is None or isinstance(output, str):
        raise ModelError(
            f"{type(model).__name__} returned {output!r}, which holds no tensor; "
            "does its forward() return the result?"
        )
    first, second = (_trace(adapter, model, call) for _ in range(2))
    for (path, before), (other, after) in zip(first, second, strict=False):
        if path != other:
            return (f"not deterministic: after the same inputs {path!r} ran, then {other!r}",)
        if before != after:
            kind = type(adapter.modules(model)[path]).__name__
            return (
                f"not deterministic: {path or 'the model'!r} ({kind}) gave different outputs "
                "for the same inputs; times still hold, outputs cannot be compared",
            )
    if len(first) != len(second):
        return (f"not deterministic: one call ran {len(first)} layers, the next {len(second)}",)
    return ()


def _trace(adapter: Adapter, model: Any, call: Callable[[], Any]) -> list[tuple[str, Any]]:
    """Give the layers in the order in which they ended, with a digest of what they gave."""
    seen: list[tuple[str, Any]] = []

    def leave(path: str, error: BaseException | None, output: Any) -> None:
        seen.append((path, adapter.digest(output)))

    modules = adapter.watchable_modules(model)
    with entering_layers(modules, lambda path: None, leave, methods=adapter.methods):
        call()
    return seen
