"""Calling a model unwatched and watched in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import Adapter
from tinytorch.adapters.layer_watch import Stamps, stamping_layers
from tinytorch.adapters.records import LayerCall
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.disturbance import observe
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import gc_paused
from tinytorch.workloads.profile import BACKWARD, UPDATE
from tinytorch.workloads.workload import Workload

__all__ = ["Task", "Timing", "time_in_turns"]

TURNS, TURN_S = 8, 0.05
"""At least so many turns of unwatched and watched calls; more, where calls are long."""
MIN_CALLS, MAX_CALLS = 5, 500
LEAST_TRACED, MOST_TRACED, TRACED_S = 3, 10, 0.2
"""So many calls are traced, fewer where they are long: a trace has a line for each operation, and
kernels take much the same time in each call."""
WAITS = "the program waits for the device inside of a call"
PLAUSIBLE = (0.8, 1.6)
"""What watching may do to the time of a call; anything else is the machine."""


@dataclass
class Task:
    """One call of what is profiled, forward or a whole training step, and how to time it."""

    adapter: Adapter
    workload: Workload
    device: str
    optimizer: Any = None
    is_training: bool = False
    phases: Stamps = field(default_factory=list)
    stamp: Callable[[], Any] = field(init=False)

    def __post_init__(self) -> None:
        self.stamp = self.adapter.stamp(self.device)

    def restart(self) -> None:
        """Wait until the device is idle, and forget what was marked before."""
        self.adapter.synchronize(self.device)
        self.adapter.forget_marks()
        self.phases.clear()

    @contextmanager
    def stamped_by(self, stamp: Callable[[], Any]) -> Iterator[None]:
        """Mark moments in another way inside of a block."""
        before, self.stamp = self.stamp, stamp
        try:
            yield
        finally:
            self.stamp = before

    def stamping_layers(self) -> AbstractContextManager[Stamps]:
        """Stamp the begin and the end of every call of a layer."""
        modules = self.adapter.watchable_modules(self.workload.model)
        return stamping_layers(modules, self.stamp, methods=self.adapter.methods)

    def __call__(self) -> Any:
        if not self.is_training:
            return self.forward()
        self.adapter.drop_gradients(self.workload.model)
        loss = self.adapter.scalar_loss(self.forward())
        self._timed(BACKWARD, lambda: self.adapter.backward(loss))
        if self.optimizer is not None:
            self._timed(UPDATE, lambda: self.adapter.optimizer_step(self.optimizer))
        return loss

    def forward(self) -> Any:
        return self.workload.run()

    def _timed(self, name: str, action: Callable[[], None]) -> None:
        begin = self.stamp()
        action()
        self.phases.append((name, begin, self.stamp()))

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Leave the model as it was, and build no graph unless training needs one."""
        with self.adapter.preserving(self.workload.model, parameters=self.is_training):
            if self.is_training:
                yield
            else:
                with self.adapter.without_gradients():
                    yield


@dataclass(frozen=True)
class Timing:
    """Times of calls, in seconds, in the order of the calls.

    `latency` is of single calls by the wall clock, with the device synchronised before and after;
    `device_time`, where there is a device, of calls between two events. Where it `is_traced`, what
    the device does is known from a trace: `busy` and `watched` are the same calls, of one turn.
    """

    latency: Samples
    watched: Samples
    device_time: Samples | None
    busy: Samples | None
    turns: tuple[int, ...]
    runs: tuple[tuple[LayerCall, ...], ...]
    notes: tuple[str, ...]
    is_traced: bool = False


def time_in_turns(
    task: Task, runs: int | None, budget_s: float, progress: Progress | None
) -> Timing:
    """Call the model unwatched and watched in turns, so that noise meets both alike.

    Who begins changes from turn to turn. Where a turn has several calls, the first one does not
    count: it finds the caches full of something else. Once a call turns out to wait for its device,
    so that it cannot be queued up, a trace tells about layers instead, where there is one.
    """
    tally, name = _Tally(), task.workload.name
    runs_behind = task.adapter.hold_back(task.device, 0.0) is not None
    before = observe()
    with gc_paused():
        per_turn = _calls_per_turn(task, runs, budget_s)
        for turn, count in enumerate(per_turn):
            kinds = tally.kinds(runs_behind=runs_behind)
            for take in kinds if turn % 2 == 0 else reversed(kinds):
                take(task, count)
            if turn == 0 and tally.gaps:
                tally.trace(task, sum(per_turn))
            if progress:
                progress.describe(f"{name}: timing, turn {turn + 1} of {len(per_turn)}")
    return tally.finished(name, per_turn, observe().doubts_since(before))


@dataclass
class _Tally:
    """What has been timed so far, in seconds."""

    plain: list[float] = field(default_factory=list)
    between_events: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    runs: list[tuple[LayerCall, ...]] = field(default_factory=list)
    gaps: int = 0
    wait_s: float = 0.0
    is_traced: bool = False

    def kinds(self, *, runs_behind: bool) -> list[Callable[[Task, int], None]]:
        """Give the ways in which calls are timed in a turn."""
        if self.is_traced:
            return [self.time_plain, self.time_by_events]
        on_device = [self.time_by_events, self.time_queued] if runs_behind else []
        return [self.time_plain, *on_device, self.time_watched]

    def time_plain(self, task: Task, count: int) -> None:
        """Time calls of the model as it is."""
        if count > 1:
            _call_once(task)
        for _ in range(count):
            self.plain.append(_call_once(task))

    def time_by_events(self, task: Task, count: int) -> None:
        """Time calls on the device's own time line; recording events takes time of its own."""
        if count > 1:
            _call_once(task)
        for _ in range(count):
            self.between_events.append(_call_between_events(task))

    def time_queued(self, task: Task, count: int) -> None:
        """Time calls for which the device waits until everything is queued up."""
        self._find_wait(task)
        for _ in range(count):
            self.busy.append(_call_watched(task, [], self.wait_s)[0])

    def time_watched(self, task: Task, count: int) -> None:
        """Time calls and each of their layers; on a GPU queued up first."""
        self._find_wait(task)
        with task.stamping_layers() as stamps:
            if count > 1:
                _call_watched(task, stamps, self.wait_s)
            for _ in range(count):
                seconds, calls, had_gaps = _call_watched(task, stamps, self.wait_s)
                self.watched.append(seconds)
                self.runs.append(calls)
                self.gaps += had_gaps

    def trace(self, task: Task, most: int) -> None:
        """Let a trace tell about some calls, instead of what was seen of them so far."""
        trace = task.adapter.kernel_trace(task.device)
        if trace is None:
            return
        fitting = int(TRACED_S / max(np.median(self.plain), 1e-9))
        count = min(most, max(LEAST_TRACED, min(MOST_TRACED, fitting)))
        marks = []
        with trace, task.stamped_by(trace.mark), task.stamping_layers() as stamps:
            for _ in range(count):
                stamps.clear()
                task.restart()
                begin = task.stamp()
                task()
                marks.append((begin, task.stamp(), list(task.phases), list(stamps)))
        if not trace.has_kernels:
            return
        self.is_traced = True
        self.runs = [
            _layer_calls(begin, phases, stamps, trace.seconds) for begin, _, phases, stamps in marks
        ]
        self.watched = [trace.seconds(begin, end) for begin, end, _, _ in marks]
        self.busy = list(self.watched)

    def _find_wait(self, task: Task) -> None:
        """See once how long a call takes; a device is held back much longer than that."""
        self.wait_s = self.wait_s or 4 * _call_once(task)

    def _samples(self, name: str, values: list[float]) -> Samples | None:
        return Samples(name, tuple(values)) if values else None

    def finished(self, name: str, turns: list[int], notes: tuple[str, ...]) -> Timing:
        if self.is_traced:
            turns = [len(self.watched)]
            notes = (*notes, f"{WAITS}: the times of layers are those of kernels in a trace")
        elif self.gaps:
            notes = (*notes, f"{WAITS}: its times have gaps")
        ratio = np.median(self.watched) / np.median(self.busy or self.plain)
        if not PLAUSIBLE[0] < ratio < PLAUSIBLE[1]:
            notes = (
                *notes,
                f"watched calls took {ratio:.2f} times as long as unwatched ones, which watching "
                "does not explain: the machine was not steady, measure again",
            )
        return Timing(
            latency=Samples(f"{name} latency", tuple(self.plain)),
            watched=Samples(f"{name} watched", tuple(self.watched)),
            device_time=self._samples(f"{name} device time", self.between_events),
            busy=self._samples(f"{name} busy", self.busy),
            turns=tuple(turns),
            runs=tuple(self.runs),
            notes=notes,
            is_traced=self.is_traced,
        )


def _call_once(task: Task) -> float:
    """Time one call by the wall clock, from an idle device until it is done."""
    task.restart()
    started = perf_counter()
    task()
    task.adapter.synchronize(task.device)
    return perf_counter() - started


def _call_between_events(task: Task) -> float:
    """Time one call on the device's own time line."""
    task.restart()
    begin = task.stamp()
    task()
    end = task.stamp()
    task.adapter.synchronize(task.device)
    return task.adapter.seconds(begin, end)


def _call_watched(
    task: Task, stamps: Stamps, wait_s: float
) -> tuple[float, tuple[LayerCall, ...], bool]:
    """Time one call and its layers; a GPU waits until everything is queued up."""
    stamps.clear()
    task.restart()
    still_waits = task.adapter.hold_back(task.device, wait_s)
    begin = task.stamp()
    task()
    end = task.stamp()
    had_gaps = still_waits is not None and not still_waits()
    task.adapter.synchronize(task.device)
    seconds = task.adapter.seconds
    calls = _layer_calls(begin, task.phases, stamps, seconds)
    return seconds(begin, end), calls, had_gaps


def _layer_calls(
    begin: Any, phases: Stamps, layers: Stamps, seconds: Callable[[Any, Any], float]
) -> tuple[LayerCall, ...]:
    """Give when layers and phases began and ended, counted from the begin of a call."""

    def call_of(path: str, entered: Any, left: Any) -> LayerCall:
        return LayerCall(path, seconds(begin, entered), seconds(begin, left))

    parts, calls = ([call_of(*each) for each in stamps] for stamps in (phases, layers))
    # Layers that run once more in the backward pass (checkpointing) are part of that.
    forward_ends = min((part.start for part in parts), default=math.inf)
    return (*(call for call in calls if call.start < forward_ends), *parts)


def _calls_per_turn(task: Task, runs: int | None, budget_s: float) -> list[int]:
    """Warm up, then share out the calls that the budget allows over the turns.

    Long calls take turns one by one, so that neighbours can be compared. Short ones do so in groups
    that last a while.
    """
    seconds = min(_call_once(task) for _ in range(3 if runs is None else 1))
    if runs is None:
        runs = int(budget_s / 2 / max(seconds, 1e-6))
        runs = max(MIN_CALLS, min(MAX_CALLS, runs))
    turns = min(runs, max(TURNS, int(runs * seconds / TURN_S)))
    return [runs // turns + (turn < runs % turns) for turn in range(turns)]
