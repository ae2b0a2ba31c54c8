"""The one dispatch point: the active backend computes, active recorders watch.

Every operation on tensors, forward and backward, and every optimizer step is a call of
:func:`run`. With no recorder active that costs one dictionary look-up. What only prepares or keeps
books (drawing a dropout mask, updating running statistics, casting a gradient, the norm for
clipping) is plain NumPy and not recorded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.core.kernels import BACKENDS, Backend, default_backend
from tinytorch.errors import BackendError

__all__ = [
    "ArraySpec",
    "KernelCall",
    "Recorder",
    "active_backend",
    "recording",
    "run",
    "set_backend",
    "use_backend",
]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of an array that a kernel read or wrote.

    An output `is_view` when it may share the memory of an input, so that nothing was allocated.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_view: bool = False

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One executed kernel, as recorders see it. Times are seconds of `time.perf_counter`.

    `path` is the name of the module that ran it: "" is the outermost module itself, None is code
    outside of any module, such as a loss or an optimizer. A backward kernel has the path of its
    forward pass, if that was recorded too.
    """

    kind: str
    path: str | None
    phase: str
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    settings: Mapping[str, Any]
    backend: str
    start: float
    duration: float


Recorder = Callable[[KernelCall], None]
ArrayWatcher = Callable[[list[Any], list[Any]], None]


class _State(threading.local):
    """Thread-local state. Class attributes are the defaults of a new thread."""

    grad_enabled: bool = True
    backend: Backend | None = None
    recorders: tuple[Recorder, ...] = ()
    array_watchers: tuple[ArrayWatcher, ...] = ()
    path: str | None = None
    phase: str = "forward"
    module_names: Mapping[int, str] | None = None


state = _State()
_process_backend: Backend | None = None  # not chosen yet: the default is loaded when first used


def run(kind: str, *arguments: Any, **settings: Any) -> Any:
    """Compute the operation `kind` with the active backend."""
    kernel = (state.backend or _process_backend or active_backend()).kernels[kind]
    if state.recorders:
        return _run_recorded(kind, kernel, arguments, settings)
    return kernel(*arguments, **settings)


def _run_recorded(
    kind: str, kernel: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any]
) -> Any:
    start = perf_counter()
    result = kernel(*arguments, **settings)
    duration = perf_counter() - start
    inputs = _arrays(arguments)
    outputs = _arrays(result if isinstance(result, tuple) else (result,))
    call = KernelCall(
        kind=kind,
        path=state.path,
        phase=state.phase,
        inputs=tuple(ArraySpec(array.shape, array.dtype) for array in inputs),
        outputs=tuple(_output_spec(array, inputs) for array in outputs),
        settings=settings,
        backend=active_backend().name,
        start=start,
        duration=duration,
    )
    recorders, state.recorders = state.recorders, ()  # what a recorder computes is not recorded
    try:
        for watcher in state.array_watchers:
            watcher(inputs, outputs)
        for recorder in recorders:
            recorder(call)
    finally:
        state.recorders = recorders
    return result


def _arrays(values: tuple[Any, ...]) -> list[Any]:
    """Find the arrays among `values`, looking into one level of tuples and lists."""
    found: list[Any] = []
    for value in values:
        items = value if isinstance(value, (tuple, list)) else (value,)
        found.extend(item for item in items if isinstance(item, (np.ndarray, np.generic)))
    return found


def _output_spec(array: Any, inputs: list[Any]) -> ArraySpec:
    is_view = any(np.may_share_memory(array, source) for source in inputs)
    return ArraySpec(array.shape, array.dtype, is_view)


def active_backend() -> Backend:
    """Return the active backend of this thread."""
    global _process_backend
    if _process_backend is None:
        _process_backend = default_backend()
    return state.backend or _process_backend


def set_backend(backend: str | Backend) -> None:
    """Choose the backend of the whole process, by its name or as an object.

    The variable TINYTORCH_BACKEND does the same. Where nothing is chosen it is `numba` if that is
    installed, and else `numpy`.
    """
    global _process_backend
    _process_backend = _find_backend(backend)


@contextmanager
def use_backend(backend: str | Backend) -> Iterator[Backend]:
    """Choose the backend of this thread for a block of code."""
    previous, state.backend = state.backend, _find_backend(backend)
    try:
        yield state.backend
    finally:
        state.backend = previous


@contextmanager
def recording(recorder: Recorder, *, arrays: ArrayWatcher | None = None) -> Iterator[None]:
    """Call `recorder` with every :class:`KernelCall` of this thread inside the block.

    `arrays` is called first, with the input and the output arrays of the kernel. It must not keep
    references to them, which would extend their lifetime.
    """
    recorders, watchers = state.recorders, state.array_watchers
    state.recorders = (*recorders, recorder)
    if arrays is not None:
        state.array_watchers = (*watchers, arrays)
    try:
        yield
    finally:
        state.recorders, state.array_watchers = recorders, watchers


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Label what runs inside the block: `forward`, `backward` or `update`."""
    previous, state.phase = state.phase, name
    try:
        yield
    finally:
        state.phase = previous


def _find_backend(backend: str | Backend) -> Backend:
    if isinstance(backend, Backend):
        return backend
    if backend not in BACKENDS:
        hint = "; `pip install numba` adds it" if backend == "numba" else ""
        raise BackendError(f"unknown backend {backend!r}; available: {', '.join(BACKENDS)}{hint}")
    try:
        return BACKENDS[backend]
    except Exception as error:
        raise BackendError(f"the backend {backend!r} cannot be loaded: {error}") from error


if "TINYTORCH_BACKEND" in os.environ:
    set_backend(os.environ["TINYTORCH_BACKEND"])
