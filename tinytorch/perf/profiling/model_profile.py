"""Profiling a workload: unwatched calls, watched calls in turns with them, one recorded call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import SettingError
from tinytorch.measure.ceilings import Progress, machine_ceilings
from tinytorch.measure.counters import count_events
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.memory import traced_memory
from tinytorch.perf.profiling.check_run import check_run
from tinytorch.perf.profiling.turns import Task, time_in_turns
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload

__all__ = ["profile_model", "profile_workload"]


def profile_model(model: Any, *inputs: Any, name: str | None = None, **settings: Any) -> Profile:
    """Profile a model on these inputs. Settings are those of :func:`profile_workload`."""
    title = name or type(model).__name__
    return profile_workload(Workload(title, model, inputs), **settings)


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
    adapter = adapter_for(workload.model)
    device = adapter.device(workload.model, workload.inputs)
    task = Task(adapter, workload, device, is_training=training)
    limits = machine_ceilings(device, progress=progress) if ceilings else None
    with task.environment():
        tell(f"{workload.name}: checking")
        notes = check_run(adapter, workload.model, task)
        examples = _batch_size(workload.inputs, task.forward())
        if training and optimizer is not None:
            task.optimizer = adapter.make_optimizer(workload.model, optimizer)
        tell(f"{workload.name}: timing")
        timing = time_in_turns(task, runs, budget_s, progress)
        tell(f"{workload.name}: recording")
        task.phases.clear()
        adapter.drop_gradients(workload.model)
        recording = adapter.record(
            workload.model,
            task,
            device=device,
            inputs=workload.inputs,
            optimizer=task.optimizer,
        )
        traced = _traced_peak(task) if adapter.name == "core" else None
        events = count_events(task) if counters else None
    modules = adapter.modules(workload.model)
    if len(adapter.watchable_modules(workload.model)) < len(modules):
        notes = (*notes, "the layers inside of a compiled module are not timed one by one")
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
        parameters=adapter.parameters(workload.model),
        kinds={path: type(module).__name__ for path, module in modules.items()},
        environment=describe_environment(),
        ceilings=limits,
        examples=examples,
        wall=timing.wall,
        busy=timing.busy,
        traced_peak_bytes=traced,
        counters=events,
        notes=(*notes, *timing.notes),
    )


def _traced_peak(task: Task) -> int:
    """Give the most bytes that Python allocated during a call, scratch memory included."""
    with traced_memory() as traced:
        kept = task()
    del kept
    return traced.peak_above_baseline_bytes


def _batch_size(inputs: tuple[Any, ...], output: Any) -> int | None:
    """Give the number of examples, if every input and the output have as many along axis 0."""
    first = list(_first_axes((*inputs, output)))
    return first[0] if first and len(set(first)) == 1 else None


def _first_axes(value: Any) -> Iterator[int | None]:
    """Give the length of the first axis of every tensor, None for one that has no second axis."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _first_axes(item)
    elif hasattr(value, "shape"):
        shape = tuple(value.shape)
        yield int(shape[0]) if len(shape) > 1 else None


def _check(workload: Workload, runs: int | None, budget_s: float) -> None:
    if not workload.inputs:
        raise SettingError(
            f"workload {workload.name!r} has no example inputs; give the model something to run on"
        )
    if runs is not None and runs < 1:
        raise SettingError(f"runs={runs}: at least one run is needed to measure anything")
    if not budget_s > 0:
        raise SettingError(f"budget_s={budget_s}: a measurement needs some time")
