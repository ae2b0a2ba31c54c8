"""Watching layers by replacing `forward` on the instance: the lightest way that there is.

A hook costs several times as much, and makes some of PyTorch's layers leave their fast path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import Any

__all__ = ["Methods", "Stamps", "entering_layers", "stamping_layers"]

Stamps = list[tuple[str, Any, Any]]
Methods = Sequence[str | tuple[str, ...]]
"""Names of methods; of several in a tuple it is the first that a layer has."""
_watching = RLock()
Wrapper = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@contextmanager
def stamping_layers(
    modules: Mapping[str, Any], stamp: Callable[[], Any], *, methods: Methods = ("forward",)
) -> Iterator[Stamps]:
    """Stamp the begin and the end of every call of a layer inside the block.

    Yields the list that fills with (path, begin, end), in the order in which calls end.
    """
    stamps: Stamps = []
    append = stamps.append

    def wrapper(path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def stamped(*inputs: Any, **settings: Any) -> Any:
            begin = stamp()
            try:
                return method(*inputs, **settings)
            finally:
                append((path, begin, stamp()))

        return stamped

    with _replaced(modules, methods, wrapper):
        yield stamps


@contextmanager
def entering_layers(
    modules: Mapping[str, Any],
    enter: Callable[[str], None],
    leave: Callable[[str, BaseException | None, Any], None],
    *,
    methods: Methods = ("forward",),
) -> Iterator[None]:
    """Call `enter(path)` before and `leave(path, error, output)` after every call."""

    def wrapper(path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*inputs: Any, **settings: Any) -> Any:
            enter(path)
            try:
                output = method(*inputs, **settings)
            except BaseException as error:
                leave(path, error, None)
                raise
            leave(path, None, output)
            return output

        return watched

    with _replaced(modules, methods, wrapper):
        yield


@contextmanager
def _replaced(modules: Mapping[str, Any], methods: Methods, wrapper: Wrapper) -> Iterator[None]:
    """Put wrappers in front of methods, and take away exactly these in the end.

    Blocks of one thread may be nested; another thread waits until they end, since what it finds
    and puts back would be ours.
    """
    absent = object()
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    _watching.acquire()
    try:
        for path, module in modules.items():
            for choice in methods:
                names = (choice,) if isinstance(choice, str) else choice
                found = ((each, getattr(module, each, None)) for each in names)
                name, method = next((pair for pair in found if pair[1] is not None), ("", None))
                attributes = getattr(module, "__dict__", None)  # objects with slots have none
                if method is None or attributes is None:
                    continue
                replaced.append((attributes, name, attributes.get(name, absent)))
                attributes[name] = wraps(method)(wrapper(path, method))
        yield
    finally:
        for attributes, name, before in reversed(replaced):
            if before is absent:
                attributes.pop(name, None)
            else:
                attributes[name] = before
        _watching.release()
