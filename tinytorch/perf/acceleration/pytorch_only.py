"""Transforms that exist for PyTorch models alone: what they say to the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.workloads.plan import Plan
from tinytorch.workloads.workload import Workload, check_workload

__all__ = ["checked_copy", "why_not_pytorch"]


def why_not_pytorch(workload: Workload, what: str) -> str:
    """Say why a transform of PyTorch models has nothing to do here, or nothing."""
    check_workload(workload)
    name = adapter_for(workload.model, workload.arguments).name
    return "" if name == "pytorch" else f"it is a model of {name}; {what} is for PyTorch models"


def checked_copy(workload: Workload, plan: Plan, name: str, settings: Mapping[str, Any]) -> Any:
    """Give a copy of the model to carry out a plan on; raise if the plan is of somebody else."""
    plan.check_made_by(name, settings)
    check_workload(workload)
    return adapter_for(workload.model, workload.arguments).clone(workload.model)
