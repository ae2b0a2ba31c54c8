"""ChannelsLast: the transform that lays out images with the channels of a pixel side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.perf.acceleration.pytorch_only import checked_copy, why_not_pytorch
from tinytorch.workloads.plan import Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload

__all__ = ["ChannelsLast"]

NAME = "ChannelsLast"


@dataclass(frozen=True)
class ChannelsLast:
    """Hold images (4 axes) and volumes (5 axes) with the channels of each pixel side by side.

    The kernels of convolutions in two and three dimensions are laid out so, and inputs when the
    model is called; layers in between pass the layout on. Outputs come back in the usual layout.
    The numbers stay the same, within the rounding of sums in another order. GPUs with units for
    matrix products like this layout in half precision; elsewhere it may well be slower.
    """

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Find the convolutions, and try the layout on a copy of the model."""
        reason = why_not_pytorch(workload, "the layout channels-last")
        if reason:
            return Plan(NAME, asdict(self), (), (Skipped("", reason),))
        from tinytorch.perf.acceleration.channels_last_torch import plan_torch

        return plan_torch(workload)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model with this layout."""
        model = checked_copy(workload, plan, NAME, asdict(self))
        if plan.is_empty:
            return model
        from tinytorch.perf.acceleration.channels_last_torch import laid_out

        return laid_out(model, plan.layers)
