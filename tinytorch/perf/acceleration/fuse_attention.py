"""FuseAttention: the transform that computes softmax(q k^T) v in one go where a model does not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.perf.acceleration.pytorch_only import checked_copy, why_not_pytorch
from tinytorch.workloads.plan import Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload

__all__ = ["FuseAttention"]

NAME = "FuseAttention"


@dataclass(frozen=True)
class FuseAttention:
    """Let PyTorch's fused attention compute what a model computes by hand.

    By hand, a matrix of scores, queries times keys, is written to memory and read again by each of
    product, scale, mask, softmax and sum; fused attention never holds it. Models of transformers
    are switched from "eager" to "sdpa". In other models the chain of operations is looked for in
    graphs of the modules that compute it, and those modules get a derived class with the chain
    replaced; parameters, names, hooks and methods stay. A call of another kind than the one that
    was seen (a mask where there was none, training mode) is computed by hand as before. Outputs
    are the same within rounding.
    """

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Find attention by hand, rewrite it on a copy, and try whether outputs stay the same."""
        reason = why_not_pytorch(workload, "fused attention")
        if reason:
            return Plan(NAME, asdict(self), (), (Skipped("", reason),))
        from tinytorch.perf.acceleration.fuse_attention_torch import plan_torch

        return plan_torch(workload, asdict(self))

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model with attention fused in these modules."""
        model = checked_copy(workload, plan, NAME, asdict(self))
        if plan.is_empty:
            return model
        from tinytorch.perf.acceleration.fuse_attention_torch import apply_torch

        return apply_torch(workload, plan, model)
