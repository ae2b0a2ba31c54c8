"""Watching a model that serves: its own calls always, its layers only in a sampled call.

The model's `forward` is replaced on the instance for as long as the monitor runs, those of its
layers only during a sampled call, so that all other calls pay nothing for them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from types import MethodType
from typing import Any

import numpy as np

from tinytorch.errors import SettingError
from tinytorch.models.adapter import Adapter, Methods, leaves
from tinytorch.models.records import LayerCall
from tinytorch.profiling.layers import layer_times

MOST_WATCHED = 500
"""Layers that are timed in a sampled call; of a deeper model those that are nearest to it."""
SIDE, MOVED_BYTES = 64, 1 << 20
_absent = object()


def method_of(module: Any, methods: Methods) -> str | None:
    """Return the name of the method that is a call of a layer, if it can be replaced."""
    for choice in methods:
        for name in (choice,) if isinstance(choice, str) else choice:
            if getattr(module, name, None) is not None and hasattr(module, "__dict__"):
                return name
    return None


class Watched:
    """What stands in the place of a model's `forward`. A copy of the model gets its own back."""

    def __init__(self, owner: Any, name: str, method: Callable[..., Any], call: Any) -> None:
        self.__wrapped__ = method
        self.__name__ = name
        self._owner = owner
        self._call = call

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        return self._call(self.__wrapped__, inputs, settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self._owner))
        if copied is not None and isinstance(self.__wrapped__, MethodType):
            return MethodType(self.__wrapped__.__func__, copied)
        return copy.deepcopy(self.__wrapped__, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.__wrapped__, MethodType):
            return _bound, (self.__wrapped__.__func__, self._owner)
        return _bound, (self.__wrapped__, None)


def _bound(function: Callable[..., Any], owner: Any) -> Any:
    return function if owner is None else MethodType(function, owner)


class Replaced:
    """Methods of instances that are replaced, and exactly as before afterwards."""

    def __init__(self) -> None:
        self._replaced: list[tuple[dict[str, Any], str, Any, Any]] = []

    def add(self, module: Any, name: str, replacement: Any) -> None:
        attributes = vars(module)
        self._replaced.append((attributes, name, attributes.get(name, _absent), replacement))

    def install(self) -> None:
        """Replace the methods, but for those that somebody else has replaced since."""
        for attributes, name, before, replacement in self._replaced:
            if attributes.get(name, _absent) is before:
                attributes[name] = replacement

    def remove(self) -> None:
        """Restore the methods, but for those that somebody else has replaced since."""
        for attributes, name, before, replacement in self._replaced:
            if attributes.get(name) is not replacement:
                continue
            if before is _absent:
                del attributes[name]
            else:
                attributes[name] = before


class LayerClock:
    """Times the layers in one call at a time; calls in other threads run past it."""

    def __init__(self, adapter: Adapter, model: Any) -> None:
        self.kinds: dict[str, str] = {}
        self._methods = Replaced()
        self._busy = threading.Lock()
        self._owner = 0
        self._stamps: list[tuple[str, Any, Any]] = []
        self.stamp: Callable[[], Any] = perf_counter
        modules = dict(adapter.watchable_modules(model))
        modules.pop("", None)
        for path in sorted(modules, key=lambda each: each.count("."))[:MOST_WATCHED]:
            name = method_of(modules[path], adapter.methods)
            if name is not None:
                self.kinds[path] = type(modules[path]).__name__
                stamped = self._stamped(path, getattr(modules[path], name))
                self._methods.add(modules[path], name, stamped)

    def begin(self) -> bool:
        """Watch the layers from now on in this thread; return False while another thread does."""
        if not self._busy.acquire(blocking=False):
            return False
        self._owner = threading.get_ident()
        self._stamps = []
        self._methods.install()
        return True

    def end(self) -> list[tuple[str, Any, Any]]:
        """Stop watching; return path, begin and end of each call of a layer."""
        try:
            self._methods.remove()
            self._owner = 0
            return self._stamps
        finally:
            self._busy.release()

    def abandon(self) -> None:
        """Stop watching, if this thread is."""
        if self._owner == threading.get_ident():
            self.end()

    def restart(self) -> None:
        """Forget a call that another process, from which this one was forked, was in."""
        self._methods.remove()
        self._busy = threading.Lock()
        self._owner = 0

    def _stamped(self, path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def stamped(*inputs: Any, **settings: Any) -> Any:
            if threading.get_ident() != self._owner:
                return method(*inputs, **settings)
            begun = self.stamp()
            try:
                return method(*inputs, **settings)
            finally:
                self._stamps.append((path, begun, self.stamp()))

        return stamped


@dataclass(frozen=True)
class Sample:
    """One sampled call: path, begin and end of layer calls, as marks of the device's clock."""

    size: int
    shape: tuple[int, ...]
    in_flight: int
    probes: tuple[float, float]
    begun: Any
    ended: Any
    stamps: list[tuple[str, Any, Any]]
    seconds: Callable[[Any, Any], float]

    @property
    def is_done(self) -> bool:
        """Whether the device has passed the last mark; asking does not wait for it."""
        query = getattr(self.ended, "query", None)
        return query is None or bool(query())

    def own_times(self) -> tuple[float, dict[str, float]]:
        """Return the seconds of the call, and each layer's own."""
        calls = [
            LayerCall(path, self.seconds(self.begun, begun), self.seconds(self.begun, ended))
            for path, begun, ended in self.stamps
        ]
        found = {path: times.self_s for path, times in layer_times([calls]).items()}
        return self.seconds(self.begun, self.ended), found


class Probe:
    """Two fixed pieces of work of some 50 us that show how fast the machine is at this moment."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._matrix = rng.standard_normal((SIDE, SIDE)).astype(np.float32)
        self._product = np.empty_like(self._matrix)
        self._source = np.zeros(MOVED_BYTES // 4, np.float32)
        self._target = np.zeros_like(self._source)

    def __call__(self) -> tuple[float, float]:
        """Return the seconds of a product in the caches and of a copy through memory."""
        begun = perf_counter()
        np.matmul(self._matrix, self._matrix, out=self._product)
        np.matmul(self._matrix, self._matrix, out=self._product)
        between = perf_counter()
        np.copyto(self._target, self._source)
        return between - begun, perf_counter() - between


# ---------------------------------------------------------------- sizes of inputs


def shape_of(inputs: tuple[Any, ...], settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of the first input that has one; () where none has."""
    for value in inputs or settings.values():
        shape = getattr(value, "shape", None)
        if shape is not None:
            return tuple(shape)
    return next(_shapes_inside((inputs, dict(settings))), ())


def _shapes_inside(value: Any) -> Iterator[tuple[int, ...]]:
    for leaf in leaves(value):
        if hasattr(leaf, "shape"):
            yield tuple(leaf.shape)


@lru_cache(maxsize=1024)
def size_class(shape: tuple[int, ...]) -> int:
    """Return the class of a shape: its number of elements, in powers of two."""
    return int(np.prod(shape, dtype=np.int64)).bit_length()


def check_watchable(model: Any, methods: Methods) -> str:
    """Return the method of a model that is replaced; raise where none can be."""
    name = method_of(model, methods)
    if name is None:
        raise SettingError(
            f"a {type(model).__name__} has no forward() that can be replaced on the instance; "
            "pass a module or an object with one, or no model and use monitor.request() alone"
        )
    return name
