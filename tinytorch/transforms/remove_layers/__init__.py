"""RemoveLayers: the transform that makes a model shallower, by the layers that it misses least."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tinytorch.core.module import Module
from tinytorch.errors import SettingError, first_line
from tinytorch.models.adapter import Adapter, Array, adapter_for, wrapping_layers
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Plan, Skipped, Step, Transform, Variant
from tinytorch.transforms.support import observing
from tinytorch.transforms.support.weights import counted_shrinkage

# ---------------------------------------------------------------- the lists of layers of a model


class LayerLists(Protocol):
    """The layers in lists by their paths, each with the path of its list."""

    items: dict[str, Any]
    list_of: dict[str, str]

    def places(self, layer: Any) -> int:
        """Return in how many places a layer stands."""

    def shorten(self, gone: Collection[str]) -> Callable[[], None]:
        """Remove layers from their lists, and return a function that restores them."""

    def remove(self, gone: Collection[str]) -> str:
        """Remove layers from their lists permanently, and return a note about that, if any."""


class PlainLists:
    """Lists in the attributes of TinyTorch's modules, of plain objects, and deeper in them."""

    def __init__(self, modules: Mapping[str, Any]) -> None:
        names = {id(module): path for path, module in modules.items()}
        self.items: dict[str, Any] = {}
        self.list_of: dict[str, str] = {}
        self._lists: dict[str, list[Any]] = {}
        for path, module in modules.items():
            for name, value in getattr(module, "__dict__", {}).items():
                for list_path, found in _lists(f"{path}.{name}" if path else name, value):
                    self._lists[list_path] = found
                    for layer in found:
                        if id(layer) in names and isinstance(layer, Module):
                            self.items[names[id(layer)]] = layer
                            self.list_of[names[id(layer)]] = list_path

    def places(self, layer: Any) -> int:
        lists = {id(each): each for each in self._lists.values()}.values()
        return sum(each is layer for found in lists for each in found)

    def shorten(self, gone: Collection[str]) -> Callable[[], None]:
        removed = {id(self.items[path]) for path in gone}
        before = [(self._lists[name], list(self._lists[name])) for name in self._lists]
        for owner, layers in before:
            owner[:] = [each for each in layers if id(each) not in removed]

        def put_back() -> None:
            for owner, layers in before:
                owner[:] = layers

        return put_back

    def remove(self, gone: Collection[str]) -> str:
        self.shorten(gone)
        return ""


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


def lists_of(adapter: Adapter, model: Any) -> LayerLists:
    """Return the lists of layers of a model."""
    if adapter.name == "pytorch":
        from tinytorch.transforms.remove_layers.torch import TorchLists

        return TorchLists(model)
    return PlainLists(adapter.modules(model))


def remove_items(model: Any, paths: Sequence[str]) -> str:
    """Remove layers from the lists that hold them, in place; if one is not there, none goes.

    The result is a note about the configuration of the model, if it has one.
    """
    lists = lists_of(adapter_for(model), model)
    missing = [path for path in paths if path not in lists.items]
    if missing:
        raise SettingError(
            f"the model has no layer {missing[0]!r} in a list of layers; make a plan for this model"
        )
    return lists.remove(paths) if paths else ""


# ---------------------------------------------------------------- which of them can go

NOT_LISTED = "it is no item of a list of layers"
NO_PRODUCT = "it multiplies by no matrix: without it next to nothing would be saved"
NO_CALLS = (
    "what a layer is worth is seen on calibration data or inputs, and there are none; give the "
    "workload `calibration`, or inputs"
)


@dataclass
class LayerSurvey:
    """The items of lists that multiply by weights, with their lists, and why some layers stay.

    `parts` are the paths of all layers in the items.
    """

    items: Mapping[str, str]
    reasons: dict[str, str]
    parts: tuple[str, ...] = ()

    @property
    def candidates(self) -> tuple[str, ...]:
        return tuple(path for path in self.items if path not in self.reasons)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What stays and why; of the parts of an item there is nothing to say beside it."""
        parts = {path for path in self.items for of in self.items if path.startswith(f"{of}.")}
        return tuple(Skipped(path, why) for path, why in self.reasons.items() if path not in parts)

    def removable_beside(self, gone: Collection[str]) -> list[str]:
        """Return the candidates that may go, too: not the last one of its list."""
        left: dict[str, int] = {}
        for path, list_path in self.items.items():
            left[list_path] = left.get(list_path, 0) + (path not in gone)
        return [
            path
            for path in self.candidates
            if left[self.items[path]] > 1
            and not any(is_part(path, each) or is_part(each, path) for each in gone)
        ]


@dataclass
class _Seen:
    """What a layer was called with and gave."""

    calls: int = 0
    problem: str = ""


def survey_layers(workload: Workload, keep: tuple[str, ...]) -> LayerSurvey:
    """Find the items of lists on a copy of the model, and see them at work on one call."""
    if not observing.calls_of(workload):
        raise SettingError(NO_CALLS)
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = dict(adapter.modules(twin))
    lists = lists_of(adapter, twin)
    items = [path for path, layer in lists.items.items() if _holds_product(adapter, layer)]
    seen, last = _watch(adapter, twin, items, workload)
    reasons: dict[str, str] = {}
    for path, module in modules.items():
        if path in items:
            reason = (
                why_part_kept(path, modules, keep)
                or _why_not_in_list(path, lists)
                or _why_needed(path, seen[path], last)
            )
        elif any(is_part(path, item) for item in items) or not _holds_tensors(adapter, module):
            continue
        else:
            reason = NO_PRODUCT if any(is_part(path, item) for item in lists.items) else NOT_LISTED
        if reason:
            reasons[path] = reason
    if not items and not reasons:
        reasons[""] = f"no layer with weights was found in {workload.name}"
    parts = tuple(path for path in modules if any(is_part(path, item) for item in items))
    return LayerSurvey({path: lists.list_of[path] for path in items}, reasons, parts)


def _watch(
    adapter: Adapter, model: Any, items: Sequence[str], workload: Workload
) -> tuple[dict[str, _Seen], Collection[str]]:
    """Call the model once; return what the items did, and the layers at work with weights last."""
    modules = adapter.modules(model)
    seen = {path: _Seen() for path in items}
    active: list[str] = []
    last: list[str] = []

    def wrapper(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*inputs: Any, **settings: Any) -> Any:
            active.append(path)
            output = forward(*inputs, **settings)
            if path in seen:
                seen[path].calls += 1
                stream = output[0] if isinstance(output, tuple) and output else output
                problem = why_no_stream(next(iter((*inputs, *settings.values())), None), stream)
                seen[path].problem = seen[path].problem or problem
            if _holds_tensors(adapter, modules[path]):
                last[:] = active
            active.pop()
            return output

        return call

    with wrapping_layers(modules, ("forward",), wrapper):
        observing.run_call(model, observing.calls_of(workload)[0])
    return seen, last


def _why_not_in_list(path: str, lists: LayerLists) -> str:
    layer = lists.items[path]
    if (places := lists.places(layer)) > 1:
        return f"it stands in {places} places"
    if "forward" in vars(layer):
        return "its forward was replaced on this object by another function"
    return ""


def _why_needed(path: str, seen: _Seen, last: Collection[str]) -> str:
    if not seen.calls:
        return "it was not called"
    if seen.problem:
        return seen.problem
    return "it makes the outputs: no weights come after it" if path in last else ""


def _holds_tensors(adapter: Adapter, module: Any) -> bool:
    return any(True for _ in adapter.own_tensors(module))


def _holds_product(adapter: Adapter, layer: Any) -> bool:
    """Whether a layer or a part of it holds a weight with two or more axes, in whatever form."""
    return any(
        hasattr(module, "weight_size")
        or adapter.packed_form(module)
        or any(np.ndim(adapter.values(each)) > 1 for _, each in adapter.own_tensors(module))
        for module in adapter.modules(layer).values()
    )


# ---------------------------------------------------------------- what a model is without them

SAME = 1e-5
"""The same operations on the same numbers; some kernels of a GPU add up in any order."""


class OutputChange:
    """Tells how much the outputs of a copy of a model change without some layers."""

    def __init__(self, workload: Workload) -> None:
        calls = observing.calls_of(workload)
        self._adapter = adapter_for(workload.model, workload.arguments)
        self._model = self._adapter.clone(workload.model)
        self._lists = lists_of(self._adapter, self._model)
        self._calls = calls[1:] if workload.calibration and workload.arguments else calls
        self._expected = [observing.outputs_of(self._model, call) for call in self._calls]
        if not any(self._expected):
            raise SettingError(
                "the model returns no floating-point numbers, so the change without a layer "
                "cannot be measured"
            )

    def without(self, paths: Sequence[str]) -> tuple[float, str]:
        """Return the change relative to the outputs (both root mean squares), or why they stay.

        A model that goes over its list computes the same as one in which the layers let their
        inputs pass. One that does not, but counts or names its layers, would compute nonsense.
        """
        try:
            with _letting_pass({path: self._lists.items[path] for path in paths}):
                wanted = observing.outputs_of(self._model, self._calls[0])
            put_back = self._lists.shorten(paths)
            try:
                found = [observing.outputs_of(self._model, call) for call in self._calls]
                held_without = self._adapter.held_bytes(self._model)
            finally:
                put_back()
        except SettingError as error:
            return math.inf, f"the model fails without it ({first_line(error.__cause__ or error)})"
        if held_without >= self._adapter.held_bytes(self._model):
            return math.inf, "others hold all of its weights: nothing would be saved"
        if not _agree(wanted, found[0]):
            return math.inf, "the model does not simply go over its list: it needs this one there"
        change, reason = observing.relative_change(
            [each for outputs in self._expected for each in outputs],
            [each for outputs in found for each in outputs],
        )
        return change, f"without it {reason}" if reason else ""


@contextmanager
def _letting_pass(layers: Mapping[str, Any]) -> Iterator[None]:
    """Make layers compute as usual, but return their input instead of their first output."""

    def wrapper(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def let_pass(*inputs: Any, **settings: Any) -> Any:
            first = next(iter((*inputs, *settings.values())))
            output = forward(*inputs, **settings)
            return (first, *output[1:]) if isinstance(output, tuple) else first

        return let_pass

    with wrapping_layers(layers, ("forward",), wrapper):
        yield


def _agree(wanted: Sequence[Array], found: Sequence[Array]) -> bool:
    if len(wanted) == len(found) and all(
        np.array_equal(one, other, equal_nan=True) for one, other in zip(wanted, found, strict=True)
    ):
        return True
    return observing.relative_change(wanted, found)[0] <= SAME


# ---------------------------------------------------------------- those that are missed least

Removed = Sequence[tuple[str, float]]
"""Layers in the order in which they go, each with how much the outputs change by then."""


def choose_layers(
    survey: LayerSurvey, judge: OutputChange, alone: Mapping[str, float], *, count: int
) -> Removed:
    """Remove the layer that is missed least, again and again; `alone` has the first changes."""
    chosen: list[tuple[str, float]] = []
    while len(chosen) < count:
        gone = tuple(path for path, _ in chosen)
        changes: dict[str, float] = {}
        for path in survey.removable_beside(gone):
            change, reason = (alone[path], "") if not gone else judge.without((*gone, path))
            if not reason:
                changes[path] = change
        if not changes:
            break
        least = min(changes, key=lambda path: changes[path])
        chosen.append((least, changes[least]))
    return chosen


def steps_of(removed: Removed, alone: Mapping[str, float]) -> tuple[Step, ...]:
    return tuple(
        Step(
            path,
            "removed",
            f"without it the outputs change by {alone[path]:.2%}"
            + (f", by {change:.2%} with those removed before" if number else ""),
            {"order": number, "change_alone": alone[path], "change_together": change},
        )
        for number, (path, change) in enumerate(removed)
    )


def staying_layers(
    survey: LayerSurvey, alone: Mapping[str, float], gone: Iterable[str]
) -> tuple[Skipped, ...]:
    """Return for each removable layer that stays what removing it would change."""
    gone = tuple(gone)
    removable = survey.removable_beside(gone)
    return tuple(
        Skipped(
            path,
            f"without it the outputs would change by {change:.2%}"
            + ("" if path in removable else "; nothing else of its kind is in its list"),
        )
        for path, change in alone.items()
        if not any(is_part(path, each) for each in gone)
    )


def is_part(path: str, of: str) -> bool:
    """Return whether a layer is another one, or in it."""
    return path == of or path.startswith(f"{of}.")


def why_no_stream(first: Any, output: Any) -> str:
    """Return why a layer with this input and output cannot be removed, or ""."""
    if not all(hasattr(each, "shape") and hasattr(each, "dtype") for each in (first, output)):
        return "it takes or gives something else than one tensor"
    if first.shape != output.shape:
        return f"it makes {tuple(output.shape)} of {tuple(first.shape)}, so others need it"
    if first.dtype != output.dtype:
        return f"it makes {output.dtype} of {first.dtype}, so others need it"
    return ""


def why_part_kept(path: str, modules: Iterable[str], keep: tuple[str, ...]) -> str:
    """Return which pattern keeps a layer, or a part of it, or ""."""
    for part in modules:
        reason = observing.why_kept(part, keep) if is_part(part, path) else ""
        if reason:
            return reason if part == path else f"{part!r} in it is {reason}"
    return ""


# ---------------------------------------------------------------- RemoveLayers: the transform

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
        object.__setattr__(self, "keep", observing.checked_patterns(self.keep))

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        """Return the plan, found by removing layers one by one from a copy of the model."""
        adapter = adapter_for(workload.model, workload.arguments)
        reason = adapter.why_no_module(workload.model)
        if reason:
            return self.skipping(reason)
        observing.check_no_cache(adapter.modules(workload.model))
        survey = survey_layers(workload, self.keep)
        removed: Removed = []
        alone: dict[str, float] = {}
        if survey.candidates:
            judge = OutputChange(workload)
            for path in survey.candidates:
                change, reason = judge.without((path,))
                if reason:
                    survey.reasons[path] = reason
                else:
                    alone[path] = change
            removed = choose_layers(survey, judge, alone, count=self.count)
        return self._as_plan(workload, survey, removed, alone)

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        """Make the lists of a model shorter."""
        observing.check_no_cache(adapter_for(model, workload.arguments).modules(model))
        remove_items(model, plan.layers)
        return model

    def _as_plan(
        self,
        workload: Workload,
        survey: LayerSurvey,
        removed: Removed,
        alone: dict[str, float],
    ) -> Plan:
        gone = [path for path, _ in removed]
        notes = observing.idle_patterns(self.keep, survey.parts, change="removed")
        if len(removed) < self.count:
            notes += (_too_few(len(removed), self.count),)
        gain = None
        if gone:
            adapter = adapter_for(workload.model, workload.arguments)
            smaller = adapter.clone(workload.model)
            note = remove_items(smaller, gone)
            gain = counted_shrinkage(workload.model, smaller)
            notes = (note, *notes) if note else notes
        return self.planned(
            steps_of(removed, alone),
            (*survey.skipped, *staying_layers(survey, alone, gone)),
            shrinkage=gain,
            not_predicted={"speedup": NO_SPEEDUP},
            notes=notes,
        )


def _too_few(found: int, count: int) -> str:
    if not found:
        return "no layer can be removed"
    layers = "1 layer" if found == 1 else f"{found:,} layers"
    return f"only {layers} can be removed, {count:,} were asked for"
