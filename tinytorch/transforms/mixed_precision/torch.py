"""Precisions of the layers of a PyTorch model, chosen by time and effect. Imported after torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from tinytorch.comparison.sequential import estimate_ratio
from tinytorch.errors import TinyTorchError, first_line
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.interleaving import TURN_S, interleave
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms.mixed_precision import FORMS, MixedPrecision
from tinytorch.transforms.plan import Plan, Skipped, Step
from tinytorch.transforms.support.observing import relative_change, run_call, watching, why_kept
from tinytorch.transforms.support.torch import (
    IN_TRAINING,
    refusal,
    trial_note,
    try_change,
    why_unchangeable,
)

FLOAT = "float32"
LITTLE = 0.01
"""Groups that take a smaller share of the time of all layers are not timed."""
FEWEST, MOST = 7, 400
"""Rounds in which the forms of a group take turns."""
DOUBT = 0.02
"""The probability of a wrong interval of one ratio."""
WORTH = 0.98
"""A form is taken where its time is shown to be below this share of float32's."""
MOST_TRIALS = 8
NOT_PREDICTED = {
    "speedup": "the times of single layers leave out what lies between them; compare() measures it",
    "shrinkage": "it follows from what each layer becomes; compare() counts it",
}
HOLDER = "layer"


@dataclass
class Group:
    """Layers of the same class, sizes and inputs; the first of them is timed."""

    paths: list[str]
    layer: nn.Module
    inputs: tuple[Any, ...]
    seconds: float = 0.0
    """Of one float32 call, before anything is compared."""
    ratios: dict[str, Estimate] = field(default_factory=dict)
    """The time of each form over that of float32."""
    effects: dict[str, float] = field(default_factory=dict)
    """The root mean square of the change of the layer's outputs, over that of these."""
    refused: dict[str, str] = field(default_factory=dict)
    chosen: str = FLOAT

    @property
    def total_s(self) -> float:
        return self.seconds * len(self.paths)

    def choose(self) -> None:
        """Take the fastest of the forms that are shown to be faster than float32."""
        faster = {form: each.value for form, each in self.ratios.items() if each.high < WORTH}
        self.chosen = min(faster, key=lambda form: faster[form], default=FLOAT)

    @property
    def effect(self) -> float:
        return self.effects.get(self.chosen, 0.0)

    @property
    def size(self) -> str:
        shapes = [str(tuple(x.shape)) for x in self.inputs if isinstance(x, torch.Tensor)]
        weight = getattr(self.layer, "weight", None)
        of = f", weight {tuple(weight.shape)}" if isinstance(weight, torch.Tensor) else ""
        return f"{type(self.layer).__name__} on {' and '.join(shapes)}{of}"

    def __str__(self) -> str:
        seen = [
            f"{form} {ratio.value:.2f}x of float32's time ({ratio.low:.2f} to {ratio.high:.2f}), "
            f"outputs move by {self.effects[form]:.1e}"
            for form, ratio in self.ratios.items()
        ]
        seen += [f"{form} not possible: {reason}" for form, reason in self.refused.items()]
        many = f"{len(self.paths)} x " if len(self.paths) > 1 else ""
        return f"{many}{self.size}: {self.chosen}; {'; '.join(seen) or 'too short to matter'}"


def plan_torch(workload: Workload, settings: MixedPrecision) -> Plan:
    """Time the forms of each group of layers, take what is faster, and try the whole on a copy."""
    reason = _why_not(workload)
    if reason:
        return settings.skipping(reason)
    steps = _steps_of_forms(workload, settings)
    groups = _groups(workload, settings, {path for each in steps.values() for path in each})
    _time_all(groups, steps, settings)
    for each in groups:
        each.choose()
    trial = None
    for _ in range(MOST_TRIALS):
        chosen = _chosen(groups, steps)
        if not chosen:
            break
        trial = try_change(
            workload,
            lambda model, chosen=chosen: carry_out(model, workload, chosen),  # type: ignore[misc]
            tolerance=settings.allowed_error,
        )
        if trial.works:
            break
        max(
            (each for each in groups if each.chosen != FLOAT), key=lambda x: x.effect
        ).chosen = FLOAT
    notes = tuple(map(str, sorted(groups, key=lambda each: -each.total_s)))
    chosen = _chosen(groups, steps)
    if not chosen or trial is None or not trial.works:
        words = "no layer is faster in another precision within the tolerance"
        failed = refusal(workload.model, trial) if trial is not None and not trial.works else words
        return settings.skipping(failed, notes=notes)
    staying = [
        Skipped(path, f"float32: {_why_float(each)}")
        for each in groups
        if each.chosen == FLOAT
        for path in each.paths
    ]
    return settings.planned(
        chosen, staying, not_predicted=NOT_PREDICTED, notes=(trial_note(trial), *notes)
    )


def apply_torch(
    model: nn.Module, workload: Workload, plan: Plan, settings: MixedPrecision
) -> nn.Module:
    """Return the copy of the model with the layers of the plan in their precisions."""
    return carry_out(model, workload, plan.steps)


def carry_out(model: nn.Module, workload: Workload, steps: Sequence[Step]) -> nn.Module:
    """Change layers in place, those of one transform at once: none changes what is changed."""
    by_transform: dict[str, list[Step]] = {}
    for step in steps:
        name = FORMS[step.settings["form"]].name
        by_transform.setdefault(name, []).append(Step(**step.settings["step"]))
    for transform in {each.name: each for each in FORMS.values()}.values():
        if own := by_transform.get(transform.name):
            unknown = {"speedup": "", "shrinkage": ""}
            plan = Plan(transform.name, transform.to_dict(), tuple(own), not_predicted=unknown)
            model = transform.change(model, workload, plan)
    return model


# ---------------------------------------------------------------- what layers may become


def _why_not(workload: Workload) -> str:
    model = workload.model
    reason = why_unchangeable(model)
    if reason:
        return reason
    if any(module.training for module in model.modules()):
        return IN_TRAINING
    if not workload.arguments:
        return "needs inputs to time its layers on"
    return ""


Steps = Mapping[str, Mapping[str, Step]]
"""The form -> the path of a layer -> what its transform does with it."""


def _steps_of_forms(workload: Workload, settings: MixedPrecision) -> Steps:
    found: dict[str, dict[str, Step]] = {}
    for form in settings.forms:
        try:
            steps = FORMS[form].plan(workload).steps
        except TinyTorchError:  # it holds integers already, or has an odd layer
            steps = ()
        found[form] = {
            each.layer: each
            for each in steps
            if len(each.settings.get("layers", (each.layer,))) == 1
            and not why_kept(each.layer, settings.keep)
        }
    return found


def _groups(workload: Workload, settings: MixedPrecision, paths: set[str]) -> list[Group]:
    """Return the layers that have forms, by class, sizes and the inputs of their first call."""
    twin = TorchAdapter().clone(workload.model)
    modules = dict(twin.named_modules())
    shared = _shared(twin)
    layers = {path: modules[path] for path in sorted(paths) if path not in shared}
    found: dict[Hashable, Group] = {}
    seen: set[str] = set()

    def see(path: str, inputs: tuple[Any, ...], output: Any) -> None:
        if path in seen:
            return
        seen.add(path)
        key = _key(layers[path], inputs)
        if key in found:
            found[key].paths.append(path)
        else:
            kept = tuple(x.detach().clone() if isinstance(x, torch.Tensor) else x for x in inputs)
            layer = workload.model.get_submodule(path)  # unwatched
            found[key] = Group([path], copy.deepcopy(layer), kept)

    with torch.no_grad(), watching(layers, see):
        run_call(twin, workload.call)
    return list(found.values())


def _shared(model: nn.Module) -> set[str]:
    """Return the layers that hold a tensor together with another one: all would have to change."""
    users: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for tensor in module.parameters(recurse=False):
            users.setdefault(id(tensor), []).append(path)
    return {path for paths in users.values() if len(paths) > 1 for path in paths}


def _key(layer: nn.Module, inputs: tuple[Any, ...]) -> Hashable:
    weights = tuple((name, tuple(each.shape)) for name, each in layer.named_parameters())
    given = tuple(
        (tuple(x.shape), str(x.dtype)) if isinstance(x, torch.Tensor) else repr(x) for x in inputs
    )
    return type(layer), layer.extra_repr(), weights, given


# ---------------------------------------------------------------- timing


def _time_all(groups: Sequence[Group], steps: Steps, settings: MixedPrecision) -> None:
    """Time the groups that matter, those that take most of the time for longer."""
    for each in groups:
        each.seconds = median(_seconds(each.layer, each.inputs) for _ in range(3))
    total = sum(each.total_s for each in groups)
    worth = [each for each in groups if each.total_s >= LITTLE * total]
    end = perf_counter() + settings.budget_s
    for place, each in enumerate(sorted(worth, key=lambda group: -group.total_s)):
        left = max(0.0, end - perf_counter()) / (len(worth) - place)
        _time_forms(each, steps, settings, left)


def _time_forms(group: Group, steps: Steps, settings: MixedPrecision, budget_s: float) -> None:
    sides: dict[str, nn.Module] = {FLOAT: group.layer}
    with torch.no_grad():
        expected = _arrays(group.layer(*group.inputs))
        for form, known in steps.items():
            step = known.get(group.paths[0])
            if step is None:
                continue
            try:
                made = _alone(group.layer, form, step)
                found = _arrays(made(*group.inputs))
            except Exception as error:  # a kernel may refuse this size
                group.refused[form] = first_line(error)
                continue
            group.effects[form], broken = relative_change(expected, found)
            if broken:
                group.refused[form] = broken
            else:
                sides[form] = made
    taken: dict[str, list[float]] = {form: [] for form in sides}
    rng = np.random.default_rng(settings.seed)
    loops = max(1, math.ceil(TURN_S / group.seconds))
    for _, form in interleave(
        list(sides), rng=rng, at_least=FEWEST, at_most=MOST, budget_s=budget_s
    ):
        taken[form].append(_seconds(sides[form], group.inputs, loops))
    for form in [each for each in sides if each != FLOAT]:
        logs = np.log(np.divide(taken[form], taken[FLOAT])).tolist()
        group.ratios[form] = estimate_ratio(logs, DOUBT)


def _alone(layer: nn.Module, form: str, step: Step) -> nn.Module:
    """Return a copy of one layer as a form makes it."""
    holder = nn.ModuleDict({HOLDER: copy.deepcopy(layer)}).eval()
    own = replace(step, layer=HOLDER)
    wrapped = Step(HOLDER, "", "", {"form": form, "step": asdict(own)})
    made: Any = carry_out(holder, Workload("layer", holder, ()), (wrapped,))
    found: nn.Module = made[HOLDER]
    return found


def _seconds(layer: nn.Module, inputs: tuple[Any, ...], loops: int = 1) -> float:
    """Return the time of one call, after one that is not timed: the caches are another's."""
    with torch.no_grad():
        layer(*inputs)
        started = perf_counter()
        for _ in range(loops):
            layer(*inputs)
        return (perf_counter() - started) / loops


def _arrays(output: Any) -> list[Any]:
    arrays = TorchAdapter().arrays(output)
    return [each for each in arrays if each.dtype.kind == "f"]


# ---------------------------------------------------------------- words


def _chosen(groups: Sequence[Group], steps: Steps) -> tuple[Step, ...]:
    return tuple(
        Step(
            path,
            f"{each.chosen}, {each.ratios[each.chosen].value:.2f}x of float32's time alone",
            f"measured as {each.size}; its outputs move by {each.effect:.1e}",
            {"form": each.chosen, "step": asdict(steps[each.chosen][path])},
        )
        for each in groups
        if each.chosen != FLOAT
        for path in each.paths
        if path in steps[each.chosen]
    )


def _why_float(group: Group) -> str:
    if not group.ratios:
        return "too short to matter"
    best = min(group.ratios, key=lambda form: group.ratios[form].value)
    ratio = group.ratios[best]
    if ratio.high < WORTH:
        return f"in {best} outputs of the model move by too much"
    return f"{best} takes {ratio.value:.2f}x of its time ({ratio.low:.2f} to {ratio.high:.2f})"
