"""Running a model with inputs of several sizes: here or in a child process, timed in turns."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from math import prod
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np

from tinytorch import errors
from tinytorch.core.dispatch import active_backend, set_backend
from tinytorch.errors import MeasurementError, ModelError, SettingError, TinyTorchError, short_text
from tinytorch.measure.child_process import CRASHED, TIMED_OUT, Child, ChildError, import_path
from tinytorch.measure.interleaving import interleave
from tinytorch.measure.memory import (
    available_bytes,
    be_first_to_go,
    device_memory,
    fence_memory,
    free_unused,
    peak_during,
)
from tinytorch.measure.worker import Forks, ending_copies, is_out_of_memory
from tinytorch.models.adapter import adapter_for, leaves
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import (
    Workload,
    axis_length,
    axis_number,
    preparations_of,
    resize_workload,
)
from tinytorch.profiling.profile import MemoryTimeline

# ---------------------------------------------------------------- calling a model with inputs of
# several sizes, in this process

MEMORY, REFUSED = "memory", "refused"
LONGEST_REASON = 160
REPEATING_S, MOST_REPEATS = 0.02, 4
"""Short calls are timed some times more, up to this long."""
BLOCK_S = 1e-3
"""Calls are timed in blocks of about this length; shorter ones mostly show the clock."""


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


@dataclass(frozen=True)
class WorkCount:
    """What one recorded call computes, and the memory that it holds.

    `peak_bytes` are those of live buffers; `resident_bytes` of them are parameters and buffers of
    the model. `not_counted` are kinds of operations without a formula.
    """

    flops: int
    peak_bytes: int
    resident_bytes: int
    not_counted: tuple[str, ...]
    operations: int


TRAINING_MODE = "the model is in training mode, and was measured so"


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
        self.device = workload.device
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
            notes=(*workload.notes, *((TRAINING_MODE,) if is_training else ())),
        )

    @property
    def is_on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Build no graph, and restore the model afterwards."""
        with self.adapter.preserving(self.workload.model), self.adapter.without_gradients():
            yield

    def close(self) -> None:
        """Release what was taken."""
        self._clean_up()

    def free_bytes(self) -> int:
        """Return the memory that is left where the model is."""
        return available_bytes(self.device)

    def fence(self, allowed_bytes: int) -> bool:
        """Make what needs more than this fail, in a separate process; return whether it will."""
        return fence_memory(allowed_bytes, self.device)

    def attempt(self, size: int, *, briefly: bool = False, with_peak: bool = True) -> Attempt:
        """Call the model at a size: once to see whether it works, once timed, once for its peak.

        `briefly` calls it once. Whatever it raises is the answer.
        """
        try:
            found = self._attempted(size, briefly=briefly, with_peak=with_peak)
        except Exception as error:  # a model or a device may raise anything
            found = Attempt(size, kind=failure_kind(error), failure=_brief(error))
        if not found.works or self.is_on_gpu:
            self._clean_up()  # only now: what was raised holds on to the tensors of its frames
        return found

    def time(self, size: int, loops: int) -> float:
        """Return the seconds of a call at a size, on fresh inputs, after one that is not timed."""
        try:
            run = _guarded(resize_workload(self.workload, self.axis, size).run)
            run()
            self.adapter.synchronize(self.device)
            return self.clock.time(run, loops) / loops
        except Exception as error:  # a model or a device may raise anything, also after a while
            raise ModelError(_brief(error)) from error

    def count(self, size: int) -> WorkCount:
        """Record one call at a size for its FLOPs and memory."""
        return self._counted(resize_workload(self.workload, self.axis, size))

    # ------------------------------------------------------------ one attempt

    def _attempted(self, size: int, *, briefly: bool, with_peak: bool) -> Attempt:
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
        peak, note = self._peak(resized) if with_peak else (None, "")
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
        before = device_memory(self.device)
        if before is not None:
            needed = peak_during(self.device, _guarded(resized.run))
            return before.held_bytes + (needed or 0), ""
        try:
            counted = self._counted(resized)
        except Exception as error:  # what cannot be watched may run all the same
            return None, f"peak memory is not known: {_brief(error)}"
        if not counted.operations:
            return None, "peak memory is not known: no operation of the model could be recorded"
        return counted.peak_bytes, ""

    def _counted(self, resized: Workload) -> WorkCount:
        recording = self.adapter.record(
            resized.model, _guarded(resized.run), device=self.device, inputs=resized.arguments
        )
        memory = MemoryTimeline(recording.allocations)
        held = memory.peak_by_category
        missing = {record.kind for record in recording.operations if record.cost is None}
        return WorkCount(
            flops=sum(record.flops for record in recording.operations),
            peak_bytes=memory.peak_bytes,
            resident_bytes=held.get("parameters", 0) + held.get("buffers", 0),
            not_counted=tuple(sorted(missing)),
            operations=len(recording.operations),
        )

    def _clean_up(self) -> None:
        gc.collect()
        with suppress(RuntimeError):  # a device on which a kernel failed does nothing any more
            free_unused()


def find_axis(workload: Workload, kind: str, axis: int | None = None) -> int:
    """Return the number of the axis of examples (`batch`) or tokens (`sequence`)."""
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
            f"the inputs of {workload.name!r} have one axis each ({seen}), which may count "
            "examples or features; give axis=0 if it counts examples, or inputs with an axis for "
            "these"
        )
    return number


def failure_kind(error: BaseException) -> str:
    """Return whether a model ran out of memory, or raised anything else."""
    return MEMORY if is_out_of_memory(error) else REFUSED


def _guarded(run: Callable[[], object]) -> Callable[[], object]:
    """Make forks of this process that a call leaves behind end with it; else they would go on."""
    return ending_copies(run) if Forks.count else run


def _brief(error: BaseException) -> str:
    text = short_text(error)
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."


def _items_before(arguments: tuple[Any, ...], axis: int) -> int:
    """Return how many rows of the first resized input lie beside each other: its examples."""
    shape = next(shape for shape in _shapes(arguments) if len(shape) > axis and shape[axis])
    return prod(shape[:axis])


def _shapes(value: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in leaves(value) if hasattr(leaf, "shape")]


# ---------------------------------------------------------------- trying sizes in a child process,
# which is started anew when it did not survive one

SERVICE = f"{__name__}:SizeWorker"
ENDED, LATE = "ended", "late"
LOADING_S = 600.0
"""A large model may take minutes to load; a process that says nothing for longer is ended."""
WORDS_KEPT = 200
IN_PROGRAM = "; a class that lies in an imported file, or a target file.py:factory, can be"


class CannotSendError(Exception):
    """A workload that no other process can have, for a reason."""


class SizeProcess:
    """A workload in a separate process, given by its target or sent over.

    `timeout_s` is how long an answer may take, `restarting_s` the time that was spent on starting
    the process anew. `while_waiting` is called now and then, for a sign of progress.
    """

    is_isolated = True

    def __init__(
        self,
        source: Workload | str,
        kind: str,
        axis: int | None = None,
        *,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.while_waiting = while_waiting
        self._target = source if isinstance(source, str) else None
        self._workload = None if isinstance(source, str) else _lean(source)
        self._kind, self._axis = kind, axis
        self._fenced_at: int | None = None
        self._child: Child | None = None
        self.timeout_s = LOADING_S
        self.restarting_s = 0.0
        self.facts = self._start()

    @contextmanager
    def environment(self) -> Iterator[None]:
        """End the process with the block."""
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()
        self._child = None

    def free_bytes(self) -> int:
        """Return the memory that is left where the model is."""
        return int(self._measured("free_bytes"))

    def fence(self, allowed_bytes: int) -> bool:
        """Make what needs more than this fail there; return whether it will."""
        self._fenced_at = allowed_bytes
        return bool(self._measured("fence", allowed_bytes=allowed_bytes))

    def attempt(self, size: int, *, briefly: bool = False) -> Attempt:
        """Call the model at a size; what becomes of the process is part of the answer."""
        try:
            found = Attempt(**self._asked("attempt", size=size, briefly=briefly))
        except (ChildError, CannotSendError) as error:
            is_late = isinstance(error, ChildError) and error.kind == TIMED_OUT
            self.close()  # whatever that was, the next size shall not suffer from it
            return Attempt(size, kind=LATE if is_late else ENDED, failure=_failed(error))
        if found.kind == REFUSED:
            self._leave_failed_device()
        return found

    def time(self, size: int, loops: int) -> float:
        """Return the seconds of a call at a size, on fresh inputs, after one that is not timed."""
        try:
            return float(self._measured("time", size=size, loops=loops))
        except ModelError:
            self._leave_failed_device()
            raise

    # ------------------------------------------------------------ the process

    def _leave_failed_device(self) -> None:
        """End a process whose kernel may have failed: its device computes nothing any more."""
        if self.facts.device.startswith("cuda"):
            self.close()

    def _start(self) -> TrialFacts:
        self._child = Child(SERVICE, path=import_path(), purpose="to try sizes in")
        try:
            self._child.send(
                "open",
                followed_by=self._send_over,
                target=self._target,
                kind=self._kind,
                axis=self._axis,
                backend=active_backend().name,
                torch=torch_settings(),
            )
            facts = self._child.answer(LOADING_S, self.while_waiting)
            return TrialFacts(**facts | {"notes": tuple(facts["notes"])})
        except ChildError as error:
            self.close()
            known = _as_ours(error)
            if known is not None:
                raise known from error
            hint = IN_PROGRAM if "'__main__'" in str(error) else ""
            raise CannotSendError(f"another process with it {_failed(error)}{hint}") from error
        except BaseException:
            self.close()
            raise

    def _send_over(self, pipe: BinaryIO) -> None:
        if self._workload is None:
            return
        try:
            pickle.dump(self._workload, pipe, protocol=pickle.HIGHEST_PROTOCOL)
        except OSError:
            raise  # reading its answer says what has happened
        except Exception as error:  # objects may raise anything when they are pickled
            text = " ".join(str(error).split())[:WORDS_KEPT]
            raise CannotSendError(f"it cannot be sent to another process ({text})") from error

    def _measured(self, do: str, **request: Any) -> Any:
        """Request what must be answered, by a process that is still there."""
        try:
            return self._asked(do, **request)
        except (ChildError, CannotSendError) as error:
            self.close()
            known = _as_ours(error) if isinstance(error, ChildError) else None
            raise known or MeasurementError(_failed(error)) from error

    def _asked(self, do: str, **request: Any) -> Any:
        if self._child is None:
            started = perf_counter()
            self._start()
            self.restarting_s += perf_counter() - started
            if self._fenced_at is not None:
                self._asked("fence", allowed_bytes=self._fenced_at)
        assert self._child is not None
        self._child.send(do, **request)
        return self._child.answer(self.timeout_s, self.while_waiting)


def _as_ours(error: ChildError) -> TinyTorchError | None:
    """Return an error of tinytorch that was raised in the process."""
    known = getattr(errors, error.raised, None) if error.raised else None
    return None if known is None else known(str(error))


def _failed(error: Exception) -> str:
    if not isinstance(error, ChildError) or error.kind == CRASHED:
        return str(error)
    return f"its process {error}" if error.kind == TIMED_OUT else f"its process raised {error}"


class SizeWorker:
    """The other end of a :class:`SizeProcess`: what may be asked there."""

    def __init__(self, service: Any) -> None:
        self._service = service
        be_first_to_go()

    def open(
        self,
        target: str | None,
        kind: str,
        axis: int | None,
        backend: str,
        torch: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Load a workload, or read the one that follows, and say what is known about it."""
        set_backend(backend)
        if target is not None:
            workload = load_workload(target)
        else:
            workload = pickle.load(self._service.requests)  # from the process that started this one
        self.trial = SizeTrial(workload, kind, axis)
        if torch and "torch" in sys.modules:
            take_torch_settings(torch)
        self.free_bytes, self.fence, self.time = (
            self.trial.free_bytes,
            self.trial.fence,
            self.trial.time,
        )
        self._environment = self.trial.environment()
        self._environment.__enter__()
        return asdict(self.trial.facts)

    def attempt(self, size: int, briefly: bool) -> dict[str, Any]:
        return asdict(self.trial.attempt(size, briefly=briefly))


def _lean(workload: Workload) -> Workload:
    """Return the workload without what is not called; raise for what cannot be copied."""
    prepared = preparations_of(workload.model)
    if prepared:
        what = ", ".join(each.what for each in prepared)
        raise CannotSendError(f"it was prepared in this process ({what}), and copies are not")
    return replace(workload, calibration=(), evaluate=None)


def torch_settings() -> dict[str, Any] | None:
    """Return what decides about the speed of PyTorch in this process; None where it is not used."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return {
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


def take_torch_settings(settings: Mapping[str, Any]) -> None:
    """Work with the settings of another process."""
    torch = sys.modules["torch"]
    torch.set_num_threads(settings["threads"])
    torch.set_float32_matmul_precision(settings["matmul_precision"])
    torch.set_default_dtype(getattr(torch, settings["default_dtype"]))


# ---------------------------------------------------------------- timing sizes in turns

SizeBench = SizeTrial | SizeProcess


def round_s(seconds: Iterable[float]) -> float:
    """Estimate a round of turns of sizes whose calls take these seconds.

    Each has a call that is not timed.
    """
    return sum(each + max(BLOCK_S, each) for each in seconds)


def time_in_turns(
    bench: SizeBench,
    seconds: Mapping[int, float],
    *,
    at_least: int,
    at_most: int,
    budget_s: float,
    tell: Callable[[str], None],
) -> tuple[dict[int, list[float]], dict[int, TinyTorchError]]:
    """Return the seconds per call of each size, round by round, and what others raised.

    `seconds` are about those of a call, by size.
    """
    loops = {size: max(1, round(BLOCK_S / each)) for size, each in seconds.items()}
    values: dict[int, list[float]] = {size: [] for size in seconds}
    failures: dict[int, TinyTorchError] = {}
    rng, told = np.random.default_rng(0), -1
    for number, size in interleave(
        loops, rng=rng, at_least=at_least, at_most=at_most, budget_s=budget_s
    ):
        if number > told:
            tell(f"timing {len(loops)} sizes, round {number + 1}")
            told = number
        try:
            values[size].append(bench.time(size, loops[size]))
        except TinyTorchError as error:
            failures[size] = error
            del loops[size], values[size]
    return values, failures
