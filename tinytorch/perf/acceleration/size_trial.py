"""Calling a model with inputs of several sizes, in this process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.comparison.worker import Forks, ending_copies
from tinytorch.errors import ModelError, SettingError, TinyTorchError
from tinytorch.perf.acceleration.size_memory import available_bytes, fence_address_space
from tinytorch.workloads.memory_timeline import MemoryTimeline
from tinytorch.workloads.resizing import axis_length, axis_number, resize_workload
from tinytorch.workloads.workload import Workload

__all__ = ["MEMORY", "REFUSED", "Attempt", "SizeTrial", "TrialFacts", "failure_kind", "find_axis"]

MEMORY, REFUSED = "memory", "refused"
MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "ALLOC_FAILED",
)
LONGEST_REASON = 160
REPEATING_S, MOST_REPEATS = 0.02, 4
"""Short calls are timed some times more, for so long."""


@dataclass(frozen=True)
class TrialFacts:
    """What is known about a model before it is called with other sizes.

    A call works on `size` times `items_per_size` examples or tokens.
    """

    name: str
    framework: str
    device: str
    axis: int
    usual: int
    items_per_size: int
    resident_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """How a model got on with a size: seconds of one call and the peak, or the failure.

    `kind` is that of the failure. `note` says why there is no peak. `first_s` is what making the
    inputs and the first call took.
    """

    size: int
    seconds: float = 0.0
    peak_bytes: int | None = None
    kind: str = ""
    failure: str = ""
    note: str = ""
    first_s: float = 0.0

    @property
    def works(self) -> bool:
        return not self.kind


class SizeTrial:
    """A workload whose inputs are made anew in any size along one axis.

    `kind` is `batch` or `sequence`; `axis` the number of the axis, if it is not the usual one.
    """

    is_isolated = False
    restarting_s = 0.0

    def __init__(self, workload: Workload, kind: str, axis: int | None = None) -> None:
        self.workload = workload
        model, arguments = workload.model, workload.arguments
        self.axis = find_axis(workload, kind, axis)
        usual = axis_length(arguments, self.axis)
        self.adapter = adapter_for(model, arguments)
        self.device = self.adapter.device(model, arguments)
        self.clock = self.adapter.run_clock(self.device)
        layers = self.adapter.modules(model).values()
        is_training = any(getattr(layer, "training", False) is True for layer in layers)
        self.facts = TrialFacts(
            name=workload.name,
            framework=self.adapter.name,
            device=self.device,
            axis=self.axis,
            usual=usual,
            items_per_size=1 if kind == "batch" else _items_before(arguments, self.axis),
            resident_bytes=sum(each.nbytes for each in self.adapter.parameters(model)),
            notes=("the model is in training mode, and was measured so",) if is_training else (),
        )

    @property
    def is_on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Build no graph, and leave the model as it was."""
        with self.adapter.preserving(self.workload.model), self.adapter.without_gradients():
            yield

    def close(self) -> None:
        """Give back what was taken."""
        self._clean_up()

    def free_bytes(self) -> int:
        """Give the memory that is left where the model is."""
        if self.is_on_gpu:
            from tinytorch.perf.acceleration.size_device_torch import free_bytes

            return free_bytes(self.device)
        return available_bytes()

    def fence(self, allowed_bytes: int) -> bool:
        """Let what needs more than this fail, in a process of its own; say whether it will."""
        if self.is_on_gpu:
            from tinytorch.perf.acceleration.size_device_torch import fence_device

            return fence_device(self.device, allowed_bytes)
        return fence_address_space(allowed_bytes)

    def attempt(self, size: int, *, briefly: bool = False) -> Attempt:
        """Call the model at a size: once to see whether it works, once timed, once for its peak.

        `briefly` calls it once. Whatever it raises is the answer.
        """
        try:
            found = self._attempted(size, briefly=briefly)
        except Exception as error:  # a model or a device may raise anything
            found = Attempt(size, kind=failure_kind(error), failure=_in_one_line(error))
        if not found.works or self.is_on_gpu:
            self._clean_up()  # only now: what was raised holds on to the tensors of its frames
        return found

    def time(self, size: int, loops: int) -> float:
        """Give the seconds of a call at a size, on fresh inputs, after one that is not timed."""
        try:
            run = _guarded(resize_workload(self.workload, self.axis, size).run)
            run()
            self.adapter.synchronize(self.device)
            return self.clock.time(run, loops) / loops
        except Exception as error:  # a model or a device may raise anything, also after a while
            raise ModelError(_in_one_line(error)) from error

    # ------------------------------------------------------------ one attempt

    def _attempted(self, size: int, *, briefly: bool) -> Attempt:
        started = perf_counter()
        resized = resize_workload(self.workload, self.axis, size)
        called = perf_counter()
        with self.adapter.naming_failures(self.workload.model):
            ending_copies(resized.run)()
            self.adapter.synchronize(self.device)
        first_s = perf_counter() - started
        if briefly:
            return Attempt(size, perf_counter() - called, first_s=first_s)
        seconds = self._seconds(_guarded(resized.run))
        peak, note = self._peak(resized)
        return Attempt(size, seconds, peak, note=note, first_s=first_s)

    def _seconds(self, run: Callable[[], object]) -> float:
        """Time single calls and give the shortest: one alone may have been disturbed."""
        end = perf_counter() + REPEATING_S
        best = self.clock.time(run, 1)
        for _ in range(MOST_REPEATS):
            if perf_counter() > end:
                break
            best = min(best, self.clock.time(run, 1))
        return best

    def _peak(self, resized: Workload) -> tuple[int | None, str]:
        if self.is_on_gpu:
            from tinytorch.perf.acceleration.size_device_torch import allocated_peak, forget_peak

            forget_peak(self.device)
            _guarded(resized.run)()
            return allocated_peak(self.device), ""
        try:
            recording = self.adapter.record(
                resized.model, _guarded(resized.run), device=self.device, inputs=resized.arguments
            )
        except Exception as error:  # what cannot be watched may run all the same
            return None, f"peak memory is not known: {_in_one_line(error)}"
        if not recording.operations:
            return None, "peak memory is not known: no operation of the model could be recorded"
        return MemoryTimeline(recording.allocations).peak_bytes, ""

    def _clean_up(self) -> None:
        gc.collect()
        if "torch" in sys.modules:
            from tinytorch.perf.acceleration.size_device_torch import give_memory_back

            with suppress(RuntimeError):  # a device on which a kernel failed does nothing any more
                give_memory_back()


def find_axis(workload: Workload, kind: str, axis: int | None = None) -> int:
    """Give the number of the axis of examples (`batch`) or tokens (`sequence`)."""
    if not workload.arguments:
        raise SettingError(
            f"workload {workload.name!r} has no example inputs; give the model something to run on"
        )
    number = axis_number(kind if axis is None else axis)
    axis_length(workload.arguments, number)  # says what the inputs are, where there is none
    shapes = _shapes(workload.arguments)
    if axis is None and kind == "batch" and all(len(shape) < 2 for shape in shapes):
        seen = ", ".join(map(str, shapes))
        raise SettingError(
            f"the inputs of {workload.name!r} have one axis each ({seen}): nobody can tell whether "
            "it counts examples or features; give axis=0 if it counts examples, or inputs with an "
            "axis for these"
        )
    return number


def failure_kind(error: BaseException) -> str:
    """Tell running out of memory from everything else that a model may raise."""
    current: BaseException | None = error
    while current is not None:
        words = f"{type(current).__name__}: {current}"
        named = isinstance(current, MemoryError) or "OutOfMemory" in type(current).__name__
        if named or any(each.lower() in words.lower() for each in MEMORY_WORDS):
            return MEMORY
        current = current.__cause__ or current.__context__
    return REFUSED


def _guarded(run: Callable[[], object]) -> Callable[[], object]:
    """Let copies of this process that a call leaves behind end with it; else they would go on."""
    return ending_copies(run) if Forks.count else run


def _in_one_line(error: BaseException) -> str:
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    text = next((line for line in lines if line), "")
    text = text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."
    if isinstance(error, TinyTorchError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _items_before(arguments: tuple[Any, ...], axis: int) -> int:
    """Give how many rows of the first resized input lie beside each other: its examples."""
    shape = next(shape for shape in _shapes(arguments) if len(shape) > axis and shape[axis])
    return prod(shape[:axis])


def _shapes(value: Any) -> list[tuple[int, ...]]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [shape for item in value for shape in _shapes(item)]
    return [tuple(value.shape)] if hasattr(value, "shape") else []
