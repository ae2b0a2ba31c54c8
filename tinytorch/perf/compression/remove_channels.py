"""RemoveChannels: the transform that makes a model smaller by taking channels out of it."""

from __future__ import annotations

import operator
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import SettingError
from tinytorch.perf.compression.channel_importance import IMPORTANCES
from tinytorch.perf.compression.channel_planning import NAME, apply_removal, plan_removal
from tinytorch.workloads.kept_layers import checked_patterns
from tinytorch.workloads.plan import Plan
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload, check_workload

__all__ = ["RemoveChannels"]


@dataclass(frozen=True)
class RemoveChannels:
    """Remove channels of convolutions, neurons of linear layers and heads of attention, for real.

    With each channel goes everything that belongs to it: its batch norm, the inputs of the layers
    after it, its twins in residual sums. What the model takes in and gives out stays. The result is
    an ordinary model of the same classes.

    ratio: the share of the channels that goes, in each group of layers that shrink together.
    macs: instead, the share of the multiply-accumulates that may remain: the least ratio that gets
    there is found by counting. importance: `magnitude` (the norm of the weights of a channel) or
    `activation` (what it adds to the layers after it, on calibration data). keep: patterns of
    layers whose outputs all stay. round_to: keep multiples of so many channels, for kernels that
    work on blocks of them; it does not apply to heads.
    """

    ratio: float | None = None
    macs: float | None = None
    importance: str = "magnitude"
    keep: tuple[str, ...] = ()
    round_to: int = 1

    def __post_init__(self) -> None:
        if (self.ratio is None) is (self.macs is None):
            raise SettingError(
                "say how much goes: either ratio=0.5, half of the channels, or macs=0.5, until "
                "half of the multiply-accumulates remain"
            )
        for name, share in (("ratio", self.ratio), ("macs", self.macs)):
            if share is not None and not isinstance(share, Real):
                raise SettingError(f"{name} is a share such as 0.5, got {share!r}")
        if self.ratio is not None and not 0 <= self.ratio < 1:
            raise SettingError(
                f"ratio is the share of the channels that goes, from 0 to below 1, got {self.ratio}"
            )
        if self.macs is not None and not 0 < self.macs <= 1:
            raise SettingError(
                f"macs is the share of the multiply-accumulates that may remain, above 0 and at "
                f"most 1, got {self.macs}"
            )
        if self.importance not in IMPORTANCES:
            raise SettingError(
                f"unknown importance {self.importance!r}; there are {', '.join(IMPORTANCES)}"
            )
        try:
            is_whole = operator.index(self.round_to) >= 1
        except TypeError:
            is_whole = False
        if not is_whole:
            raise SettingError(f"round_to is a number of channels from 1 on, got {self.round_to!r}")
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Say which channels go, and which layers keep theirs. A copy of the model is called."""
        check_workload(workload)
        if not workload.arguments:
            raise SettingError(
                f"channels are followed through a call of the model, but {workload.name} has no "
                "inputs; give the workload one example"
            )
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.perf.compression.remove_channels_torch import plan_torch

            return plan_torch(workload, self)
        return plan_removal(workload, self)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a smaller copy of the model."""
        plan.check_made_by(NAME, self.to_dict())
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.perf.compression.remove_channels_torch import apply_torch

            return apply_torch(workload, plan, self)
        return apply_removal(workload, plan)
