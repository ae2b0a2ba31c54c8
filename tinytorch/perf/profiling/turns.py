"""Calling a model unwatched and watched in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tinytorch.adapters.adapter import Adapter
from tinytorch.adapters.layer_watch import stamping_layers
from tinytorch.adapters.records import LayerCall
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.disturbance import observe
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import gc_paused
from tinytorch.workloads.profile import BACKWARD, UPDATE
from tinytorch.workloads.workload import Workload, call_model

__all__ = ["Task", "Timing", "time_in_turns"]

ROUNDS = 8
"""Turns of unwatched and watched calls: enough for noise to meet both alike."""
MIN_CALLS, MAX_CALLS = 5, 500


@dataclass
class Task:
    """One call of what is profiled, forward or a whole training step, and how to time it."""

    adapter: Adapter
    workload: Workload
    device: str
    optimizer: Any = None
    is_training: bool = False
    phases: list[tuple[str, Any, Any]] = field(default_factory=list)
    stamp: Callable[[], Any] = field(init=False)

    def __post_init__(self) -> None:
        self.stamp = self.adapter.stamp(self.device)

    def restart(self) -> None:
        """Wait until the device is idle, and forget what was marked before."""
        self.adapter.synchronize(self.device)
        self.adapter.forget_marks()
        self.phases.clear()

    def stamping_layers(self) -> AbstractContextManager[list[tuple[str, Any, Any]]]:
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
        return call_model(self.workload.model, *self.workload.inputs)

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
    """Times of calls, in seconds, in the order of the calls."""

    latency: Samples
    watched: Samples
    wall: Samples
    busy: Samples | None
    turns: tuple[int, ...]
    runs: tuple[tuple[LayerCall, ...], ...]
    notes: tuple[str, ...]


def time_in_turns(
    task: Task, runs: int | None, budget_s: float, progress: Progress | None
) -> Timing:
    """Call the model unwatched and watched in turns, so that noise meets both alike."""
    plain: list[float] = []
    wall: list[float] = []
    busy: list[float] = []
    watched: list[float] = []
    calls: list[tuple[LayerCall, ...]] = []
    gaps = 0
    per_round = _calls_per_round(task, runs, budget_s)
    runs_behind = task.adapter.hold_back(task.device, 0.0) is not None
    before = observe()
    for turn, count in enumerate(per_round):
        with gc_paused():
            for _ in range(count):
                device_s, wall_s = _call_once(task)
                plain.append(device_s)
                wall.append(wall_s)
            for _ in range(count if runs_behind else 0):
                busy.append(_call_watched(task, [], 3 * wall[-1])[0])
            with task.stamping_layers() as stamps:
                for _ in range(count):
                    watched_s, layer_calls, had_gaps = _call_watched(task, stamps, 4 * wall[-1])
                    watched.append(watched_s)
                    calls.append(layer_calls)
                    gaps += had_gaps
        if progress:
            progress.describe(f"{task.workload.name}: timing, turn {turn + 1} of {len(per_round)}")
    name, notes = task.workload.name, observe().doubts_since(before)
    if gaps:
        notes = (*notes, "the program waits for the device inside of a call: its times have gaps")
    return Timing(
        latency=Samples(f"{name} latency", tuple(plain)),
        watched=Samples(f"{name} watched", tuple(watched)),
        wall=Samples(f"{name} wall", tuple(wall)),
        busy=Samples(f"{name} busy", tuple(busy)) if busy else None,
        turns=tuple(per_round),
        runs=tuple(calls),
        notes=notes,
    )


def _call_once(task: Task) -> tuple[float, float]:
    """Time one call on the device's own time line, and by the wall clock until it is done."""
    task.restart()
    started = perf_counter()
    begin = task.stamp()
    task()
    end = task.stamp()
    task.adapter.synchronize(task.device)
    return task.adapter.seconds(begin, end), perf_counter() - started


def _call_watched(
    task: Task, stamps: list[tuple[str, Any, Any]], wait_s: float
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
    calls = tuple(
        LayerCall(path, seconds(begin, entered), seconds(begin, left))
        for path, entered, left in (*stamps, *task.phases)
    )
    return seconds(begin, end), calls, had_gaps


def _calls_per_round(task: Task, runs: int | None, budget_s: float) -> list[int]:
    """Warm up, then share out the calls that the budget allows over the rounds."""
    if runs is None:
        seconds = [_call_once(task)[1] for _ in range(3)]
        runs = int(budget_s / 2 / max(min(seconds), 1e-6))
        runs = max(MIN_CALLS, min(MAX_CALLS, runs))
    else:
        _call_once(task)
    rounds = min(ROUNDS, runs)
    return [runs // rounds + (turn < runs % rounds) for turn in range(rounds)]
