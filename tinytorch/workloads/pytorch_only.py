"""Transforms that exist for PyTorch models alone."""

from __future__ import annotations

from dataclasses import asdict
from types import ModuleType
from typing import Any, ClassVar

from tinytorch.adapters.adapter import adapter_for
from tinytorch.workloads.plan import Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload, check_workload

__all__ = ["TorchTransform"]


class TorchTransform:
    """What such transforms share: a frozen dataclass of settings, whose work is done elsewhere.

    Each has a property `torch_code`, which imports the module that needs torch once a model turned
    out to be PyTorch's. That has `plan_torch(workload, settings)`, which returns the plan, and
    `apply_torch(model, workload, plan, settings)`, which carries out one that is not empty on the
    copy `model` and returns that or what is made of it.
    """

    subject: ClassVar[str]
    """What is for PyTorch models, in words that others are told."""
    for_others: ClassVar[str] = "{subject} is for PyTorch models"

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Say what would be done, where and why, after trying it on a copy of the model."""
        check_workload(workload)
        framework = adapter_for(workload.model, workload.arguments).name
        if framework != "pytorch":
            told = self.for_others.format(subject=self.subject)
            reason = f"it is a model of {framework}; {told}"
        else:
            reason = self.why_not(workload)
        if reason:
            return Plan(type(self).__name__, self._settings, (), (Skipped("", reason),))
        plan: Plan = self.torch_code.plan_torch(workload, self)
        return plan

    def why_not(self, workload: Workload) -> str:
        """Say why there is nothing to do for a PyTorch model, or nothing."""
        return ""

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Carry out exactly this plan on a copy of the model, and give the copy."""
        plan.check_made_by(type(self).__name__, self._settings)
        check_workload(workload)
        model = adapter_for(workload.model, workload.arguments).clone(workload.model)
        return model if plan.is_empty else self.torch_code.apply_torch(model, workload, plan, self)

    @property
    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return settings

    @property
    def torch_code(self) -> ModuleType:
        """Return the module that plans and applies; it imports torch."""
        raise NotImplementedError
