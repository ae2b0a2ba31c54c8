"""RemoveLayers: the transform that makes a model shallower, by the layers that it misses least."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tinytorch.core.kernels import Array
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.models.adapter import adapter_for, owner_of
from tinytorch.models.core import own_tensors
from tinytorch.models.workload import Workload, call_model, check_workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Gain, Plan, Skipped, Transform, Variant
from tinytorch.transforms.support.observing import (
    calling_plainly,
    check_no_cache,
    checked_patterns,
    idle_patterns,
    switch_to_eval,
)
from tinytorch.transforms.support.trimming import (
    Removed,
    choose_layers,
    is_part,
    staying_layers,
    steps_of,
    why_no_stream,
    why_part_kept,
)

__all__ = [
    "NOT_LISTED",
    "NO_PRODUCT",
    "LayerSurvey",
    "OutputChange",
    "RemoveLayers",
    "remove_items",
    "survey_layers",
]


# ---------------------------------------------------------------- which layers of a TinyTorch
# model can be taken out of their lists, and what that does to it

NOT_LISTED = "it is no item of a list of layers"
NO_PRODUCT = "it multiplies by no matrix: without it next to nothing would be saved"

Reasons = dict[str, str]


@dataclass(frozen=True)
class ListItem:
    """A layer in a list: the list itself, and its path."""

    layer: Any
    owner: list[Any]
    list_path: str


@dataclass
class LayerSurvey:
    """The items of lists of layers that multiply by weights, by path, and why some cannot go.

    `parts` are the paths of all layers in them.
    """

    items: Mapping[str, ListItem]
    parts: tuple[str, ...]
    reasons: Reasons
    others: tuple[Skipped, ...]

    @property
    def candidates(self) -> tuple[str, ...]:
        return tuple(path for path in self.items if path not in self.reasons)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What stays and why; of the parts of an item there is nothing to say beside it."""
        parts = {path for path in self.items for of in self.items if path.startswith(f"{of}.")}
        staying = (Skipped(path, why) for path, why in self.reasons.items() if path not in parts)
        return (*self.others, *staying)

    def reject(self, path: str, reason: str) -> None:
        self.reasons[path] = reason

    def removable_beside(self, gone: Collection[str]) -> list[str]:
        """Give the candidates that may go, too: not the last one of its list."""
        left: dict[str, int] = {}
        for path, item in self.items.items():
            left[item.list_path] = left.get(item.list_path, 0) + (path not in gone)
        return [
            path
            for path in self.candidates
            if path not in gone
            and left[self.items[path].list_path] > 1
            and not any(path.startswith(f"{each}.") for each in gone)
        ]


# ---------------------------------------------------------------- looking at a model


@dataclass
class _Seen:
    """What a layer was called with and gave."""

    calls: int = 0
    problem: str = ""


def survey_layers(workload: Workload, keep: tuple[str, ...]) -> LayerSurvey:
    """Find the items of lists on a copy of the model, and see them at work on the inputs."""
    if not workload.calibration and not workload.arguments:
        raise SettingError(
            "what a layer is worth is seen on calibration data or inputs, and there are none; give "
            "the workload `calibration`, or inputs"
        )
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = dict(adapter.modules(twin))
    switch_to_eval(modules)
    listed = dict(_list_items(twin, modules))
    items = {path: item for path, item in listed.items() if _holds_product(item.layer)}
    seen, last = _watch(twin, modules, items, workload)
    reasons: Reasons = {}
    for path, item in items.items():
        reason = (
            why_part_kept(path, modules, keep)
            or _why_not_in_list(item, items)
            or _why_needed(seen[path], makes_outputs=path in last)
        )
        if reason:
            reasons[path] = reason
    others = [
        Skipped(path, NO_PRODUCT if _is_inside(path, listed) else NOT_LISTED)
        for path, module in modules.items()
        if _own_weights(module) and not _is_inside(path, items)
    ]
    if not items and not others:
        others.append(Skipped("", f"no layer with weights was found in {workload.name}"))
    parts = tuple(path for path in modules if _is_inside(path, items))
    return LayerSurvey(items, parts, reasons, tuple(others))


def _list_items(model: Any, modules: Mapping[str, Any]) -> Iterator[tuple[str, ListItem]]:
    """Yield the layers in lists, under the names that the model has for them."""
    names = {id(module): path for path, module in modules.items()}
    for path, module in modules.items():
        if not hasattr(module, "__dict__"):
            continue
        for name, value in vars(module).items():
            for list_path, found in _lists(f"{path}.{name}" if path else name, value):
                for layer in found:
                    if id(layer) in names and isinstance(layer, Module):
                        yield names[id(layer)], ListItem(layer, found, list_path)


def _lists(path: str, value: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield lists, also those in dictionaries, lists and tuples."""
    if isinstance(value, list):
        yield path, value
    if isinstance(value, Mapping):
        inner = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        inner = [(str(place), item) for place, item in enumerate(value)]
    else:
        return
    for name, item in inner:
        yield from _lists(f"{path}.{name}", item)


def _watch(
    model: Any, modules: Mapping[str, Any], items: Mapping[str, ListItem], workload: Workload
) -> tuple[dict[str, _Seen], tuple[str, ...]]:
    """Call the model once; give what the items did, and those whose weights were used last."""
    seen = {path: _Seen() for path in items}
    active: list[str] = []
    last: tuple[str, ...] = ()

    def watching(path: str, forward: Any) -> Any:
        def call(*inputs: Any, **settings: Any) -> Any:
            nonlocal last
            active.append(path)
            output = forward(*inputs, **settings)
            if path in seen:
                seen[path].calls += 1
                first = next(iter((*inputs, *settings.values())), None)
                seen[path].problem = seen[path].problem or why_no_stream(first, output, Tensor)
            if _own_weights(modules[path]):
                last = tuple(active)
            active.pop()
            return output

        return call

    with ExitStack() as stack:
        for path, module in modules.items():
            if isinstance(module, Module):
                had = vars(module).get("forward")
                vars(module)["forward"] = watching(path, module.forward)
                stack.callback(_restore, module, had)
        _call(model, _calls(workload)[0])
    return seen, last


def _restore(module: Any, forward: Any) -> None:
    if forward is None:
        vars(module).pop("forward")
    else:
        vars(module)["forward"] = forward


@dataclass(frozen=True)
class _Call:
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    name: str


def _calls(workload: Workload) -> list[_Call]:
    """Give the calls of the calibration data, or else the one of the inputs."""
    if not workload.calibration:
        return [_Call(workload.inputs, workload.keywords, "the inputs")]
    return [
        # what inputs are given by name may also come first in a batch
        _Call(each, workload.keywords if len(each) <= len(workload.inputs) else {}, name)
        for number, each in enumerate(workload.calibration)
        if (name := f"calibration batch {number}")
    ]


def _call(model: Any, call: _Call) -> Any:
    try:
        with calling_plainly(model):
            return call_model(model, *call.arguments, **call.keywords)
    except TinyTorchError as error:
        raise SettingError(f"{call.name} does not fit the model: {error}") from error


def _why_not_in_list(item: ListItem, items: Mapping[str, ListItem]) -> str:
    lists = {id(other.owner): other.owner for other in items.values()}.values()
    places = sum(each is item.layer for found in lists for each in found)
    if places > 1:
        return f"it stands in {places} places"
    if "forward" in vars(item.layer):
        return "its forward was replaced on this object by another function"
    return ""


def _why_needed(seen: _Seen, *, makes_outputs: bool) -> str:
    if not seen.calls:
        return "it was not called"
    if seen.problem:
        return seen.problem
    return "it makes the outputs: no weights come after it" if makes_outputs else ""


def _is_inside(path: str, items: Collection[str]) -> bool:
    return any(is_part(path, each) for each in items)


def _own_weights(module: Any) -> bool:
    return any(True for _ in own_tensors(module))


def _holds_product(layer: Any) -> bool:
    """Whether a layer or a part of it holds a weight with two or more axes, in whatever form."""
    return any(
        hasattr(module, "weight_size") or any(each.data.ndim > 1 for _, each in own_tensors(module))
        for module in layer.modules()
    )


# ---------------------------------------------------------------- taking layers away


def remove_items(model: Any, paths: Sequence[str]) -> Any:
    """Take layers out of the lists that hold them, in place; if one is not there, none goes."""
    adapter = adapter_for(owner_of(model))
    modules = dict(adapter.modules(model))
    items = dict(_list_items(model, modules))
    missing = [path for path in paths if path not in items]
    if missing:
        raise SettingError(
            f"the model has no layer {missing[0]!r} in a list of layers; make a plan for this model"
        )
    for path in paths:
        item = items[path]
        item.owner[:] = [each for each in item.owner if each is not item.layer]
    return model


class OutputChange:
    """Tells how much the outputs of a model change when layers are gone."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._adapter = adapter_for(workload.model, workload.arguments)
        self._calls = _calls(workload)
        self._held = self._bytes(workload.model)
        self._expected = self._outputs(self._adapter.clone(workload.model), len(self._calls))
        if not self._expected:
            raise SettingError(
                "the model returns no floating-point numbers, so nobody can tell how much it "
                "misses a layer"
            )

    def without(self, paths: tuple[str, ...]) -> tuple[float, str]:
        """Give the change relative to the outputs (both root mean squares), or why they must stay.

        A model that goes over its list computes the same as one in which the layers let their
        inputs pass. One that does not, but counts or names its layers, would compute nonsense.
        """
        skipping = self._adapter.clone(self._workload.model)
        shorter = remove_items(self._adapter.clone(self._workload.model), paths)
        try:
            with _letting_pass(self._adapter.modules(skipping), paths):
                wanted = self._outputs(skipping, 1)
            found = self._outputs(shorter, len(self._calls))
        except Exception as error:  # any code of the user's may be behind it
            return math.inf, f"the model fails without it ({type(error).__name__}: {error})"
        if self._bytes(shorter) >= self._held:
            return math.inf, "others hold all of its weights: nothing would be saved"
        if len(found) != len(self._expected) or not _agree(wanted, found[: len(wanted)]):
            return math.inf, "the model does not simply go over its list: it needs this one there"
        change = _relative_change(self._expected, found)
        return change, "" if math.isfinite(change) else "without it the outputs are not finite"

    def _bytes(self, model: Any) -> int:
        return sum(each.nbytes for each in self._adapter.parameters(model))

    def _outputs(self, model: Any, count: int) -> list[Array]:
        switch_to_eval(self._adapter.modules(model))
        arrays: list[Array] = []
        for each in self._calls[:count]:
            own = replace(each, arguments=self._adapter.copy_inputs(each.arguments))
            output = _call(model, own)
            arrays += [each for each in self._adapter.arrays(output) if each.dtype.kind == "f"]
        return arrays


@contextmanager
def _letting_pass(modules: Mapping[str, Any], paths: Sequence[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for path in paths:
            layer = modules[path]
            vars(layer)["forward"] = lambda x, *others, **settings: x
            stack.callback(vars(layer).pop, "forward")
        yield


def _agree(wanted: Sequence[Array], found: Sequence[Array]) -> bool:
    """The same operations on the same numbers give the same bits."""
    return len(wanted) == len(found) and all(
        one.shape == other.shape and np.array_equal(one, other, equal_nan=True)
        for one, other in zip(wanted, found, strict=True)
    )


def _relative_change(expected: Sequence[Array], found: Sequence[Array]) -> float:
    signal = noise = 0.0
    for one, other in zip(expected, found, strict=True):
        if one.shape != other.shape:
            return math.inf
        exact = one.astype(np.float64)
        signal += float(np.square(exact).sum())
        noise += float(np.square(exact - other).sum())
    if noise == 0:
        return 0.0
    change = math.sqrt(noise / signal) if signal else math.inf
    return change if math.isfinite(change) else math.inf


# ---------------------------------------------------------------- RemoveLayers: the transform that
# makes a model shallower, by the layers that it misses least

NAME = "RemoveLayers"
NO_SPEEDUP = "how long a layer takes depends on the machine and the inputs; compare() measures it"


@dataclass(frozen=True)
class RemoveLayers(Transform):
    """Remove whole layers, such as the blocks of a transformer: those that are missed least.

    What can go are items of lists of layers (`Sequential.layers`, `GPT.blocks`, any list in a
    module) that multiply by a weight of two or more axes, as linear layers and convolutions do, and
    give what they take: a tensor of the same shape. Norms alone stay, as they hold next to nothing.
    What a layer is worth is how much the outputs change without it, measured on the calibration
    data, or on the inputs where there is none: `count` times over, each time without those that are
    gone already. keep: patterns of layers that stay.
    """

    variants = (Variant("fewer-layers", "remove the least important block", {"count": 1}),)
    role, place, order = "structure", 1, 20
    may_compete, effect = True, "removes layers with their weights"

    count: int = 1
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise SettingError(f"count is a number of layers, at least 1, got {self.count!r}")
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Take layers away one by one, and see what the outputs do, on copies of the model."""
        check_workload(workload)
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.transforms.remove_layers.torch import plan_torch

            return plan_torch(workload, self)
        check_no_cache(adapter_for(workload.model).modules(workload.model))
        survey = survey_layers(workload, self.keep)
        removed: Removed = []
        alone: dict[str, float] = {}
        if survey.candidates:
            judge = OutputChange(workload)
            alone = self._measured_alone(survey, judge)
            removed = choose_layers(survey, judge, alone, count=self.count)
        return self._as_plan(workload, survey, removed, alone)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model whose lists are shorter."""
        plan.check_made_by(NAME, self.to_dict())
        adapter = adapter_for(workload.model, workload.arguments)
        if adapter.name == "pytorch":
            from tinytorch.transforms.remove_layers.torch import apply_torch

            return apply_torch(workload, plan, self)
        check_no_cache(adapter.modules(workload.model))
        return remove_items(adapter.clone(workload.model), plan.layers)

    def _measured_alone(self, survey: LayerSurvey, judge: OutputChange) -> dict[str, float]:
        """Measure each candidate; those that cannot be taken out of their list are none."""
        alone: dict[str, float] = {}
        for path in list(survey.candidates):
            change, reason = judge.without((path,))
            if reason:
                survey.reject(path, reason)
            else:
                alone[path] = change
        return alone

    def _as_plan(
        self,
        workload: Workload,
        survey: LayerSurvey,
        removed: Removed,
        alone: dict[str, float],
    ) -> Plan:
        steps = steps_of(removed, alone)
        staying = staying_layers(survey, alone, [path for path, _ in removed])
        notes = idle_patterns(self.keep, survey.parts, change="removed")
        if len(removed) < self.count:
            notes += (too_few(len(removed), self.count),)
        return Plan(
            NAME,
            self.to_dict(),
            steps,
            (*survey.skipped, *staying),
            shrinkage=_shrinkage(workload, [step.layer for step in steps]),
            not_predicted={"speedup": NO_SPEEDUP},
            notes=notes,
        )


def _shrinkage(workload: Workload, gone: list[str]) -> Gain | None:
    if not gone:
        return None
    adapter = adapter_for(workload.model, workload.arguments)
    smaller = remove_items(adapter.clone(workload.model), gone)
    before, after = (
        sum(each.nbytes for each in adapter.parameters(model))
        for model in (workload.model, smaller)
    )
    return Gain.counted(before, after, "counted on a copy")


def too_few(found: int, count: int) -> str:
    """Say that fewer layers can go than were asked for."""
    if not found:
        return "no layer can be removed"
    layers = "1 layer" if found == 1 else f"{found:,} layers"
    return f"only {layers} can be removed, {count:,} were asked for"
