"""InferenceMode: the transform that calls a model without anything that only training needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.perf.acceleration.pytorch_only import checked_copy, why_not_pytorch
from tinytorch.workloads.plan import Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload

__all__ = ["InferenceMode"]

NAME = "InferenceMode"


@dataclass(frozen=True)
class InferenceMode:
    """Call a PyTorch model in evaluation mode and inside of `torch.inference_mode()`.

    Nothing is recorded for a backward pass, and parameters ask for no gradients. The outputs are
    inference tensors: they cannot take part in a graph, and not be written to elsewhere; `clone()`
    gives ordinary ones. A model whose call computes gradients itself, or whose inputs ask for some,
    is left alone, and so is one in training mode that gives other outputs there.
    """

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Try it on a copy of the model."""
        reason = why_not_pytorch(workload, "inference mode")
        if reason:
            return Plan(NAME, asdict(self), (), (Skipped("", reason),))
        from tinytorch.perf.acceleration.inference_mode_torch import plan_torch

        return plan_torch(workload)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model that is called in this way."""
        model = checked_copy(workload, plan, NAME, asdict(self))
        if plan.is_empty:
            return model
        from tinytorch.perf.acceleration.inference_mode_torch import InferenceModel

        return InferenceModel(model)
