"""Executors: trials in fresh child processes, one at a time on each group of cores."""

from __future__ import annotations

import os
import platform
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from threading import Condition, Event, Thread, current_thread, main_thread
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, Protocol, Self

from tinytorch.codec import Coded
from tinytorch.errors import Failure, Note, SettingError, TinyTorchError
from tinytorch.measure import child_process
from tinytorch.measure.environment import describe_environment

# ---------------------------------------------------------------- what a trial is asked, what comes
# of it, and what a slot says about itself

FOLDERS = "trial"
NOT_STARTED, LOST = "not-started", "lost"
"""Codes of failures beside those of :class:`ChildError`: no process; a slot that went away."""
DISTURBED = "foreign-load"
DISTURBED_SHARE = 0.1
"""From this share of the slot's processor time on, what others used marks a result."""
ENOUGH_CPU_S = 0.1
"""The kernel counts in steps of 10 ms for each core: less says nothing."""
LOAD_WINDOW_S = 0.5
JOINED_S = 5.0


@dataclass(frozen=True)
class TrialCall(Coded):
    """What a fresh process is asked: `serve` names what answers, as in :class:`Child`.

    `key` is unique. With a `machine` only a slot with that fingerprint may answer. `path` and
    `folder` are where the process imports from and runs; empty: as the slot does.
    """

    key: str
    serve: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 300.0
    machine: str = ""
    path: tuple[str, ...] = ()
    folder: str = ""

    def from_here(self) -> TrialCall:
        """Return the call for a process that imports and runs where this one does."""
        return replace(self, path=tuple(child_process.import_path()), folder=os.getcwd())


@dataclass(frozen=True)
class TrialResult(Coded):
    """What a process answered, or the reason why there is no answer; and where that was.

    `child_s` are the seconds from the start of the process to its end.
    """

    key: str
    answer: Any = None
    failure: Failure | None = None
    slot: str = ""
    machine: str = ""
    child_s: float = 0.0
    notes: tuple[Note, ...] = ()

    @property
    def is_disturbed(self) -> bool:
        return any(note.code == DISTURBED for note in self.notes)


@dataclass(frozen=True)
class SlotReport(Coded):
    """A group of cores that measures: what it is, and what it found on arrival.

    `floor` is the smallest effect that its A/A comparisons can tell from none, `alarms` how many of
    them called identical code different; `foreign_load` is how many of its cores others kept busy.
    A slot with an `obstacle` is not used.
    """

    name: str
    host: str
    cores: tuple[int, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    floor: float | None = None
    alarms: int = 0
    checks: int = 0
    foreign_load: float | None = None
    obstacle: str = ""

    also_written = ("machine",)

    @property
    def machine(self) -> str:
        """The fingerprint of hardware and software, or ""."""
        return str(self.environment.get("fingerprint", ""))


class Executor(Protocol):
    """What runs trials: one measurement at a time on each of its slots."""

    @property
    def slots(self) -> Sequence[SlotReport]:
        """The slots: one without a `machine` has not arrived, one with an `obstacle` is idle."""

    @property
    def reports(self) -> bool:
        """Whether slots say what they are when they arrive."""

    @property
    def arriving(self) -> int:
        """How many slots were asked what they are, and have not answered yet."""

    @property
    def running(self) -> Mapping[str, str]:
        """The name of each busy slot, and the key of what it measures."""

    def submit(self, call: TrialCall) -> None:
        """Add a call to those that wait for a slot."""

    def wait(self, timeout_s: float | None = None) -> list[TrialResult]:
        """Return what has finished since; wait for one, or for a slot, or until time is up.

        Without a time limit it returns at once when nothing is left.
        """

    def close(self) -> None:
        """End what is running, and release the slots."""


class ClosedAfterBlock(ABC):
    """An executor that a `with` block closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End what is running, and release the slots."""


# ---------------------------------------------------------------- a slot: cores, and one child
# process after the other on them


class StoppedError(TinyTorchError):
    """The executor was closed while a trial was running."""


def describe(**ignored: Any) -> dict[str, Any]:
    """Return what a slot without A/A comparisons reports, for a process that was asked."""
    return {"environment": describe_environment().to_dict()}


ARRIVAL = TrialCall("arrival", f"{__name__}:describe")


class Slot:
    """Measures one trial after the other, each in a fresh process pinned to `cores`.

    Without `cores` it has those of this process, and pins nothing. `arrival` is asked first: its
    answer has `environment`, and may have `floor`, `alarms` and `checks`. `variables` is the
    environment of the processes, where it is not that of this one.
    """

    def __init__(
        self,
        cores: Collection[int] = (),
        *,
        name: str = "",
        arrival: TrialCall = ARRIVAL,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.host = platform.node()
        self.cores = tuple(sorted(cores)) or usable_core_numbers()
        self.is_pinned = bool(cores)
        self.name = name or f"{self.host}/{cores_text(self.cores)}"
        self.machine = ""
        self._arrival, self._variables = arrival, variables
        self._is_stopping = Event()
        child_process.remove_stale_folders(FOLDERS)

    def pin(self) -> None:
        """Let this thread, and processes that it starts, run on the slot's cores alone."""
        if not self.is_pinned:
            return
        if not hasattr(os, "sched_setaffinity"):
            raise SettingError("this system cannot pin a process to cores; use one slot only")
        with suppress(OSError):  # what came of it decides
            os.sched_setaffinity(0, self.cores)
        found = usable_core_numbers()
        if found != self.cores:
            raise SettingError(
                f"{self.name} was pinned to cores {cores_text(self.cores)} and runs on "
                f"{cores_text(found)}; give cores that this process may use"
            )

    def arrive(self) -> SlotReport:
        """Pin, and report what the slot is and what it found."""
        report = SlotReport(self.name, self.host, self.cores)
        try:
            self.pin()
        except SettingError as error:
            return replace(report, obstacle=str(error))
        load = foreign_load(self.cores)
        result = self.run(self._arrival)
        if result.failure is not None:
            return replace(report, foreign_load=load, obstacle=str(result.failure))
        report = replace(report, foreign_load=load, **result.answer)
        self.machine = report.machine
        return report

    def run(self, call: TrialCall) -> TrialResult:
        """Answer a call in a fresh process; never raise for what happens there."""
        started, before = perf_counter(), core_seconds(self.cores)
        answer, failure, used_s = self._asked(call)
        took_s, after = perf_counter() - started, core_seconds(self.cores)
        notes: tuple[Note, ...] = ()
        if used_s is not None and before is not None and after is not None:
            notes = self._doubts(after - before - used_s, len(self.cores) * took_s)
        return TrialResult(call.key, answer, failure, self.name, self.machine, took_s, notes)

    def stop(self) -> None:
        """End what is running; that call raises StoppedError."""
        self._is_stopping.set()

    def _asked(self, call: TrialCall) -> tuple[Any, Failure | None, float | None]:
        """Return the answer or the failure, and the processor time of the process if known."""
        with child_process.owned_folder(FOLDERS) as scratch:
            try:
                child = child_process.Child(
                    call.serve,
                    path=list(call.path) or child_process.import_path(),
                    scratch=scratch,
                    folder=call.folder or None,
                    environment=self._variables,
                )
            except SettingError as error:
                return None, Failure(str(error), NOT_STARTED, self.name), None
            try:
                child.send(None, **call.arguments)
                answer = child.answer(call.timeout_s, self._check_stop)
                return answer, None, cpu_seconds(child.process.pid)
            except child_process.ChildError as error:
                return None, Failure(str(error), error.kind, call.key), None
            finally:
                child.close()

    def _check_stop(self) -> None:
        if self._is_stopping.is_set():
            raise StoppedError("the executor was closed")

    def _doubts(self, foreign_s: float, total_s: float) -> tuple[Note, ...]:
        if foreign_s < ENOUGH_CPU_S or foreign_s < DISTURBED_SHARE * total_s:
            return ()
        words = f"{foreign_s / total_s:.0%} of the slot's processor time went to other programs"
        return (Note(words, DISTURBED, self.name),)


def usable_core_numbers() -> tuple[int, ...]:
    """Return the logical CPUs that this thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def core_groups(cores: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return `count` disjoint groups of equal size; cores left over are not used.

    >>> core_groups([0, 1, 2, 3, 4], 2)
    [(0, 1), (2, 3)]
    """
    size = len(cores) // count if count > 0 else 0
    if not size:
        raise SettingError(
            f"{count} slots need as many cores, and there are {len(cores)}; use fewer slots"
        )
    return [tuple(cores[place * size : (place + 1) * size]) for place in range(count)]


def cores_text(cores: Sequence[int]) -> str:
    """Write cores as the kernel does.

    >>> cores_text((0, 1, 2, 5))
    '0-2,5'
    """
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def core_seconds(cores: Sequence[int]) -> float | None:
    """Return the seconds since boot in which these cores were busy, or taken by the host's guests.

    None where the system does not say.
    """
    import psutil

    try:
        times = psutil.cpu_times(percpu=True)
        found = [times[core] for core in cores]
    except (OSError, IndexError, NotImplementedError, RuntimeError):
        return None
    idle = ("idle", "iowait", "guest", "guest_nice")  # a guest's time counts as the user's, too
    return float(sum(sum(v for k, v in x._asdict().items() if k not in idle) for x in found))


def foreign_load(cores: Sequence[int], window_s: float = LOAD_WINDOW_S) -> float | None:
    """Return how many of these cores others keep busy, by watching for a moment."""
    before, started = core_seconds(cores), perf_counter()
    sleep(window_s)
    after, took_s = core_seconds(cores), perf_counter() - started
    return None if before is None or after is None else max(0.0, after - before) / took_s


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time of a process and those that it has started; None if unknown."""
    import psutil

    total = 0.0
    try:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    except psutil.Error:
        return None
    return float(total)


# ---------------------------------------------------------------- local: the slots of this machine


class LocalExecutor(ClosedAfterBlock):
    """Runs trials on this machine, on one slot for each group of cores.

    Without groups there is one slot, with all cores that this process may use. Slots report on
    arrival if there is an `arrival` to ask.
    """

    def __init__(
        self, groups: Sequence[Collection[int]] = (), *, arrival: TrialCall | None = None
    ) -> None:
        self.reports = arrival is not None
        self._slots = [Slot(cores, arrival=arrival or ARRIVAL) for cores in groups or [()]]
        self._reports = {x.name: SlotReport(x.name, x.host, x.cores) for x in self._slots}
        self._running: dict[str, str] = {}
        self._calls: deque[TrialCall] = deque()
        self._changed = Condition()
        self._results: SimpleQueue[TrialResult | BaseException | None] = SimpleQueue()
        self._unfinished = 0
        self._is_closed = False
        self._threads = [
            Thread(target=self._serve, args=(slot, arrival is not None), daemon=True)
            for slot in self._slots
        ]
        for thread in self._threads:
            thread.start()

    @property
    def slots(self) -> Sequence[SlotReport]:
        return tuple(self._reports.values())

    @property
    def arriving(self) -> int:
        open_ones = (each for each in self.slots if not each.machine and not each.obstacle)
        return sum(1 for _ in open_ones) if self.reports else 0

    @property
    def running(self) -> Mapping[str, str]:
        return dict(self._running)

    def submit(self, call: TrialCall) -> None:
        """Add a call to those that wait for a slot."""
        with self._changed:
            self._unfinished += 1
            self._calls.append(call)
            self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> list[TrialResult]:
        """Return what has finished since; wait for one, or for a slot, or until time is up."""
        if self._is_closed or (not self._unfinished and timeout_s is None):
            return []
        try:
            one = self._results.get(timeout=timeout_s)
        except Empty:
            return []
        if isinstance(one, BaseException):
            raise one
        if one is None:
            return []
        self._unfinished -= 1
        return [one]

    def close(self) -> None:
        """End what is running, and the threads that watch it."""
        with self._changed:
            self._is_closed = True
            self._calls.clear()
            self._changed.notify_all()
        for slot in self._slots:
            slot.stop()
        for thread in self._threads:
            thread.join(JOINED_S)

    def _serve(self, slot: Slot, is_asked: bool) -> None:
        """Answer calls on one slot, in a thread of its own that is pinned to it."""
        assert current_thread() is not main_thread()  # else the whole program would be pinned
        try:
            if is_asked:
                report = slot.arrive()
                self._reports[slot.name] = report
                self._results.put(None)  # a slot has arrived
                if report.obstacle:
                    return
            else:
                slot.pin()
            while (call := self._next_call(slot)) is not None:
                self._running[slot.name] = call.key
                self._results.put(slot.run(call))
                self._running.pop(slot.name, None)
        except StoppedError:
            pass
        except BaseException as error:
            self._results.put(error)

    def _next_call(self, slot: Slot) -> TrialCall | None:
        """Return the first call that this slot may answer; None once the executor is closed."""
        with self._changed:
            while not self._is_closed:
                for call in self._calls:
                    if call.machine in ("", slot.machine):
                        self._calls.remove(call)
                        return call
                self._changed.wait()
        return None


def run_alone(call: TrialCall, executor: Executor | None = None) -> TrialResult:
    """Run one trial to its end: on an executor that has nothing else to do, or on this machine."""
    if executor is None:
        with LocalExecutor() as own:
            return run_alone(call, own)
    executor.submit(call)
    while True:
        for result in executor.wait():
            if result.key == call.key:
                return result
