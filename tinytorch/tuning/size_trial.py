"""Calling a model with inputs of several sizes, in this process."""

from __future__ import annotations

import gc
import importlib
import mmap
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

from tinytorch import errors
from tinytorch.core.dispatch import active_backend, set_backend
from tinytorch.errors import MeasurementError, ModelError, SettingError, TinyTorchError
from tinytorch.measure.child_process import CRASHED, TIMED_OUT, Child, ChildError, import_path
from tinytorch.measure.environment import group_folders
from tinytorch.measure.worker import Forks, ending_copies, is_out_of_memory
from tinytorch.models.adapter import adapter_for
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import (
    Workload,
    axis_length,
    axis_number,
    preparations_of,
    resize_workload,
)
from tinytorch.profiling.profile import MemoryTimeline

__all__ = [
    "ENDED",
    "LATE",
    "MEMORY",
    "REFUSED",
    "Attempt",
    "CannotSendError",
    "SizeProcess",
    "SizeTrial",
    "TrialFacts",
    "available_bytes",
    "be_first_to_go",
    "failure_kind",
    "fence_address_space",
    "find_axis",
]


# ---------------------------------------------------------------- how much memory is left for
# trying out sizes on a processor, and a fence around it

OOM_SCORE = Path("/proc/self/oom_score_adj")
FIRST_TO_GO = "1000"
PROBE_BYTES = 64 << 20
"""So much more than is allowed is asked for, to see whether the fence holds."""


def available_bytes() -> int:
    """Give what this process may take without making the machine swap, as it is known now.

    A limit of the control groups around us counts, too: there, what exceeds it is killed.
    """
    import psutil

    return min([int(psutil.virtual_memory().available), *_left_in_groups()])


def fence_address_space(allowed_bytes: int) -> bool:
    """Let every allocation beyond so many bytes more fail, and say whether that really works.

    The fence is around the address space, since no system enforces one around memory that is in
    use. It stays for the rest of the process. False where the system has none, as on Windows and
    macOS; then nothing is limited.
    """
    import psutil

    try:
        resource = importlib.import_module("resource")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = psutil.Process().memory_info().vms + allowed_bytes
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (ImportError, AttributeError, ValueError, OSError):
        return False
    try:
        mmap.mmap(-1, allowed_bytes + PROBE_BYTES).close()
    except (OSError, OverflowError, ValueError):
        return True
    return False


def be_first_to_go() -> None:
    """Ask the system to end this process before others, should memory run out in spite of all."""
    with suppress(OSError):
        OOM_SCORE.write_text(FIRST_TO_GO, "ascii")


def _left_in_groups() -> Iterator[int]:
    """Yield what is left below the memory limits of our control groups, in both layouts."""
    for folder in group_folders("memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most, now = _number(folder / limit), _number(folder / used)
            if most is not None and now is not None:
                yield max(0, most - now + _reclaimable(folder))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None  # without a limit it reads "max"


def _reclaimable(folder: Path) -> int:
    """Give the bytes of files in memory, which go when somebody needs the room."""
    try:
        lines = (folder / "memory.stat").read_text("ascii").splitlines()
    except (OSError, ValueError):
        return 0
    facts = dict(line.split(maxsplit=1) for line in lines if " " in line)
    found = facts.get("inactive_file", facts.get("total_inactive_file", "0"))
    return int(found) if found.isdecimal() else 0


# ---------------------------------------------------------------- calling a model with inputs of
# several sizes, in this process

MEMORY, REFUSED = "memory", "refused"
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
            from tinytorch.tuning.size_device_torch import free_bytes

            return free_bytes(self.device)
        return available_bytes()

    def fence(self, allowed_bytes: int) -> bool:
        """Let what needs more than this fail, in a process of its own; say whether it will."""
        if self.is_on_gpu:
            from tinytorch.tuning.size_device_torch import fence_device

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
            from tinytorch.tuning.size_device_torch import allocated_peak, forget_peak

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
            from tinytorch.tuning.size_device_torch import give_memory_back

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
    return MEMORY if is_out_of_memory(error) else REFUSED


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


# ---------------------------------------------------------------- trying sizes in a child process,
# which is started anew when it did not survive one

SERVICE = "tinytorch.tuning.size_trial:SizeWorker"
ENDED, LATE = "ended", "late"
LOADING_S = 600.0
"""A large model may take minutes to load; a process that says nothing for longer is ended."""
WORDS_KEPT = 200
IN_PROGRAM = "; a class that lies in an imported file, or a target file.py:factory, can be"


class CannotSendError(Exception):
    """A workload that no other process can have, for a reason."""


class SizeProcess:
    """A workload in a process of its own, given by its target or sent over.

    `timeout_s` is how long an answer may take, `restarting_s` the time that was spent on starting
    the process anew. `while_waiting` is called now and then, so that somebody can see life.
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
        """Give the memory that is left where the model is."""
        return int(self._measured("free_bytes"))

    def fence(self, allowed_bytes: int) -> bool:
        """Let what needs more than this fail there; say whether it will."""
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
        """Give the seconds of a call at a size, on fresh inputs, after one that is not timed."""
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
                torch=_torch_settings(),
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
        """Ask for what must be answered, by a process that is still there."""
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
    """Return an error of tinytorch as it was raised in the process."""
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
            from tinytorch.tuning.size_device_torch import take_settings

            take_settings(torch)
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
    """Leave out what is not called, and say what cannot be copied at all."""
    prepared = preparations_of(workload.model)
    if prepared:
        what = ", ".join(each.what for each in prepared)
        raise CannotSendError(f"it was prepared in this process ({what}), and copies are not")
    return replace(workload, calibration=(), evaluate=None)


def _torch_settings() -> dict[str, Any] | None:
    if "torch" not in sys.modules:
        return None
    from tinytorch.tuning.size_device_torch import settings_in_force

    return settings_in_force()
