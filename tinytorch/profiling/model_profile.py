"""Profiling a workload: unwatched calls, watched calls in turns with them, one recorded call."""

from __future__ import annotations

import inspect
import math
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.errors import BackendError, ModelError, SettingError, TinyTorchError, check_number
from tinytorch.measure.ceilings import Progress, machine_ceilings
from tinytorch.measure.counters import count_events
from tinytorch.measure.environment import describe_environment, observe
from tinytorch.measure.interleaving import interleave
from tinytorch.measure.memory import traced_memory
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import gc_paused
from tinytorch.models.adapter import (
    Adapter,
    ParameterSpec,
    Stamps,
    adapter_for,
    entering_layers,
    stamping_layers,
)
from tinytorch.models.records import LayerCall, Recording
from tinytorch.models.workload import Workload, batch_size
from tinytorch.profiling.layers import BACKWARD, UPDATE
from tinytorch.profiling.profile import Profile

# ---------------------------------------------------------------- calling a model unwatched and
# watched in turns

TURNS, TURN_S = 8, 0.05
"""At least this many turns of unwatched and watched calls; more, where calls are long."""
MIN_CALLS, MAX_CALLS = 5, 500
FEWEST_CALLS = 3
"""Calls of which five both ways take twice the budget are made this often."""
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
        """Restore the model afterwards, and build no graph unless training needs one."""
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
    disturbances: tuple[str, ...] = ()
    is_traced: bool = False


def time_in_turns(
    task: Task, runs: int | None, budget_s: float, progress: Progress | None
) -> Timing:
    """Call the model unwatched and watched in turns, so that noise meets both alike.

    Their order is random. Where a turn has several calls, the first one does not
    count: it finds the caches full of something else. Once a call turns out to wait for its device,
    so that it cannot be queued up, a trace tells about layers instead, where there is one.
    """
    tally, name = _Tally(), task.workload.name
    runs_behind = task.adapter.hold_back(task.device, 0.0) is not None
    before = observe()
    rng = np.random.default_rng(0)
    with gc_paused():
        per_turn = _calls_per_turn(task, runs, budget_s)
        for turn, count in enumerate(per_turn):
            for _, take in interleave(tally.kinds(runs_behind=runs_behind), rng=rng, at_least=1):
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
        """Return the ways in which calls are timed in a turn."""
        if self.is_traced:
            return [self.time_plain, self.time_by_events]
        on_device = [self.time_by_events, self.time_queued] if runs_behind else []
        return [self.time_plain, *on_device, self.time_watched]

    def time_plain(self, task: Task, count: int) -> None:
        """Time calls of the unmodified model."""
        if count > 1:
            _call_once(task)
        for _ in range(count):
            self.plain.append(_call_once(task))

    def time_by_events(self, task: Task, count: int) -> None:
        """Time calls on the device's own time line; recording events takes additional time."""
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
        """Replace what was seen of calls so far by a trace of some calls."""
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
        """Measure once how long a call takes; a device is held back much longer than that."""
        self.wait_s = self.wait_s or 4 * _call_once(task)

    def _samples(self, name: str, values: list[float]) -> Samples | None:
        return Samples(name, tuple(values)) if values else None

    def finished(self, name: str, turns: list[int], disturbances: tuple[str, ...]) -> Timing:
        notes: tuple[str, ...] = ()
        if self.is_traced:
            turns = [len(self.watched)]
            notes = (f"{WAITS}: the times of layers are those of kernels in a trace",)
        elif self.gaps:
            notes = (f"{WAITS}: its times have gaps",)
        ratio = np.median(self.watched) / np.median(self.busy or self.plain)
        if not PLAUSIBLE[0] < ratio < PLAUSIBLE[1]:
            disturbances = (
                *disturbances,
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
            disturbances=disturbances,
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
    """Return when layers and phases began and ended, counted from the begin of a call."""

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
    seconds = _call_once(task)
    least = FEWEST_CALLS if seconds * MIN_CALLS > budget_s else MIN_CALLS
    if runs is None:
        if least == MIN_CALLS:
            seconds = min(seconds, *(_call_once(task) for _ in range(2)))
        runs = int(budget_s / 2 / max(seconds, 1e-6))
        runs = max(least, min(MAX_CALLS, runs))
    turns = min(runs, max(TURNS, int(runs * seconds / TURN_S)))
    return [runs // turns + (turn < runs % turns) for turn in range(turns)]


# ---------------------------------------------------------------- the first calls of a model: do
# they work, and do two of them give the same?


def check_run(adapter: Adapter, model: Any, call: Callable[[], Any]) -> tuple[str, ...]:
    """Call a model twice and return notes on what makes its measurements uncertain.

    An exception becomes a ModelError that names the layer.
    """
    with adapter.naming_failures(model):
        output = call()
    if isinstance(output, (Generator, Coroutine, AsyncGenerator)):
        raise ModelError(
            f"{type(model).__name__} returned a {type(output).__name__}, which has computed "
            "nothing yet; profile a function that runs it to the end"
        )
    if output is None or isinstance(output, str):
        raise ModelError(
            f"{type(model).__name__} returned {output!r}, which holds no tensor; "
            "does its forward() return the result?"
        )
    first, second = (_trace(adapter, model, call) for _ in range(2))
    for (path, before), (other, after) in zip(first, second, strict=False):
        if path != other:
            return (f"not deterministic: after the same inputs {path!r} ran, then {other!r}",)
        if before != after:
            kind = type(adapter.modules(model)[path]).__name__
            return (
                f"not deterministic: {path or 'the model'!r} ({kind}) gave different outputs "
                "for the same inputs; times still hold, outputs cannot be compared",
            )
    if len(first) != len(second):
        return (f"not deterministic: one call ran {len(first)} layers, the next {len(second)}",)
    return ()


def _trace(adapter: Adapter, model: Any, call: Callable[[], Any]) -> list[tuple[str, Any]]:
    """Return the layers in the order in which they ended, with a digest of their outputs."""
    seen: list[tuple[str, Any]] = []

    def leave(path: str, error: BaseException | None, output: Any) -> None:
        seen.append((path, adapter.digest(output)))

    modules = adapter.watchable_modules(model)
    with entering_layers(modules, lambda path: None, leave, methods=adapter.methods):
        call()
    return seen


# ---------------------------------------------------------------- profiling a workload: unwatched
# calls, watched calls in turns with them, one recorded call


def profile_model(
    model: Any,
    *inputs: Any,
    keywords: Mapping[str, Any] | None = None,
    name: str | None = None,
    **settings: Any,
) -> Profile:
    """Profile a model on these inputs. Settings are those of :func:`profile_workload`.

    `keywords` are inputs that the model takes by name.
    """
    unknown = settings.keys() - inspect.signature(profile_workload).parameters.keys()
    if unknown:
        raise SettingError(
            f"no setting {sorted(unknown)}; give what the model takes by name as keywords={{...}}"
        )
    title = name or type(model).__name__
    return profile_workload(Workload(title, model, inputs, keywords=keywords or {}), **settings)


def profile_workload(
    workload: Workload,
    *,
    training: bool = False,
    optimizer: str | None = "adam",
    runs: int | None = None,
    budget_s: float = 3.0,
    ceilings: bool = True,
    counters: bool = False,
    progress: Progress | None = None,
) -> Profile:
    """Measure a workload layer by layer and operation by operation.

    `training` profiles a step: forward, backward of a scalar loss (the model's own, or the sum of
    its outputs), and an update by `optimizer` (sgd, adam, adamw or None); afterwards the model has
    its old parameters again. `runs` fixes how often the model is called unwatched and watched;
    otherwise both together take about `budget_s`. Without `ceilings` nothing is known about bounds,
    and the machine need not be measured. `counters` asks the processor's own (cycles, cache misses)
    through the program ``perf``, where the machine allows it.
    """
    _check(workload, runs, budget_s)
    tell = progress.describe if progress else lambda text: None
    adapter = adapter_for(workload.model, workload.arguments)
    device = workload.device
    if device == "meta":
        raise BackendError(
            "the model is on the meta device, which computes nothing: count_flops can count it, "
            "but a profile needs it on a device that runs it"
        )
    task = Task(adapter, workload, device, is_training=training)
    limits = machine_ceilings(device, progress=progress) if ceilings else None
    with task.environment():
        tell(f"{workload.name}: checking")
        notes = check_run(adapter, workload.model, task)
        examples = batch_size(workload.arguments, task.forward())
        if training and optimizer is not None:
            task.optimizer = adapter.make_optimizer(workload.model, optimizer)
        with _expecting_no_failure():
            tell(f"{workload.name}: timing")
            timing = time_in_turns(task, runs, budget_s, progress)
            tell(f"{workload.name}: recording")
            recording = _record(task, by_trace=timing.is_traced)
            traced = _traced_peak(task) if adapter.name == "core" else None
            events = count_events(task) if counters else None
    modules = adapter.modules(workload.model)
    parameters = adapter.parameters(workload.model)
    notes += _blind_spots(task, recording, parameters, timing)
    return Profile(
        name=workload.name,
        framework=adapter.name,
        device=device,
        mode="training" if training else "inference",
        latency=timing.latency,
        watched=timing.watched,
        turns=timing.turns,
        runs=timing.runs,
        recording=recording,
        parameters=parameters,
        kinds={path: type(module).__name__ for path, module in modules.items()},
        environment=describe_environment(),
        ceilings=limits,
        examples=examples,
        device_time=timing.device_time,
        busy=timing.busy,
        traced_peak_bytes=traced,
        counters=events,
        notes=(*workload.notes, *notes, *timing.disturbances, *timing.notes),
        disturbances=timing.disturbances,
        is_traced=timing.is_traced,
    )


@contextmanager
def _expecting_no_failure() -> Iterator[None]:
    try:
        yield
    except TinyTorchError:
        raise
    except Exception as error:
        raise ModelError(
            f"the model worked at first, and later raised {type(error).__name__}: {error}"
        ) from error


def _record(task: Task, *, by_trace: bool) -> Recording:
    model = task.workload.model
    task.phases.clear()
    task.adapter.drop_gradients(model)
    return task.adapter.record(
        model,
        task,
        device=task.device,
        inputs=task.workload.arguments,
        optimizer=task.optimizer,
        by_trace=by_trace,
    )


def about_training_mode(adapter: Adapter, model: Any) -> str:
    """Return which layers training mode changes, or ""."""
    changing = {
        type(module).__name__
        for module in adapter.modules(model).values()
        if getattr(module, "training", False)
        and any(kind in type(module).__name__ for kind in ("Dropout", "BatchNorm"))
    }
    if not changing:
        return ""
    return (
        f"the model is in training mode, which changes {', '.join(sorted(changing))}; "
        "call model.eval() before to measure inference"
    )


def _blind_spots(
    task: Task, recording: Recording, parameters: Iterable[ParameterSpec], timing: Timing
) -> tuple[str, ...]:
    """Return notes on what ran without being recorded, so that no total is taken for complete."""
    model, notes = task.workload.model, []
    if not task.is_training and (doubt := about_training_mode(task.adapter, model)):
        notes.append(doubt)
    if len(task.adapter.watchable_modules(model)) < len(task.adapter.modules(model)):
        notes.append("the layers inside of a compiled module are not timed one by one")
    if not recording.operations:
        return (
            *notes,
            "no operation was recorded: nothing of this model ran in TinyTorch's framework or in "
            "PyTorch, in this thread",
        )
    seen = {record.path for record in recording.operations}
    called = {call.path for run in timing.runs for call in run}
    silent = sorted({each.path for each in parameters} & called - seen)
    if silent:
        notes.append(
            f"{', '.join(map(repr, silent[:3]))} ran, but no operation of theirs was seen; work "
            "in other threads is not counted"
        )
    return tuple(notes)


def _traced_peak(task: Task) -> int:
    """Return the peak of bytes that Python allocated during a call, scratch memory included."""
    with traced_memory() as traced:
        kept = task()
    del kept
    return traced.peak_above_baseline_bytes


def _check(workload: Workload, runs: int | None, budget_s: float) -> None:
    if not workload.arguments:
        raise SettingError(
            f"workload {workload.name!r} has no example inputs; give the model something to run on"
        )
    check_number("runs", 1 if runs is None else runs, least=1)
    check_number("budget_s", budget_s, above=0)
