"""Quantize: the transform that holds weights, and computes, in eight or four bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.perf.quantization.planning import NAME, apply_plan, make_plan
from tinytorch.perf.quantization.sensitivity import within_error
from tinytorch.perf.quantization.settings import Settings
from tinytorch.workloads.plan import Plan
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload, check_workload

__all__ = ["Quantize"]


@dataclass(frozen=True)
class Quantize(Settings):
    """Quantize the weights of a model, and where it computes in integers also its activations.

    Linear layers, convolutions, embeddings and tied heads of TinyTorch models of any structure;
    PyTorch models by torch's and torchao's own quantizers. The fields are those of
    :class:`~tinytorch.perf.quantization.settings.Settings`.
    """

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Say which layers become what, and which stay in floats. A copy of the model is called."""
        check_workload(workload)
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.perf.quantization.quantize_torch import plan_torch

            plan = plan_torch(workload, self)
        else:
            plan = make_plan(workload, self)
        return plan if self.max_error is None else within_error(workload, self, plan)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a quantized copy of the model; the float weights of its layers are gone."""
        plan.check_made_by(NAME, self.to_dict())
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.perf.quantization.quantize_torch import apply_torch

            return apply_torch(workload, plan, self)
        return apply_plan(workload, plan)
