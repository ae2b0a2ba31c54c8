"""Plan: what a transform would do to a model, where and why, before anything is done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any, ClassVar, Protocol, runtime_checkable

from tinytorch.codec import Coded
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload, check_workload
from tinytorch.profiling.layers import StepGroup, group_layers
from tinytorch.profiling.profile import Profile
from tinytorch.showing import Shown

__all__ = ["Gain", "Plan", "Skipped", "Step", "TorchTransform", "Transform"]


PREDICTED = ("speedup", "shrinkage")
NOTHING = "nothing changes"


@dataclass(frozen=True)
class Gain(Coded):
    """How many times better something is predicted to become: the value and its interval.

    2 means half the time, half the bytes. `basis` says what the prediction rests on.
    """

    value: float
    low: float
    high: float
    basis: str

    none_means: ClassVar = {"high": math.inf}

    @classmethod
    def counted(cls, before: int, after: int, how: str) -> Gain:
        """Give what fewer bytes are: exactly so many times smaller, counted in this way."""
        ratio = before / max(1, after)
        return cls(ratio, ratio, ratio, f"{before:,} bytes before, {after:,} after, {how}")

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.value <= self.high:
            raise SettingError(
                f"a gain is a positive factor inside of its interval, got {self.value} in "
                f"{self.low} to {self.high}"
            )


@dataclass(frozen=True)
class Step:
    """One layer that changes: what is done to it, and why. The layer "" is the model itself."""

    layer: str
    what: str
    why: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    """One layer that a transform leaves alone. The layer "" is the model itself."""

    layer: str
    reason: str


@dataclass(frozen=True)
class Plan(Coded, Shown):
    """What a transform is about to do.

    `speedup` and `shrinkage` are how many times less time a call takes and how many times fewer
    bytes the model holds, as predicted; None where nobody can tell, and then `not_predicted` has
    the reason under the same name. Where there is nothing to do, the reason is that.
    `changes_process` says what the changed model sets outside of itself, such as "sets 1 thread for
    the whole process"; nothing where it changes the model alone.
    """

    transform: str
    settings: Mapping[str, Any]
    steps: tuple[Step, ...]
    skipped: tuple[Skipped, ...] = ()
    speedup: Gain | None = None
    shrinkage: Gain | None = None
    not_predicted: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    changes_process: str = ""

    def __post_init__(self) -> None:
        if not self.steps:
            unknown = [name for name in PREDICTED if getattr(self, name) is None]
            object.__setattr__(self, "not_predicted", dict.fromkeys(unknown, NOTHING))
        for name in PREDICTED:
            if (getattr(self, name) is None) is not (name in self.not_predicted):
                raise SettingError(
                    f"the plan of {self.transform} needs either a {name} or the reason why there "
                    f"is none: not_predicted={{{name!r}: '...'}}"
                )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.steps

    @property
    def layers(self) -> tuple[str, ...]:
        """Give the layers that change, each once."""
        return tuple(dict.fromkeys(step.layer for step in self.steps))

    @property
    def step_groups(self) -> tuple[StepGroup, ...]:
        """Put steps together that differ only in a number in the names of their layers.

        What their settings hold may differ, such as ranges that were calibrated.
        """
        places: dict[tuple[str, str], dict[str, int]] = {}
        for place, step in enumerate(self.steps):
            places.setdefault((step.what, step.why), {}).setdefault(step.layer, place)
        groups = [
            (found[layers.paths[0]], StepGroup(layers, what, why))
            for (what, why), found in places.items()
            for layers in group_layers(found)
        ]
        return tuple(group for _, group in sorted(groups, key=lambda item: item[0]))

    @property
    def skipped_by_reason(self) -> dict[str, tuple[str, ...]]:
        """Give the layers that are left alone by the reason, each once."""
        layers: dict[str, dict[str, None]] = {}
        for each in self.skipped:
            layers.setdefault(each.reason, {})[each.layer] = None
        return {reason: tuple(found) for reason, found in layers.items()}

    def check_made_by(self, transform: str, settings: Mapping[str, Any]) -> None:
        """Raise unless this is a plan of the transform that is asked to carry it out."""
        if (self.transform, dict(self.settings)) != (transform, dict(settings)):
            raise SettingError(
                f"this plan was made by {_call(self.transform, self.settings)}, not by "
                f"{_call(transform, settings)}; make one with its own plan()"
            )


@runtime_checkable
class Transform(Protocol):
    """An optimization: a small frozen configuration that can plan and carry out a plan.

    Neither method changes the workload: `apply` gives a changed copy of the model.
    """

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Say what would be done, where and why, what it should gain, and what is left alone."""

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Carry out exactly this plan on a copy of the model, and give the copy."""


def _call(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in settings.items())})"


# ---------------------------------------------------------------- transforms that exist for
# PyTorch models alone


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
