"""Scores of a model as it will be used."""

from __future__ import annotations

from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import SettingError
from tinytorch.workloads.workload import Scores, Workload

__all__ = ["scores_of"]


def scores_of(workload: Workload, model: Any) -> Scores:
    """Let a workload evaluate a model with dropout and alike switched off.

    It is a copy that is evaluated: the model keeps its modes, and whatever else would change.
    """
    if workload.evaluate is None:
        raise SettingError(f"{workload.name} has no evaluate()")
    adapter = adapter_for(model, workload.arguments)
    twin = adapter.clone(model)
    for module in adapter.modules(twin).values():
        if isinstance(getattr(module, "training", None), bool):
            module.training = False
    return workload.evaluate(twin)
