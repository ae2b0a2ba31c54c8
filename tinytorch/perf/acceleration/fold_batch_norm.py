"""FoldBatchNorm: the transform that puts a batch norm into the weights of the layer before it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.perf.acceleration.pytorch_only import checked_copy, why_not_pytorch
from tinytorch.workloads.plan import Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload

__all__ = ["FoldBatchNorm"]

NAME = "FoldBatchNorm"


@dataclass(frozen=True)
class FoldBatchNorm:
    """Fold batch norms into the convolution or linear layer whose output they normalise.

    In evaluation mode a batch norm multiplies each channel by a number and adds another one; both
    go into the weight and the bias of the layer before. Which layer that is, is seen in a call of
    the model: its output is what the norm gets, and nobody else reads it. That this holds for every
    call, the code of the module around both must prove (torch.fx traces it). An empty layer stays
    in the place of the norm, so that names stay. The copy is for evaluation: calling it in
    training mode is an error.
    """

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Watch a call of a copy of the model, find the pairs, and try them."""
        reason = why_not_pytorch(workload, "folding batch norms")
        if reason:
            return Plan(NAME, asdict(self), (), (Skipped("", reason),))
        from tinytorch.perf.acceleration.fold_batch_norm_torch import plan_torch

        return plan_torch(workload)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model with these norms folded."""
        model = checked_copy(workload, plan, NAME, asdict(self))
        if plan.is_empty:
            return model
        from tinytorch.perf.acceleration.fold_batch_norm_torch import fold_pairs

        return fold_pairs(model, plan.steps)
