"""Which channels of a TinyTorch model are removed, and why others stay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import named_tensors, own_tensors
from tinytorch.core.attention import MultiHeadAttention
from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.perf.compression.channel_checks import why_broken
from tinytorch.perf.compression.channel_graph import (
    ChannelGraph,
    Family,
    Place,
    Unit,
    trace_channels,
)
from tinytorch.perf.compression.channel_importance import input_energies, unit_importance
from tinytorch.perf.compression.multiply_accumulates import count_macs, macs_note
from tinytorch.perf.compression.trimming import Removal, joined, lengths_of, trim
from tinytorch.workloads.kept_layers import idle_patterns, why_kept
from tinytorch.workloads.observing import check_no_cache
from tinytorch.workloads.plan import Gain, Plan, Skipped, Step
from tinytorch.workloads.workload import Workload

if TYPE_CHECKING:
    from tinytorch.perf.compression.remove_channels import RemoveChannels

__all__ = ["NAME", "apply_removal", "plan_removal"]

NAME = "RemoveChannels"
NO_SPEEDUP = (
    "fewer multiply-accumulates are not as much less time: that depends on the kernels and on what "
    "else a call does; compare() measures it"
)
HEADS_DIFFER = "all layers of one cache need as many heads, and some of these have to stay"
PACKED = "the weights of a {} are packed; remove channels before that"


def plan_removal(workload: Workload, settings: RemoveChannels) -> Plan:
    """Follow the channels of a model through one call, and choose those that go."""
    modules = adapter_for(workload.model, workload.arguments).modules(workload.model)
    check_no_cache(modules)
    _check_finite(workload.model)
    try:
        graph = trace_channels(workload)
    except TinyTorchError as error:
        return _plan_without_graph(workload, settings, modules, error)
    groups = [_Group.of(family, modules) for family in graph.families]
    _put_in_order(workload, groups, settings)
    for group in groups:
        group.reason = next((why for p in group.layers if (why := why_kept(p, settings.keep))), "")
    chosen = _checked_choice(workload, groups, modules, settings)
    skipped = _fixed_layers(modules, graph)
    for group in groups:
        reason = group.reason
        if not (reason or chosen.get(id(group))):
            reason = f"none of its {group.size} {group.kind} goes: {_how_much(settings)} is too few"
        if reason:
            skipped.append(Skipped(group.layer, reason))
    notes = idle_patterns(
        settings.keep, [path for each in groups for path in each.layers], change="made smaller"
    )
    steps = tuple(
        _step(workload, group, units, settings)
        for group in groups
        if (units := chosen.get(id(group)))
    )
    return _plan(workload, settings, steps, skipped, notes)


def _plan_without_graph(
    workload: Workload, settings: RemoveChannels, modules: Mapping[str, Any], error: TinyTorchError
) -> Plan:
    """Leave a model alone whose layers hold their weights in a form that nobody can follow."""
    packed = {path: type(each).__name__ for path, each in modules.items() if _is_packed(each)}
    if not packed:
        raise error
    kinds = ", ".join(dict.fromkeys(packed.values()))
    skipped = [Skipped("", f"channels cannot be followed through {kinds}; remove them before that")]
    skipped += [Skipped(path, PACKED.format(kind)) for path, kind in packed.items()]
    return _plan(workload, settings, (), skipped, ())


def apply_removal(workload: Workload, plan: Plan) -> Any:
    """Give a copy of the model without the channels of the plan."""
    twin = adapter_for(workload.model, workload.arguments).clone(workload.model)
    check_no_cache(adapter_for(twin).modules(twin))
    lengths = {place: n for step in plan.steps for place, n in _by_place(step, "lengths").items()}
    trim(twin, joined(map(_removal_of, plan.steps)), lengths)
    return twin


def _by_place(step: Step, what: str) -> dict[Place, Any]:
    """Give what the settings of a step say about axes of weights."""
    return {
        Place(tensor, int(axis)): each
        for tensor, axes in step.settings.get(what, {}).items()
        for axis, each in axes.items()
    }


def _removal_of(step: Step) -> Removal:
    return {place: tuple(indices) for place, indices in _by_place(step, "removed").items()}


# ---------------------------------------------------------------- groups of channels


@dataclass
class _Group:
    """A family of channels with the layers that make them."""

    family: Family
    layers: tuple[str, ...]
    kind: str
    order: Any = None
    """Units from the least important on."""
    reason: str = ""
    """Why they stay, if so."""

    @classmethod
    def of(cls, family: Family, modules: Mapping[str, Any]) -> _Group:
        weights = [place for place in family.producers if family.rank(place) > 1]
        layers = dict.fromkeys(map(_layer_of, (*weights, *family.producers)))
        for path in layers:
            parent, _, name = path.rpartition(".")
            if name == "q_proj" and isinstance(modules.get(parent), MultiHeadAttention):
                return cls(family, (parent, *layers), "heads")
        return cls(family, tuple(layers), "channels")

    @property
    def layer(self) -> str:
        return self.layers[0]

    @property
    def size(self) -> int:
        return len(self.family.units)

    def weakest(self, count: int) -> list[Unit]:
        return [self.family.units[index] for index in sorted(self.order[:count])]

    def removed_count(self, ratio: float, round_to: int) -> int:
        """Give how many units go at a ratio; at least one stays."""
        kept = self.size - math.floor(ratio * self.size + 1e-9)
        if self.kind == "channels":
            kept = math.ceil(kept / round_to) * round_to
        return self.size - min(self.size, max(1, kept))


def _layer_of(place: Place) -> str:
    return place.tensor.rpartition(".")[0]


def _keep_heads_alike(groups: Sequence[_Group], modules: Mapping[str, Any]) -> None:
    """Keep all heads of a model with a cache if one of its layers has to keep its own."""
    if not any(hasattr(module, "make_cache") for module in modules.values()):
        return
    heads = [each for each in groups if each.kind == "heads"]
    count = sum(isinstance(module, MultiHeadAttention) for module in modules.values())
    if len({(each.size, bool(each.reason)) for each in heads}) > 1 or len(heads) != count:
        for each in heads:
            each.reason = each.reason or HEADS_DIFFER


def _is_packed(module: Any) -> bool:
    return hasattr(module, "weight_size")


def _fixed_layers(modules: Mapping[str, Any], graph: ChannelGraph) -> list[Skipped]:
    """Say of each layer with weights of its own, no channel of which can go, why that is so."""
    named = named_tensors(modules[""])
    producers = {place for family in graph.families for place in family.producers}
    skipped = []
    for path, module in modules.items():
        own = [
            f"{path}.{name}" if path else name
            for name, each in own_tensors(module)
            if each.ndim > 1
        ]
        places = [place for place in graph.fixed if place.tensor in own]
        if _is_packed(module):
            skipped.append(Skipped(path, PACKED.format(type(module).__name__)))
        elif own and not any(place.tensor in own for place in producers):
            if places:
                reason = f"its outputs stay: {graph.fixed[_output_place(module, places)]}"
            elif any(name in named for name in own):
                reason = "it was not called"
            else:
                reason = "it shares its weight with a layer that is named before it"
            skipped.append(Skipped(path, reason))
    return skipped


def _output_place(module: Any, places: list[Place]) -> Place:
    """Choose the axis of the outputs of a layer, where it is known."""
    axis = 0 if hasattr(module, "kernel_size") else 1
    return next((place for place in places if place.axis == axis), places[0])


# ---------------------------------------------------------------- checking


def _checked_choice(
    workload: Workload,
    groups: list[_Group],
    modules: Mapping[str, Any],
    settings: RemoveChannels,
) -> dict[int, list[Unit]]:
    """Choose units without which the model still computes what it should.

    A trace cannot see sizes or numbers that are written down in the code of a model. Groups that
    need them get a reason, and the others are chosen again.
    """
    _keep_heads_alike(groups, modules)
    _give_reasons(workload, [(each, each.weakest(1)) for each in groups if not each.reason])
    while True:
        _keep_heads_alike(groups, modules)
        rest = [each for each in groups if not each.reason]
        chosen = _chosen(workload, rest, settings)
        _give_reasons(workload, [(each, chosen[id(each)]) for each in rest])
        if not any(each.reason for each in rest):
            return chosen


Choice = list[tuple[_Group, list[Unit]]]


def _families(choice: Choice) -> list[tuple[Family, list[Unit]]]:
    return [(group.family, units) for group, units in choice]


def _give_reasons(workload: Workload, choice: Choice) -> None:
    """Give a reason to groups that cannot lose these units, alone or together with others."""
    choice = [(group, units) for group, units in choice if units and len(units) < group.size]
    if not why_broken(workload, _families(choice)):
        return
    for group, units in choice:
        group.reason = why_broken(workload, [(group.family, units)])
    sound: Choice = []
    for group, units in choice:
        if not group.reason and why_broken(workload, _families([*sound, (group, units)])):
            names = ", ".join(each.layer for each, _ in sound)
            group.reason = f"the model does not compute without channels of it and of {names}"
        if not group.reason:
            sound.append((group, units))


def _check_finite(model: Any) -> None:
    for name, tensor in named_tensors(model).items():
        if not np.isfinite(tensor.data).all():
            raise SettingError(
                f"{name!r} holds NaN or infinity, so nobody can tell which channels matter"
            )


# ---------------------------------------------------------------- choosing


def _put_in_order(workload: Workload, groups: Iterable[_Group], settings: RemoveChannels) -> None:
    energies = input_energies(workload) if settings.importance == "activation" else None
    tensors = named_tensors(workload.model)
    for group in groups:
        importance = unit_importance(group.family, tensors, energies)
        group.order = np.argsort(importance, kind="stable")


def _chosen(
    workload: Workload, groups: Sequence[_Group], settings: RemoveChannels
) -> dict[int, list[Unit]]:
    """Give the units that go, by the `id` of their group."""

    def at(ratio: float) -> dict[int, list[Unit]]:
        return {id(g): g.weakest(g.removed_count(ratio, settings.round_to)) for g in groups}

    if settings.ratio is not None:
        return at(settings.ratio)
    assert settings.macs is not None
    allowed = settings.macs * _macs_without(workload, {})
    ratios = sorted({count / group.size for group in groups for count in range(group.size)} | {0.0})
    low, high = 0, len(ratios) - 1  # the least ratio that is enough lies in between
    least = _macs_without(workload, at(ratios[high]))
    if least > allowed:
        raise SettingError(
            f"macs={settings.macs} cannot be reached: with one channel left of each group, "
            f"{least / allowed * settings.macs:.1%} of the multiply-accumulates remain"
        )
    while low < high:
        middle = (low + high) // 2
        if _macs_without(workload, at(ratios[middle])) <= allowed:
            high = middle
        else:
            low = middle + 1
    return at(ratios[high])


def _macs_without(workload: Workload, chosen: Mapping[int, list[Unit]]) -> int:
    twin = adapter_for(workload.model, workload.arguments).clone(workload.model)
    trim(twin, joined(unit for units in chosen.values() for unit in units))
    return count_macs(twin, workload)


# ---------------------------------------------------------------- the plan


def _plan(
    workload: Workload,
    settings: RemoveChannels,
    steps: tuple[Step, ...],
    skipped: list[Skipped],
    notes: tuple[str, ...],
) -> Plan:
    gain = None
    if steps:
        adapter = adapter_for(workload.model, workload.arguments)
        twin = adapter.clone(workload.model)
        before = sum(each.nbytes for each in adapter.parameters(workload.model))
        held, macs = _bytes_of(twin), count_macs(twin, workload)
        trim(twin, joined(map(_removal_of, steps)))
        after, left = before + _bytes_of(twin) - held, count_macs(twin, workload)
        gain = Gain.counted(before, after, "counted on a copy")
        notes = (macs_note(macs, left), *notes)
    return Plan(
        NAME,
        settings.to_dict(),
        steps,
        tuple(skipped),
        shrinkage=gain,
        not_predicted={"speedup": NO_SPEEDUP},
        notes=notes,
    )


def _bytes_of(model: Any) -> int:
    return sum(tensor.data.nbytes for tensor in named_tensors(model).values())


def _step(workload: Workload, group: _Group, units: list[Unit], settings: RemoveChannels) -> Step:
    removal = joined(units)
    removed: dict[str, dict[int, tuple[int, ...]]] = {}
    lengths: dict[str, dict[int, int]] = {}
    for place, length in lengths_of(workload.model, removal).items():
        removed.setdefault(place.tensor, {})[place.axis] = removal[place]
        lengths.setdefault(place.tensor, {})[place.axis] = length
    by = "weights" if settings.importance == "magnitude" else "share in the layers after it"
    why = f"those with the smallest {by}"
    others = [path for path in group.layers[1:] if not path.startswith(f"{group.layer}.")]
    if others:
        why += f"; with them those of {', '.join(others)}"
    fed = dict.fromkeys(_layer_of(place) for place in group.family.consumers)
    why += f"; fewer go into {', '.join(sorted(fed))}"
    what = f"remove {len(units)} of {group.size} {group.kind}"
    return Step(group.layer, what, why, {"removed": removed, "lengths": lengths})


def _how_much(settings: RemoveChannels) -> str:
    return f"macs={settings.macs}" if settings.ratio is None else f"ratio={settings.ratio}"
