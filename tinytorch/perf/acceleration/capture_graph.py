"""CaptureGraph: the transform that starts a whole call of a PyTorch model as one CUDA graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import SettingError
from tinytorch.perf.acceleration.compile_model import check_limits
from tinytorch.perf.acceleration.pytorch_only import why_not_pytorch
from tinytorch.workloads.plan import Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload

__all__ = ["CaptureGraph"]

NAME = "CaptureGraph"


@dataclass(frozen=True)
class CaptureGraph:
    """Record what a call of a PyTorch model does on a CUDA device, and start it as one.

    It saves the time in which Python and torch start each kernel, which is most of a call where
    kernels are small. `compile` lets torch.compile make the kernels first. Each kind of arguments
    (shapes, dtypes, numbers) is captured when it first comes, up to `most` kinds; more run as they
    did before, and so do calls in training mode or with gradients. Python does not run again in a
    replay: what it decided, from attributes of layers or settings of torch, stays decided.

    With `copy_outputs=False` outputs are not copied, which is faster; the next call overwrites
    them.

    A plan captures a copy, within `limit_s` seconds, and compares its outputs: they may change by
    `tolerance` of the largest one, by default by what rounding of the model's numbers explains.
    """

    compile: bool = False
    copy_outputs: bool = True
    most: int = 8
    tolerance: float | None = None
    limit_s: float = 300.0

    def __post_init__(self) -> None:
        if self.most < 1:
            raise SettingError(f"most must be at least 1 kind of arguments, got {self.most!r}")
        check_limits(self.tolerance, self.limit_s)

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Capture a call of a copy of the model, and compare what it gives."""
        reason = why_not_pytorch(workload, "a CUDA graph")
        if reason:
            return Plan(NAME, asdict(self), (), (Skipped("", reason),))
        from tinytorch.perf.acceleration.capture_graph_torch import plan_torch

        return plan_torch(workload, self)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model, captured for the workload's inputs.

        Raises ModelError if that fails. The copy has `preparations`, with the time that it took.
        """
        plan.check_made_by(NAME, asdict(self))
        if plan.is_empty:
            return adapter_for(workload.model, workload.arguments).clone(workload.model)
        from tinytorch.perf.acceleration.capture_graph_torch import apply_torch

        return apply_torch(workload, plan, self)
