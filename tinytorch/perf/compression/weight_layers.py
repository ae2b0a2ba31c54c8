"""The linear layers and convolutions of a TinyTorch model, whose weights can take another form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import own_tensors
from tinytorch.adapters.surgery import replace_layers
from tinytorch.core.backends import Array
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.spatial import Conv2d
from tinytorch.errors import ModelError, SettingError
from tinytorch.workloads.kept_layers import why_kept
from tinytorch.workloads.observing import called_layers, switch_to_eval
from tinytorch.workloads.plan import Gain, Plan, Skipped, Step
from tinytorch.workloads.workload import Workload

__all__ = [
    "WeightLayer",
    "WeightLayers",
    "carry_out",
    "find_weight_layers",
]

KINDS = (Linear, Conv2d)
"""Exactly these: a subclass may compute something else."""


@dataclass
class WeightLayer:
    """A layer with a weight, and what is going to happen to it."""

    layer: Any
    what: str = ""
    why: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    new_bytes: int = 0
    """What holds the weight in its other form."""
    reason: str = ""
    """Why it stays as it is, if so."""

    @property
    def weight(self) -> Array:
        array: Array = self.layer.weight.data
        return array


@dataclass(frozen=True)
class WeightLayers:
    """Those of a model by path, on a copy of it; and the layers of other kinds that hold floats."""

    found: Mapping[str, WeightLayer]
    others: tuple[Skipped, ...]
    modules: Mapping[str, Any]
    bytes_held: int

    def choose(self, fit: Callable[[WeightLayer], None]) -> None:
        """Let `fit` fill in what becomes of each layer, or the reason why it stays.

        Layers with the same weight get the same: it is held once, in the one form or the other.
        """
        fitted: dict[int, WeightLayer] = {}
        for each in self.found.values():
            if each.reason:
                continue
            known = fitted.setdefault(id(each.layer.weight), each)
            if known is each:
                fit(each)
            else:
                each.what, each.why, each.settings = known.what, known.why, known.settings
                each.new_bytes, each.reason = known.new_bytes, known.reason
        self._keep_what_shares()

    def _keep_what_shares(self) -> None:
        """Leave a layer alone if another one needs its weight as it is: it would be held twice."""
        users: dict[int, list[str]] = {}
        for path, module in self.modules.items():
            for _, tensor in own_tensors(module):
                users.setdefault(id(tensor), []).append(path)
        for path, each in self.found.items():
            staying = [
                user
                for user in users[id(each.layer.weight)]
                if user != path and (user not in self.found or self.found[user].reason)
            ]
            if staying and not each.reason:
                each.reason = f"it shares its weight with {staying[0]!r}, which stays as it is"

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(
            Step(path, each.what, each.why, each.settings)
            for path, each in self.found.items()
            if not each.reason
        )

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        staying = (Skipped(path, each.reason) for path, each in self.found.items() if each.reason)
        return (*self.others, *staying)

    @property
    def shrinkage(self) -> Gain | None:
        """How many times fewer bytes are held; exact, as everything follows from the shapes."""
        changed = [each for each in self.found.values() if not each.reason]
        if not changed:
            return None
        by_weight = {id(each.layer.weight): each for each in changed}
        saved = sum(each.weight.nbytes - each.new_bytes for each in by_weight.values())
        return Gain.counted(self.bytes_held, self.bytes_held - saved, "counted from the shapes")


def find_weight_layers(workload: Workload, keep: tuple[str, ...], *, verb: str) -> WeightLayers:
    """Find the layers on a copy of the model, which is called to see them at work.

    `verb` says what would be done to them, as in "can be factored".
    """
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = dict(adapter.modules(twin))
    switch_to_eval(modules)
    found = {
        path: WeightLayer(layer, reason=_why_not(path, layer, keep))
        for path, layer in modules.items()
        if type(layer) in KINDS
    }
    layers = {path: each.layer for path, each in found.items() if not each.reason}
    called = called_layers(twin, layers, workload) if workload.arguments else set(layers)
    for path in layers.keys() - called:
        found[path].reason = "it was not called: its weight may be used in another way"
    others = [
        Skipped(path, reason)
        for path, layer in modules.items()
        if path not in found and (reason := _why_unknown(layer, verb))
    ]
    if not isinstance(workload.model, Module) and not found and not others:
        others.append(Skipped("", f"no layer of tinytorch was found in {workload.name}"))
    held = sum(each.nbytes for each in adapter.parameters(workload.model))
    return WeightLayers(found, tuple(others), modules, held)


def _why_not(path: str, layer: Any, keep: tuple[str, ...]) -> str:
    kept = why_kept(path, keep)
    if kept:
        return kept
    if "forward" in vars(layer):
        return "its forward was replaced on this object by another function"
    weight = layer.weight.data
    if weight.dtype.kind != "f":
        return f"its weight holds {weight.dtype}"
    if not np.isfinite(weight).all():
        return "its weight holds NaN or infinity"
    return ""


def _why_unknown(layer: Any, verb: str) -> str:
    """Say why a layer of another kind is left alone; nothing if it holds no floats itself."""
    own = [each for _, each in own_tensors(layer) if each.data.dtype.kind == "f"]
    if not own:
        return ""
    name, count = type(layer).__name__, sum(each.data.size for each in own)
    base = next((known for known in KINDS if isinstance(layer, known)), None)
    if base is not None:
        return f"a {name} is a {base.__name__} that may compute something else"
    return f"{name} is not a layer that can be {verb}; its {count:,} numbers stay"


def carry_out(
    workload: Workload, plan: Plan, build: Callable[[Any, Mapping[str, Any]], Module]
) -> Any:
    """Give a copy of the model with what `build(layer, settings)` makes of the plan's layers."""
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = dict(adapter.modules(twin))
    wrong = _not_there(plan.layers, modules)
    if wrong is not None:
        raise SettingError(
            f"the model has no layer {wrong!r} as the plan of {plan.transform} knows it; make a "
            "plan for this model"
        )
    new = {
        id(modules[step.layer]): build(modules[step.layer], step.settings) for step in plan.steps
    }
    model = replace_layers(twin, new)
    replaced = set(map(id, new.values()))
    replaced -= set(map(id, adapter.modules(model).values()))
    if replaced:
        lost = [step.layer for step in plan.steps if id(new[id(modules[step.layer])]) in replaced]
        raise ModelError(f"layer {lost[0]!r} could not be replaced where the model holds it")
    return model


def _not_there(layers: Collection[str], modules: Mapping[str, Any]) -> str | None:
    return next((path for path in layers if type(modules.get(path)) not in KINDS), None)
