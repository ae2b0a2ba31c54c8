"""Removing whole layers of PyTorch models, those that are missed least. Imported after torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tinytorch.errors import SettingError
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import why_no_module
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import Plan, Skipped
from tinytorch.transforms.remove_layers import NAME, NO_PRODUCT, NO_SPEEDUP, NOT_LISTED, too_few
from tinytorch.transforms.support.observing import idle_patterns
from tinytorch.transforms.support.trimming import (
    Removed,
    choose_layers,
    is_part,
    staying_layers,
    steps_of,
    why_no_stream,
    why_part_kept,
)
from tinytorch.transforms.support.weights_torch import (
    calls_of,
    counted_shrinkage,
    fit_config,
    outputs_of,
    relative_change,
    watching,
)

if TYPE_CHECKING:
    from tinytorch.transforms.remove_layers import RemoveLayers

__all__ = [
    "LISTS",
    "LayerSurvey",
    "OutputChange",
    "apply_torch",
    "plan_torch",
    "shorten",
    "survey_layers",
]


# ---------------------------------------------------------------- which layers of a PyTorch model
# can be taken out of their lists, and what that does to it
#
# Imported after torch.

LISTS = (nn.ModuleList, nn.Sequential)
SAME = 1e-5
"""The same operations on the same numbers; some kernels of a GPU add up in any order."""


# ---------------------------------------------------------------- looking at the model


@dataclass
class LayerSurvey:
    """The items of lists that multiply by weights, by path, and why some layers stay."""

    items: Mapping[str, nn.Module]
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def candidates(self) -> tuple[str, ...]:
        return tuple(path for path in self.items if path not in self.reasons)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What stays and why; of the parts of an item there is nothing to say beside it."""
        parts = {path for path in self.items for of in self.items if path.startswith(f"{of}.")}
        return tuple(Skipped(path, why) for path, why in self.reasons.items() if path not in parts)

    def removable_beside(self, gone: Collection[str]) -> list[str]:
        """Give the candidates that may go, too: not the last one of its list."""
        left: dict[str, int] = {}
        for path in self.items:
            parent = path.rpartition(".")[0]
            left[parent] = left.get(parent, 0) + (path not in gone)
        return [
            path
            for path in self.candidates
            if left[path.rpartition(".")[0]] > 1
            and not any(is_part(path, each) or is_part(each, path) for each in gone)
        ]


@dataclass
class _Seen:
    """What a layer was called with and gave."""

    calls: int = 0
    problem: str = ""


def survey_layers(model: nn.Module, workload: Workload, keep: tuple[str, ...]) -> LayerSurvey:
    """Find the items of lists, and see them at work on the first call."""
    modules = dict(model.named_modules())
    listed = {
        path: module
        for path, module in modules.items()
        if path and isinstance(modules[path.rpartition(".")[0]], LISTS)
    }
    items = {
        path: module
        for path, module in listed.items()
        if any(each.dim() > 1 for each in module.parameters())
    }
    seen, last = _watch(model, modules, items, workload)
    reasons: dict[str, str] = {}
    for path, module in modules.items():
        if path in items:
            reason = why_part_kept(path, modules, keep)
            reason = reason or _why_needed(model, path, seen[path], last)
        else:
            holds = any(each is not None for each in module._parameters.values())
            inside = any(is_part(path, item) for item in items)
            of_list = any(is_part(path, item) for item in listed)
            reason = (NO_PRODUCT if of_list else NOT_LISTED) if holds and not inside else ""
        if reason:
            reasons[path] = reason
    if not items and not reasons:
        reasons[""] = f"no layer with weights was found in {workload.name}"
    return LayerSurvey(items, reasons)


def _watch(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    items: Mapping[str, nn.Module],
    workload: Workload,
) -> tuple[dict[str, _Seen], str]:
    """Call the model once; give what the items did, and the last layer with weights that ended."""
    seen = {path: _Seen() for path in items}
    ended = [""]

    def see(path: str, inputs: tuple[Any, ...], output: Any) -> None:
        if path in seen:
            seen[path].calls += 1
            first = next(iter(inputs), None)
            stream = output[0] if isinstance(output, tuple) and output else output
            problem = why_no_stream(first, stream, torch.Tensor)
            seen[path].problem = seen[path].problem or problem
        if any(each is not None for each in modules[path]._parameters.values()):
            ended[0] = path

    called = {path: module for path, module in modules.items() if path}
    with watching(called, see):
        outputs_of(model, calls_of(workload)[0])
    return seen, ended[0]


def _why_needed(model: nn.Module, path: str, seen: _Seen, last: str) -> str:
    if not seen.calls:
        return "it was not called"
    if seen.problem:
        return seen.problem
    if is_part(last, path):
        return "it makes the outputs: no weights come after it"
    item = model.get_submodule(path)
    places = [
        f"{holder}.{name}"
        for holder, module in model.named_modules()
        for name, child in module._modules.items()
        if child is item
    ]
    if len(places) > 1:
        return f"it stands in {len(places)} places"
    inside = {id(each) for each in item.parameters()}
    others = {
        id(tensor)
        for name, module in model.named_modules()
        if not is_part(name, path)
        for tensor in module._parameters.values()
    }
    return "others hold all of its weights, so nothing would be saved" if inside <= others else ""


# ---------------------------------------------------------------- taking layers away


class OutputChange:
    """Tells how much the outputs of a model change without some layers. The copy stays whole."""

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        calls = calls_of(workload)
        self._model = model
        self._modules = dict(model.named_modules())
        self._calls = calls[1:] if workload.calibration and workload.arguments else calls
        self._expected = [outputs_of(model, call) for call in self._calls]
        if not any(self._expected):
            raise SettingError(
                "the model returns no floating-point numbers, so nobody can tell how much it "
                "misses a layer"
            )

    def without(self, paths: Sequence[str]) -> tuple[float, str]:
        """Give the change relative to the outputs, or why these layers must stay.

        A model that goes over its list computes the same as one in which the layers let their
        inputs pass. One that does not, but counts or names its layers, would compute nonsense.
        """
        try:
            with _letting_pass(self._modules, paths):
                wanted = outputs_of(self._model, self._calls[0])
            with _shortened(self._modules, paths):
                found = [outputs_of(self._model, call) for call in self._calls]
        except SettingError as error:
            message = (str(error.__cause__ or error).splitlines() or ["no message"])[0]
            return 0.0, f"the model fails without it: {message}"
        difference, reason = relative_change(wanted, found[0])
        if reason or difference > SAME:
            return 0.0, "the model does not simply go over its list: it needs this one there"
        return relative_change(
            [each for outputs in self._expected for each in outputs],
            [each for outputs in found for each in outputs],
        )


@contextmanager
def _letting_pass(modules: Mapping[str, nn.Module], paths: Sequence[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for path in paths:
            layer = modules[path]
            before = layer.__dict__.get("forward")
            layer.__dict__["forward"] = _passing(layer.forward)
            stack.callback(_put_back, layer, before)
        yield


def _put_back(layer: nn.Module, forward: Any) -> None:
    del layer.__dict__["forward"]
    if forward is not None:
        layer.__dict__["forward"] = forward


def _passing(forward: Any) -> Any:
    """Give what a layer would give, with its input in the place of its first output."""

    def let_pass(*inputs: Any, **settings: Any) -> Any:
        first = next(iter((*inputs, *settings.values())))
        output = forward(*inputs, **settings)
        return (first, *output[1:]) if isinstance(output, tuple) else first

    return let_pass


@contextmanager
def _shortened(modules: Mapping[str, nn.Module], paths: Sequence[str]) -> Iterator[None]:
    """Take layers out of their lists, and put them back."""
    lists = {path.rpartition(".")[0] for path in paths}
    before = [(modules[path], dict(modules[path]._modules)) for path in lists]
    numbers = [
        (module, module.__dict__["layer_idx"])
        for path in lists
        for module in modules[path].modules()
        if "layer_idx" in module.__dict__
    ]
    shorten(modules, paths)
    try:
        yield
    finally:
        for holder, children in before:
            holder._modules.clear()
            holder._modules.update(children)
        for module, number in numbers:
            module.__dict__["layer_idx"] = number


def shorten(modules: Mapping[str, nn.Module], paths: Collection[str]) -> None:
    """Take layers out of their lists; those behind them move up, in name and in `layer_idx`.

    By that number a layer of transformers finds its keys and values in a cache.
    """
    for list_path in {path.rpartition(".")[0] for path in paths}:
        holder = modules[list_path]
        gone = {path.rpartition(".")[2] for path in paths if path.rpartition(".")[0] == list_path}
        kept = [(name, child) for name, child in holder._modules.items() if name not in gone]
        is_numbered = all(name.isdecimal() for name in holder._modules)
        old = list(holder._modules)
        holder._modules.clear()
        for number, (name, child) in enumerate(kept):
            holder._modules[str(number) if is_numbered else name] = child
            for module in child.modules() if child is not None else ():
                if module.__dict__.get("layer_idx") == old.index(name):
                    module.__dict__["layer_idx"] = number


# ---------------------------------------------------------------- removing whole layers of PyTorch
# models, those that are missed least. Imported after torch

COUNTS = (
    "num_hidden_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
"""What configs call the number of layers."""
NO_CALLS = (
    "what a layer is worth is seen on calibration data or inputs, and there are none; give the "
    "workload `calibration`, or inputs"
)


def plan_torch(workload: Workload, settings: RemoveLayers) -> Plan:
    """Take layers away one by one, and see what the outputs do, on a copy of the model."""
    reason = why_no_module(workload.model)
    if reason:
        return _plan(workload, settings, LayerSurvey({}, {"": reason}), [], {})
    if not calls_of(workload):
        raise SettingError(NO_CALLS)
    twin: nn.Module = TorchAdapter().clone(workload.model)
    survey = survey_layers(twin, workload, settings.keep)
    judge = OutputChange(twin, workload)
    alone: dict[str, float] = {}
    for path in survey.candidates:
        change, reason = judge.without((path,))
        if reason:
            survey.reasons[path] = reason
        else:
            alone[path] = change
    removed = choose_layers(survey, judge, alone, count=settings.count)
    return _plan(workload, settings, survey, removed, alone)


def apply_torch(workload: Workload, plan: Plan, settings: RemoveLayers) -> nn.Module:
    """Give a copy of the model whose lists are shorter."""
    plan.check_made_by(NAME, settings.to_dict())
    twin: nn.Module = TorchAdapter().clone(workload.model)
    _remove(twin, plan.layers)
    return twin


def _remove(model: nn.Module, paths: Collection[str]) -> str:
    """Take layers out of their lists, in place, and give a note about the config."""
    modules = dict(model.named_modules())
    for path in paths:
        if path not in modules or not isinstance(modules[path.rpartition(".")[0]], LISTS):
            raise SettingError(
                f"the model has no layer {path!r} in a list of layers; make a plan for this model"
            )
    if not paths:
        return ""
    alternatives = list(_config_changes(model, paths))
    shorten(modules, paths)
    return fit_config(model, *alternatives)


def _config_changes(model: nn.Module, paths: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield what a config may have to say: fewer layers, and no entries for those that are gone."""
    config = getattr(model, "config", None)
    by_list: dict[str, list[int]] = {}
    for path in paths:
        parent, _, name = path.rpartition(".")
        names = list(model.get_submodule(parent)._modules)
        by_list.setdefault(parent, []).append(names.index(name))
    if len(by_list) > 1:
        yield {}
        return
    for parent, gone in by_list.items():
        count = len(model.get_submodule(parent)._modules)
        matching = [name for name in COUNTS if getattr(config, name, None) == count]
        lists = {
            name: [each for place, each in enumerate(value) if place not in gone]
            for name, value in getattr(config, "__dict__", {}).items()
            if isinstance(value, list) and len(value) == count and not name.startswith("_")
        }
        for size in range(1, len(matching) + 1):
            for chosen in combinations(matching, size):
                counts = dict.fromkeys(chosen, count - len(gone))
                yield {**counts, **lists}
                yield counts


# ---------------------------------------------------------------- the plan


def _plan(
    workload: Workload,
    settings: RemoveLayers,
    survey: LayerSurvey,
    removed: Removed,
    alone: Mapping[str, float],
) -> Plan:
    gone = tuple(path for path, _ in removed)
    steps = steps_of(removed, alone)
    staying = staying_layers(survey, alone, gone)
    notes = idle_patterns(settings.keep, survey.items, change="removed")
    if survey.items and len(removed) < settings.count:
        notes += (too_few(len(removed), settings.count),)
    gain = None
    if steps:
        twin: nn.Module = TorchAdapter().clone(workload.model)
        note = _remove(twin, gone)
        gain = counted_shrinkage(workload.model, twin)
        notes = (note, *notes) if note else notes
    return Plan(
        NAME,
        settings.to_dict(),
        steps,
        (*survey.skipped, *staying),
        shrinkage=gain,
        not_predicted={"speedup": NO_SPEEDUP},
        notes=notes,
    )
