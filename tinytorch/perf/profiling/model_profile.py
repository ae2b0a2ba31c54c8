"""Profiling a workload: unwatched calls, watched calls in turns with them, one recorded call."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tinytorch.adapters.adapter import ParameterSpec, adapter_for
from tinytorch.adapters.records import Recording
from tinytorch.errors import BackendError, ModelError, SettingError, TinyTorchError
from tinytorch.measure.ceilings import Progress, machine_ceilings
from tinytorch.measure.counters import count_events
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.memory import traced_memory
from tinytorch.perf.profiling.check_run import check_run
from tinytorch.perf.profiling.turns import Task, Timing, time_in_turns
from tinytorch.workloads.batch_size import batch_size
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload

__all__ = ["IN_TRAINING_MODE", "profile_model", "profile_workload"]

IN_TRAINING_MODE = "the model is in training mode"
"""How the note begins where that changes what layers compute."""


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
    device = adapter.device(workload.model, workload.arguments)
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
        notes=(*notes, *timing.notes),
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


def _blind_spots(
    task: Task, recording: Recording, parameters: Iterable[ParameterSpec], timing: Timing
) -> tuple[str, ...]:
    """Say what ran without being seen, so that no total is taken for complete."""
    model, notes = task.workload.model, []
    changing = [
        type(module).__name__
        for module in task.adapter.modules(model).values()
        if getattr(module, "training", False)
        and any(word in type(module).__name__ for word in ("Dropout", "BatchNorm"))
    ]
    if changing and not task.is_training:
        notes.append(
            f"{IN_TRAINING_MODE}, which changes {', '.join(sorted(set(changing)))}; "
            "call model.eval() before to measure inference"
        )
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
    """Give the most bytes that Python allocated during a call, scratch memory included."""
    with traced_memory() as traced:
        kept = task()
    del kept
    return traced.peak_above_baseline_bytes


def _check(workload: Workload, runs: int | None, budget_s: float) -> None:
    if not workload.arguments:
        raise SettingError(
            f"workload {workload.name!r} has no example inputs; give the model something to run on"
        )
    if runs is not None and runs < 1:
        raise SettingError(f"runs={runs}: at least one run is needed to measure anything")
    if not budget_s > 0:
        raise SettingError(f"budget_s={budget_s}: a measurement needs some time")
