"""Which layers of a TinyTorch model can be taken out of their lists, and what that does to it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import adapter_for, owner_of
from tinytorch.adapters.core_tensors import own_tensors
from tinytorch.core.backends import Array
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.perf.compression.missed_layers import is_part, why_no_stream, why_part_kept
from tinytorch.workloads.observing import calling_plainly, switch_to_eval
from tinytorch.workloads.plan import Skipped
from tinytorch.workloads.workload import Workload, call_model

__all__ = [
    "NOT_LISTED",
    "NO_PRODUCT",
    "LayerSurvey",
    "OutputChange",
    "remove_items",
    "survey_layers",
]

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
