"""Counting the multiply-accumulates of a call, on models of any framework."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinytorch.adapters.adapter import Adapter, adapter_for
from tinytorch.workloads.workload import Workload, call_model

__all__ = ["count_macs", "macs_note"]


def count_macs(model: Any, workload: Workload) -> int:
    """Count the multiply-accumulates of contractions in one call on a workload's inputs.

    The model is called in evaluation mode, and is in its own mode afterwards.
    """
    adapter = adapter_for(model, workload.arguments)
    device = adapter.device(model, workload.arguments)
    with adapter.preserving(model), adapter.without_gradients(), _evaluating(adapter, model):
        recording = adapter.record(
            model,
            lambda: call_model(model, *workload.inputs, **workload.keywords),
            device=device,
            inputs=workload.arguments,
        )
    return sum(record.cost.macs for record in recording.operations if record.cost is not None)


def macs_note(before: int, after: int) -> str:
    """Say how many multiply-accumulates a call takes before and after a change."""
    share = f" ({after / before:.1%} remain)" if before else ""
    return f"multiply-accumulates of a call: {before:,} before, {after:,} after{share}"


@contextmanager
def _evaluating(adapter: Adapter, model: Any) -> Iterator[None]:
    modules = [each for each in adapter.modules(model).values() if hasattr(each, "training")]
    modes = [(module, module.training) for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
