"""The one dispatch point: the active backend computes, active recorders watch.

Every array operation of the framework, forward, backward and optimizer step, is a call of
:func:`run`. With no recorder active that costs one dictionary look-up.
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

from tinytorch.core.backends import BACKENDS, DEFAULT, Backend
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
    """Shape and dtype of an array that a kernel read or wrote."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One executed kernel, as recorders see it. Times are seconds of `time.perf_counter`."""

    kind: str
    path: str
    phase: str
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    settings: Mapping[str, Any]
    backend: str
    start: float
    duration: float


Recorder = Callable[[KernelCall], None]


class _State(threading.local):
    """What each thread has active. Class attributes are the defaults of a new thread."""

    grad_enabled: bool = True
    backend: Backend | None = None
    recorders: tuple[Recorder, ...] = ()
    path: str = ""
    phase: str = "forward"
    module_names: Mapping[int, str] | None = None


state = _State()
_process_backend = DEFAULT


def run(kind: str, *arguments: Any, **settings: Any) -> Any:
    """Compute the operation `kind` with the active backend."""
    kernel = (state.backend or _process_backend).kernels[kind]
    if state.recorders:
        return _run_recorded(kind, kernel, arguments, settings)
    return kernel(*arguments, **settings)


def _run_recorded(
    kind: str, kernel: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any]
) -> Any:
    start = perf_counter()
    result = kernel(*arguments, **settings)
    duration = perf_counter() - start
    call = KernelCall(
        kind=kind,
        path=state.path,
        phase=state.phase,
        inputs=_specs(arguments),
        outputs=_specs(result if isinstance(result, tuple) else (result,)),
        settings=settings,
        backend=active_backend().name,
        start=start,
        duration=duration,
    )
    for recorder in state.recorders:
        recorder(call)
    return result


def _specs(values: tuple[Any, ...]) -> tuple[ArraySpec, ...]:
    """Describe the arrays among `values`, looking into one level of tuples and lists."""
    specs: list[ArraySpec] = []
    for value in values:
        if isinstance(value, (np.ndarray, np.generic)):
            specs.append(ArraySpec(value.shape, value.dtype))
        elif isinstance(value, (tuple, list)):
            arrays = [item for item in value if isinstance(item, np.ndarray)]
            specs.extend(ArraySpec(array.shape, array.dtype) for array in arrays)
    return tuple(specs)


def active_backend() -> Backend:
    """Give the backend that computes in this thread."""
    return state.backend or _process_backend


def set_backend(name: str) -> None:
    """Choose the backend of the whole process. The variable TINYTORCH_BACKEND does the same."""
    global _process_backend
    _process_backend = _find_backend(name)


@contextmanager
def use_backend(name: str) -> Iterator[Backend]:
    """Choose the backend of this thread for a block of code."""
    previous, state.backend = state.backend, _find_backend(name)
    try:
        yield state.backend
    finally:
        state.backend = previous


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Call `recorder` with every :class:`KernelCall` of this thread inside the block."""
    previous, state.recorders = state.recorders, (*state.recorders, recorder)
    try:
        yield
    finally:
        state.recorders = previous


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Label what runs inside the block: `forward`, `backward` or `update`."""
    previous, state.phase = state.phase, name
    try:
        yield
    finally:
        state.phase = previous


def _find_backend(name: str) -> Backend:
    if name not in BACKENDS:
        raise BackendError(f"unknown backend {name!r}; available: {', '.join(BACKENDS)}")
    return BACKENDS[name]


if "TINYTORCH_BACKEND" in os.environ:
    set_backend(os.environ["TINYTORCH_BACKEND"])
