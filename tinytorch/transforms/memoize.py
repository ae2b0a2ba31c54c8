"""Remembering what a pure function gave for the same values."""

from __future__ import annotations

import copy
import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from tinytorch.core.kernels import Array
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import GraphError, SettingError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

DEFAULT_SIZE = 128


@dataclass(frozen=True)
class MemoStatistics:
    """How often a result was found, how many are kept, and the bytes of their arrays."""

    hits: int
    misses: int
    maxsize: int | None
    currsize: int
    held_bytes: int


@overload
def memoize(function: Callable[Parameters, Result], /) -> Memoized[Parameters, Result]: ...
@overload
def memoize(
    *, maxsize: int | None = DEFAULT_SIZE
) -> Callable[[Callable[Parameters, Result]], Memoized[Parameters, Result]]: ...
def memoize(function: Any = None, /, *, maxsize: int | None = DEFAULT_SIZE) -> Any:
    """Cache the results of a pure function by the content of its arguments.

    Use it as ``@memoize`` or ``@memoize(maxsize=1000)``; None keeps everything, else the results
    that were not used for longest go first. Arguments are arrays, tensors, numbers, texts and other
    hashable values, also in lists, tuples, sets and dictionaries. Arrays count by their content:
    shape, dtype and a 256-bit digest of their bytes. Every caller gets a copy, so that none can
    change what is kept. It is safe in threads; two that miss at the same time both compute.

    A function that reads anything else that may change (weights, files, the clock, random numbers)
    is not pure. `cache_info()` returns statistics, `cache_clear()` empties the cache.

    >>> @memoize
    ... def total(array):
    ...     return array.sum()
    >>> total(np.arange(4)), total(np.arange(4))
    (np.int64(6), np.int64(6))
    >>> total.cache_info().hits
    1
    """
    if maxsize is not None and maxsize < 1:
        raise SettingError(f"maxsize must be at least 1, or None for no limit, got {maxsize}")
    if function is None:
        return lambda decorated: Memoized(decorated, maxsize)
    if not callable(function):
        raise SettingError(f"memoize takes a function, got {function!r}")
    return Memoized(function, maxsize)


class Memoized(Generic[Parameters, Result]):
    """A function with the results that it has given."""

    def __init__(self, function: Callable[Parameters, Result], maxsize: int | None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._maxsize = maxsize
        self._kept: OrderedDict[Hashable, tuple[Result, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = 0

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        key = _key(args), frozenset((name, _key(value)) for name, value in kwargs.items())
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                self._misses += 1
            else:
                self._hits += 1
                self._kept.move_to_end(key)
        if found is not None:
            return copy.deepcopy(found[0])
        result = self._function(*args, **kwargs)
        _refuse_graph(result)
        kept = copy.deepcopy(result)
        with self._lock:
            self._kept[key] = kept, _held_bytes(kept)
            while self._maxsize is not None and len(self._kept) > self._maxsize:
                self._kept.popitem(last=False)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Memoized[Parameters, Result]:
        return self  # as functions do

    def cache_info(self) -> MemoStatistics:
        """Return hits, misses and what is cached."""
        with self._lock:
            held = sum(size for _, size in self._kept.values())
            return MemoStatistics(self._hits, self._misses, self._maxsize, len(self._kept), held)

    def cache_clear(self) -> None:
        """Forget all results, and begin to count anew."""
        with self._lock:
            self._kept.clear()
            self._hits = self._misses = 0


# ---------------------------------------------------------------- keys


def _key(value: Any) -> Hashable:
    """Return something hashable that is equal for equal content, and for nothing else."""
    kind = type(value)
    if isinstance(value, Tensor):
        return kind, value.requires_grad, _array_key(value.data)
    if isinstance(value, (np.ndarray, np.generic)):
        return kind, _array_key(np.asarray(value))
    if isinstance(value, (float, complex)):
        return kind, repr(value)  # tells 0.0 from -0.0, and NaN is itself
    if isinstance(value, (list, tuple)):
        return kind, tuple(_key(item) for item in value)
    if isinstance(value, dict):
        return kind, tuple((_key(name), _key(item)) for name, item in value.items())
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(_key(item) for item in value)
    if isinstance(value, Module):
        raise SettingError(
            f"a memoized function got a {kind.__name__}, whose weights may change unseen; "
            "make the model part of the function, and clear the results when it changes"
        )
    try:
        hash(value)
    except TypeError as error:
        raise SettingError(
            f"a memoized function got a {kind.__name__}, which is neither an array nor hashable; "
            "pass what it holds"
        ) from error
    return kind, value


def _array_key(array: Array) -> Hashable:
    if array.dtype.hasobject:
        raise SettingError("a memoized function got an array of objects; only numbers have content")
    content = np.ascontiguousarray(array)
    digest = hashlib.blake2b(content.view(np.uint8).data if content.size else b"", digest_size=32)
    return array.shape, array.dtype.str, digest.digest()


# ---------------------------------------------------------------- results


def _tensors_and_arrays(value: Any) -> list[Any]:
    if isinstance(value, (Tensor, np.ndarray)):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in _tensors_and_arrays(item)]
    return []


def _refuse_graph(result: Any) -> None:
    for each in _tensors_and_arrays(result):
        if isinstance(each, Tensor) and each.creator is not None:
            raise GraphError(
                "a memoized function gave a tensor with a graph, which can be used only once; "
                "compute under no_grad(), or give back result.detach()"
            )


def _held_bytes(result: Any) -> int:
    arrays = (
        each.data if isinstance(each, Tensor) else each for each in _tensors_and_arrays(result)
    )
    return sum(array.nbytes for array in arrays)
