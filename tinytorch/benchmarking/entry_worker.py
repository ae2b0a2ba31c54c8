"""Measuring one entry of a suite, in a process that exists for it alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tinytorch.benchmarking.checks import held_ready, mean_interval
from tinytorch.benchmarking.scenarios import (
    Query,
    measure_offline,
    measure_server,
    measure_single_stream,
)
from tinytorch.benchmarking.suite_file import (
    NO_TRANSFORM,
    AgainstBaseline,
    Entry,
    Offline,
    Server,
    SingleStream,
    catalog_stack,
)
from tinytorch.comparison.accuracy import WORSE, AccuracyComparison, compare_accuracy
from tinytorch.comparison.compare import compare
from tinytorch.comparison.outputs import OutputDifference, attention_mask_of, compare_outputs
from tinytorch.comparison.resources import Resources, measure_resources
from tinytorch.core.dispatch import active_backend, set_backend
from tinytorch.errors import ModelError
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.targets import load_reference, load_workload, resolved
from tinytorch.models.workload import Workload, batch_size, resize_workload
from tinytorch.records.record import comparison_samples
from tinytorch.tuning.catalog import find_entries
from tinytorch.tuning.trying import SkippedError, build_stack, by_place

ACCURACY_UNITS = {"accuracy": "fraction"}
IN_TRAINING = "the model was in training mode; it was measured in evaluation mode"


def answer(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`measure_entry` finds, for a process that was asked."""
    return measure_entry(Entry.from_dict(entry))


def measure_entry(entry: Entry) -> dict[str, Any]:
    """Return everything that was measured about an entry, ready for JSON.

    The order is: does it work, how good is it, how fast is it, what does it need. Each finds the
    model as the target gave it, in evaluation mode. What raises on the way leaves no numbers
    behind.
    """
    if entry.backend is not None:
        set_backend(entry.backend)
    baseline = _sized(entry)
    workload = _transformed(entry, baseline)
    adapter = adapter_for(workload.model, workload.arguments)
    device = workload.device
    notes = [*workload.notes, *_about_backend(entry, adapter)]
    with held_ready(adapter, workload.model) as was_training:
        with adapter.naming_failures(workload.model):
            output = workload.run()
        notes += [IN_TRAINING] if was_training else []
        notes += _about_output(adapter, output)
        examples = batch_size(workload.arguments, output)
    with held_ready(adapter, workload.model):
        accuracy, about_accuracy = _accuracy(entry, workload)
    with held_ready(adapter, workload.model):
        if isinstance(entry.scenario, AgainstBaseline):
            samples, details, doubts = _compared(entry, entry.scenario.margin, baseline, workload)
        else:
            query = Query(workload.run, lambda: adapter.synchronize(device))
            samples, details, doubts = _timed(entry, query, examples)
    with held_ready(adapter, workload.model):
        resources = measure_resources(workload, device=device)
    found = [*samples, *_resource_samples(resources), *_accuracy_samples(accuracy)]
    return {
        "samples": {each.name: each.to_dict() for each in found},
        "environment": describe_environment(os.getcwd()).to_dict(),
        "details": {
            **details,
            "framework": adapter.name,
            "device": device,
            "backend": active_backend().name if adapter.name == "core" else None,
            "examples": examples,
            "resources": resources.to_dict(),
            "accuracy": accuracy,
        },
        "notes": list(dict.fromkeys([*notes, *doubts, *about_accuracy])),
    }


def _sized(entry: Entry) -> Workload:
    workload = load_workload(resolved(entry.target, entry.folder))
    if entry.batch_size is not None:
        workload = resize_workload(workload, 0, entry.batch_size)
    return workload


def _transformed(entry: Entry, workload: Workload) -> Workload:
    if entry.transform == NO_TRANSFORM:
        return workload
    if stack := catalog_stack(entry.transform):
        return replace(workload, model=_built(workload, stack))
    transform = load_reference(resolved(entry.transform, entry.folder))
    if not callable(transform):
        raise ModelError(f"{entry.transform} is a {type(transform).__name__}, no function")
    model = transform(workload.model)
    if not callable(model) and not hasattr(model, "forward"):
        raise ModelError(
            f"{entry.transform} gave a {type(model).__name__}; it must return the new model"
        )
    return replace(workload, model=model)


def _built(workload: Workload, stack: Sequence[str]) -> Any:
    """Return the model that entries of the catalog make of a workload's."""
    try:
        return build_stack(workload, by_place(find_entries(stack))).model
    except SkippedError as error:
        raise ModelError(f"skipped: {error}") from error


def _compared(
    entry: Entry, margin: float, baseline: Workload, candidate: Workload
) -> tuple[list[Samples], dict[str, Any], list[str]]:
    """Check a candidate against its baseline, then time both in turns in this process."""
    with held_ready(adapter_for(baseline.model, baseline.arguments), baseline.model):
        outputs = _checked_outputs(entry, baseline, candidate)
        accuracy = _checked_accuracy(entry, margin, baseline, candidate)
        found = compare(
            replace(baseline, evaluate=None),
            replace(candidate, evaluate=None),
            budget_s=entry.budget,
            evidence=False,
            seed=entry.seed,
        )
    found = replace(found, accuracy=accuracy, outputs=outputs)
    # The mean score is written beside it, as for other scenarios.
    samples = [each for each in comparison_samples(found).values() if each.count > 1]
    return samples, {"comparison": found.to_dict()}, list(map(str, found.notes))


def _checked_outputs(entry: Entry, baseline: Workload, candidate: Workload) -> OutputDifference:
    """Compare the outputs of both; raise ModelError where those of the candidate are broken."""
    first, second = (
        adapter_for(each.model, each.arguments).arrays(each.run()) for each in (baseline, candidate)
    )
    outputs = compare_outputs(first, second, mask=attention_mask_of(baseline))
    if outputs.broken:
        raise ModelError(f"{entry.transform} was not timed: {outputs.broken}")
    return outputs


def _checked_accuracy(
    entry: Entry, margin: float, baseline: Workload, candidate: Workload
) -> AccuracyComparison | None:
    """Compare the scores of both; raise ModelError where those of the candidate are worse."""
    if baseline.evaluate is None or not entry.evaluate:
        return None
    scores = [np.asarray(baseline.evaluate(each.model)) for each in (baseline, candidate)]
    accuracy = compare_accuracy(*scores, margin=margin, metric=baseline.metric)
    if accuracy.verdict == WORSE:
        raise ModelError(f"{entry.transform} was not timed: {accuracy.evidence}")
    return accuracy


def _timed(
    entry: Entry, query: Query, examples: int | None
) -> tuple[list[Samples], dict[str, Any], list[str]]:
    """Load the model as the scenario says: samples, details and doubts."""
    scenario, budget_s = entry.scenario, entry.budget
    if isinstance(scenario, SingleStream):
        latency = measure_single_stream(query, scenario, budget_s=budget_s)
        return [latency], {}, list(latency.notes)
    if isinstance(scenario, Offline):
        throughput = measure_offline(query, scenario, budget_s=budget_s, examples=examples)
        about = ["a call has an unknown number of examples, so calls are counted"]
        return [throughput], {}, [*throughput.notes, *(about if examples is None else [])]
    assert isinstance(scenario, Server)
    found = measure_server(query, scenario, budget_s=budget_s, seed=entry.seed)
    samples = []
    if found.trial is not None and found.rate is not None:
        samples = [found.trial.latency, Samples("rate", (found.rate,), "queries/s")]
    return samples, {"server": found.to_dict()}, list(found.notes)


def _accuracy(entry: Entry, workload: Workload) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the mean score with its interval and every score; None with a reason."""
    if workload.evaluate is None:
        return None, []
    if not entry.evaluate:
        return None, ["accuracy was not measured: the suite says evaluate = false"]
    scores = np.asarray(workload.evaluate(workload.model), dtype=np.float64)
    if scores.ndim != 1 or not len(scores):
        raise ModelError(f"evaluate gave scores of shape {scores.shape}, not one per example")
    broken = int((~np.isfinite(scores)).sum())
    if broken:
        return None, [f"{broken} of {len(scores)} scores are not finite: there is no accuracy"]
    interval = mean_interval(scores.tolist())
    return {
        "metric": workload.metric,
        "mean": float(scores.mean()),
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.coverage,
        "count": len(scores),
        "scores": scores.tolist(),
    }, []


def _accuracy_samples(accuracy: Mapping[str, Any] | None) -> list[Samples]:
    """Return the mean as one value, for trends: the median of zeros and ones would say nothing."""
    if accuracy is None:
        return []
    metric = str(accuracy["metric"])
    return [Samples(metric, (accuracy["mean"],), ACCURACY_UNITS.get(metric, ""))]


def _resource_samples(resources: Resources) -> list[Samples]:
    sizes = {
        "peak memory": resources.memory_bytes,
        "file size": resources.file_bytes,
    }
    return [Samples(name, (size,), "B") for name, size in sizes.items() if size is not None]


def _about_backend(entry: Entry, adapter: Adapter) -> list[str]:
    if entry.backend is None or adapter.name == "core":
        return []
    return [f"backend {entry.backend!r} is ignored: {adapter.name} computes by itself"]


def _about_output(adapter: Adapter, output: Any) -> list[str]:
    floats = [each for each in adapter.arrays(output) if each.dtype.kind in "fc"]
    if all(np.isfinite(each).all() for each in floats):
        return []
    return ["the output holds numbers that are not finite"]
