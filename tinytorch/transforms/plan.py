"""Transform: the base class of all optimizations; Plan: what one would do, before it is applied."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

from tinytorch.codec import Coded
from tinytorch.errors import SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload, check_workload
from tinytorch.profiling.layers import StepGroup, group_layers
from tinytorch.profiling.profile import Profile
from tinytorch.showing import Shown

__all__ = [
    "GOALS",
    "RISKS",
    "TIME",
    "Gain",
    "Goal",
    "Plan",
    "Risk",
    "Skipped",
    "Step",
    "TorchTransform",
    "Transform",
    "Variant",
    "check_choice",
    "check_seconds",
    "check_tolerance",
]

Goal = Literal["latency", "throughput", "memory", "size"]
GOALS: tuple[Goal, ...] = ("latency", "throughput", "memory", "size")
TIME: tuple[Goal, ...] = ("latency", "throughput")
Risk = Literal["exact", "rounding", "approximate"]
RISKS: tuple[Risk, ...] = ("exact", "rounding", "approximate")
"""From the smallest to the largest."""


PREDICTED = ("speedup", "shrinkage")
NOTHING = "nothing changes"


@dataclass(frozen=True)
class Gain(Estimate):
    """How many times better something is predicted to become: the value and its interval.

    2 means half the time, half the bytes. `basis` says what the prediction rests on; no coverage
    is promised unless it was counted.
    """

    coverage: float = 0.0
    basis: str = ""

    @classmethod
    def of_bytes(cls, before: int, after: int, how: str) -> Gain:
        """Return how many times smaller fewer bytes are, counted in the way that `how` says."""
        ratio = before / max(1, after)
        basis = f"{before:,} bytes before, {after:,} after, {how}"
        return cls(ratio, ratio, ratio, coverage=1.0, basis=basis)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low > 0:
            raise SettingError(f"a gain is a positive factor, got {self.low} to {self.high}")


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
    bytes the model holds, as predicted; None where it is unknown, and then `not_predicted` has
    the reason under the same name. Where everything is skipped, the reason is that.
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
        """Whether everything is skipped."""
        return not self.steps

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that change, each once."""
        return tuple(dict.fromkeys(step.layer for step in self.steps))

    @property
    def step_groups(self) -> tuple[StepGroup, ...]:
        """Steps grouped by their layers' names, which differ only in a number.

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
        """The layers that are left alone, each once, by the reason."""
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


def _call(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in settings.items())})"


# ---------------------------------------------------------------- transforms


@dataclass(frozen=True)
class Variant:
    """A transform with settings that the catalog tries, under its own name.

    `about` says what it does. `preceded_by` are transforms that are applied before it and belong
    to it. `cost` is what it costs a user beyond the time of trying it; `setup_s` is the transform's
    own, unless given.
    """

    name: str
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    preceded_by: tuple[Transform, ...] = ()
    cost: str = ""
    setup_s: float | None = None


@dataclass(frozen=True)
class Transform:
    """An optimization: a frozen dataclass of settings, with `plan` and `apply`.

    Neither method changes the workload: `apply` returns a changed copy of the model. All that the
    rest of the project knows about a transform are these attributes of its class; the catalog, the
    recipes of saved models and the rules of the competition are derived from them.

    What the catalog tries:

    - variants: the named settings that `optimize` tries; none for a transform that is only called.
    - role: a stack has at most one transform of each; the name of the class unless given.
    - order: where its variants stand in the catalog; ours are multiples of 10, and transforms of
      other packages follow.
    - place: when it is applied in a stack: 1 structure, 2 norms and attention, 3 factors,
      4 numbers, 5 layout, 6 fusion, 7 threads, 8 calls, 9 kernels.
    - risk: what happens to the outputs: only the order of sums changes ("exact"), numbers have
      fewer bits ("rounding"), or another function is computed ("approximate"), which is tried only
      on a workload with an `evaluate`.
    - serves, frameworks, devices: the goals, frameworks and devices that it is for; `for_others` is
      what models of other frameworks are told beside that.
    - setup_s: about how many seconds planning and applying take on a processor, beside a few calls
      of the model: what is cheap is tried first, and what no longer fits a budget not at all.
    - made_for, made_by: the class of models that it is for, where it is for one alone (it is then
      tried first), and the function that makes such a model.

    How a result is saved:

    - follows_weights: whether a saved model gets its weights before this is applied again, because
      it changes no weight or computes its own from them.
    - is_prepared: whether it calls the model to prepare it, in every process again: loading such a
      model needs inputs.
    - keeps_files: whether its models are saved as files of their own, by `write_files` and
      `read_files`, and not as weights and plans.
    - makes_repeats: whether it makes zeros or repeated values, for which coding a file pays at any
      size.
    - holds_integers: whether a file holds the whole numbers of `transforms.quantize` under the
      names of floats.

    What the competition allows:

    - may_compete: whether entries may declare it: in all divisions, or, where it is approximate, in
      those that allow another function.
    - effect: what an approximate transform does, in words that follow its name.
    """

    variants: ClassVar[tuple[Variant, ...]] = ()
    role: ClassVar[str] = ""
    order: ClassVar[int] = 0
    place: ClassVar[int] = 5
    risk: ClassVar[Risk] = "approximate"
    serves: ClassVar[tuple[Goal, ...]] = GOALS
    frameworks: ClassVar[tuple[str, ...]] = ("core", "pytorch")
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    for_others: ClassVar[str] = ""
    setup_s: ClassVar[float] = 0.5
    made_for: ClassVar[str] = ""
    made_by: ClassVar[str] = ""

    follows_weights: ClassVar[bool] = False
    is_prepared: ClassVar[bool] = False
    keeps_files: ClassVar[bool] = False
    makes_repeats: ClassVar[bool] = False
    holds_integers: ClassVar[bool] = False

    may_compete: ClassVar[bool] = False
    effect: ClassVar[str] = "computes another function"

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        """Return the plan for a model of one of the `frameworks`; the model is not changed."""
        raise NotImplementedError

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        """Apply a plan that is not empty to `model`, a copy; return it or what is made of it."""
        raise NotImplementedError

    def write_files(self, model: Any, folder: Path) -> None:
        """Write a model that it made into a folder, where it `keeps_files`."""
        raise NotImplementedError

    def read_files(self, folder: Path) -> Any:
        """Return the model that :meth:`write_files` wrote, without what it was made from."""
        raise NotImplementedError

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Return what would be done, where and why, the predicted gain, and what is skipped."""
        check_workload(workload)
        framework = adapter_for(workload.model, workload.arguments).name
        if framework not in self.frameworks:
            wanted = " and ".join(self.frameworks)
            reason = f"it is a model of {framework}, and {self.name} is for models of {wanted}"
            return self.skipping(f"{reason}; {self.for_others}" if self.for_others else reason)
        return self.make_plan(workload, profile)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Return a copy of the model with exactly this plan applied."""
        plan.check_made_by(self.name, self.to_dict())
        check_workload(workload)
        model = adapter_for(workload.model, workload.arguments).clone(workload.model)
        return model if plan.is_empty else self.change(model, workload, plan)

    @property
    def name(self) -> str:
        """The name in plans and recipes."""
        return type(self).__name__

    @property
    def precision(self) -> str:
        """The least precise kind of number that it lets a model multiply."""
        return "float32"

    def outlook(self, framework: str, device: str) -> float:
        """Return the speedup to expect without advice, to decide what to try first."""
        return 1.02

    def products_of(self, framework: str) -> frozenset[str] | None:
        """Return the classes of layers whose products it computes otherwise; None for all.

        Of other layers no speedup is predicted, be it that they stay or that nothing supports one.
        """
        return None

    @property
    def missing_extras(self) -> tuple[str, ...]:
        """The extras of the package that it needs and that are not installed."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return asdict(self)

    def planned(
        self, steps: Iterable[Step], skipped: Iterable[Skipped] = (), **fields: Any
    ) -> Plan:
        """Return the plan of this transform with these steps; `fields` are those of Plan."""
        return Plan(self.name, self.to_dict(), tuple(steps), tuple(skipped), **fields)

    def skipping(self, reason: str, *skipped: Skipped, notes: tuple[str, ...] = ()) -> Plan:
        """Return an empty plan that says why the model is left alone, and then these layers."""
        return self.planned((), (Skipped("", reason), *skipped), notes=notes)


class TorchTransform(Transform):
    """A transform of PyTorch models alone, which is planned and applied in a separate module.

    Each has a property `torch_code`, which imports the module that needs torch once a model is
    known to be PyTorch's. That has `plan_torch(workload, settings)`, which returns the plan after
    trying it on a copy of the model, and `apply_torch(model, workload, plan, settings)`, which does
    what :meth:`Transform.change` says.
    """

    frameworks = ("pytorch",)

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        plan: Plan = self.torch_code.plan_torch(workload, self)
        return plan

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        return self.torch_code.apply_torch(model, workload, plan, self)

    @property
    def torch_code(self) -> ModuleType:
        """The module that plans and applies; it imports torch."""
        raise NotImplementedError


# ---------------------------------------------------------------- settings that several have


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise unless a setting is one of these words."""
    known = tuple(choices)
    if value not in known:
        raise SettingError(f"unknown {name} {value!r}; there are {', '.join(known)}")


def check_tolerance(tolerance: float | None) -> None:
    """Raise unless outputs may move by this share of the largest one; None is a default."""
    if tolerance is None:
        return
    if isinstance(tolerance, bool) or not 0 <= tolerance < math.inf:
        raise SettingError(
            f"tolerance={tolerance!r}; it is how far outputs may move, as a share of the largest "
            "one, 0 or more"
        )


def check_seconds(name: str, seconds: float) -> None:
    """Raise unless a setting is a time above zero."""
    if not 0 < seconds < math.inf:
        raise SettingError(f"{name}={seconds!r}; it must be a positive number of seconds")
