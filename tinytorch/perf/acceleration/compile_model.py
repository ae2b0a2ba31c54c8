"""CompileModel: the transform that lets torch.compile make kernels for a PyTorch model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import SettingError
from tinytorch.perf.acceleration.pytorch_only import why_not_pytorch
from tinytorch.workloads.plan import Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload

__all__ = ["CompileModel", "check_limits"]

NAME = "CompileModel"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


@dataclass(frozen=True)
class CompileModel:
    """Let `torch.compile` make kernels for a PyTorch model.

    `mode` is that of torch.compile. `dynamic` is whether sizes are left open: None lets torch find
    out, which compiles once more when another size comes. `freeze` packs the weights for the
    processor, in memory beside that of the model; it is for calls without gradients, and weights
    that change are packed again, but for what is written through `.data`, which nobody sees.

    A plan compiles a copy, within `limit_s` seconds, and compares its outputs: they may change by
    `tolerance` of the largest one, by default by what rounding of the model's numbers explains.
    """

    mode: Mode = "default"
    dynamic: bool | None = None
    freeze: bool = False
    tolerance: float | None = None
    limit_s: float = 300.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingError(f"mode is one of {', '.join(MODES)}, got {self.mode!r}")
        if self.dynamic not in (None, True, False):
            raise SettingError(f"dynamic is None, True or False, got {self.dynamic!r}")
        check_limits(self.tolerance, self.limit_s)

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Compile a copy of the model and call it; say what that took and where it breaks."""
        reason = why_not_pytorch(workload, "torch.compile")
        if reason:
            return Plan(NAME, asdict(self), (), (Skipped("", reason),))
        from tinytorch.perf.acceleration.compile_model_torch import plan_torch

        return plan_torch(workload, self)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model, compiled and called once with the workload's inputs.

        Raises ModelError if that fails. The copy has `preparations`, with the time that it took.
        """
        plan.check_made_by(NAME, asdict(self))
        if plan.is_empty:
            return adapter_for(workload.model, workload.arguments).clone(workload.model)
        from tinytorch.perf.acceleration.compile_model_torch import apply_torch

        return apply_torch(workload, plan, self)


def check_limits(tolerance: float | None, limit_s: float) -> None:
    """Raise unless these are how far outputs may move and how long a trial may take."""
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise SettingError(f"tolerance is a share of the largest output, 0 or more: {tolerance!r}")
    if not limit_s > 0:
        raise SettingError(f"limit_s must be more than 0 seconds, got {limit_s!r}")
