"""Counting the floating-point operations of a call."""

from __future__ import annotations

from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.records import Recording
from tinytorch.workloads.workload import call_model

__all__ = ["count_flops", "record_call"]


def count_flops(model: Any, *inputs: Any, backward: bool = False, **settings: Any) -> int:
    """Count the FLOPs of one call on exactly these inputs: contractions, two per MAC.

    `backward` adds the backward pass of a scalar loss. `settings` go to the model.
    """
    recording = record_call(model, *inputs, backward=backward, **settings)
    return sum(record.flops for record in recording.operations)


def record_call(model: Any, *inputs: Any, backward: bool = False, **settings: Any) -> Recording:
    """Run a model once, forward or forward and backward, and record what it did."""
    arguments = (*inputs, *settings.values())
    adapter = adapter_for(model, arguments)
    device = adapter.device(model, arguments)

    def forward() -> Any:
        return call_model(model, *inputs, **settings)

    def both() -> Any:
        loss = adapter.scalar_loss(forward())
        adapter.backward(loss)
        return loss

    with adapter.preserving(model), adapter.naming_failures(model):
        if backward:
            return adapter.record(model, both, device=device, inputs=arguments)
        with adapter.without_gradients():
            return adapter.record(model, forward, device=device, inputs=arguments)
