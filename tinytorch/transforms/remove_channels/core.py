"""Which channels of a TinyTorch model are removed, and why others stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.errors import TinyTorchError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.core import named_tensors, own_tensors
from tinytorch.models.workload import Workload
from tinytorch.transforms import remove_channels
from tinytorch.transforms.plan import Plan, Skipped
from tinytorch.transforms.support.channels import ChannelGraph, Family, Place, trace_channels
from tinytorch.transforms.support.observing import calls_of, idle_patterns, why_kept

HEADS_DIFFER = "all layers of one cache need as many heads, and some of these have to stay"
PACKED = "the weights of a {} are packed; remove channels before that"


def plan_core(workload: Workload, settings: remove_channels.RemoveChannels) -> Plan:
    """Follow the channels of a model through one call, and choose those that go."""
    modules = adapter_for(workload.model, workload.arguments).modules(workload.model)
    try:
        graph = trace_channels(workload)
    except TinyTorchError as error:
        return _plan_without_graph(workload, settings, modules, error)
    groups = [group_of(family, modules) for family in graph.families]
    remove_channels.put_in_order(workload, groups, settings)
    for group in groups:
        group.reason = next((why for p in group.layers if (why := why_kept(p, settings.keep))), "")
    chosen = _checked_choice(workload, groups, modules, settings)
    skipped = _fixed_layers(modules, graph)
    for group in groups:
        reason = group.reason
        if not (reason or chosen.get(id(group))):
            reason = f"none of its {group.size} {group.kind} goes: {_how_much(settings)} is too few"
        if reason:
            skipped.append(Skipped(group.layers[0], reason))
    notes = idle_patterns(
        settings.keep, [path for each in groups for path in each.layers], change="made smaller"
    )
    steps = tuple(
        remove_channels.step_of(workload, group, units, settings)
        for group in groups
        if (units := chosen.get(id(group)))
    )
    return remove_channels.make_plan(workload, settings, steps, skipped, notes)


def _plan_without_graph(
    workload: Workload,
    settings: remove_channels.RemoveChannels,
    modules: Mapping[str, Any],
    error: TinyTorchError,
) -> Plan:
    """Return a plan that skips a model whose layers hold packed weights."""
    packed = {path: type(each).__name__ for path, each in modules.items() if _is_packed(each)}
    if not packed:
        raise error
    kinds = ", ".join(dict.fromkeys(packed.values()))
    skipped = [Skipped("", f"channels cannot be followed through {kinds}; remove them before that")]
    skipped += [Skipped(path, PACKED.format(kind)) for path, kind in packed.items()]
    return remove_channels.make_plan(workload, settings, (), skipped)


def _how_much(settings: remove_channels.RemoveChannels) -> str:
    return f"macs={settings.macs}" if settings.ratio is None else f"ratio={settings.ratio}"


# ---------------------------------------------------------------- groups of channels


def group_of(family: Family, modules: Mapping[str, Any]) -> remove_channels.ChannelGroup:
    """Return a family of channels with the layers that make them."""
    weights = [place for place in family.producers if family.rank(place) > 1]
    layers = tuple(dict.fromkeys(map(remove_channels.layer_of, (*weights, *family.producers))))
    kind = "channels"
    for path in layers:
        parent, _, name = path.rpartition(".")
        if name == "q_proj" and isinstance(modules.get(parent), MultiHeadAttention):
            layers, kind = (parent, *layers), "heads"
            break
    places = {place: [unit[place] for unit in family.units] for place in family.places}
    return remove_channels.ChannelGroup(layers, kind, places, family.consumers)


def _keep_heads_alike(
    groups: Sequence[remove_channels.ChannelGroup], modules: Mapping[str, Any]
) -> None:
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
    """Return why no channel can go, for each layer with weights where that is so."""
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
    groups: list[remove_channels.ChannelGroup],
    modules: Mapping[str, Any],
    settings: remove_channels.RemoveChannels,
) -> dict[int, list[int]]:
    """Choose units without which the model still computes what it should.

    A trace cannot see sizes or numbers that are written down in the code of a model. Groups that
    need them get a reason, and the others are chosen again.
    """
    _keep_heads_alike(groups, modules)
    _give_reasons(workload, [(each, each.weakest(1)) for each in groups if not each.reason])
    while True:
        _keep_heads_alike(groups, modules)
        rest = [each for each in groups if not each.reason]
        chosen = remove_channels.chosen_units(workload, rest, settings)
        _give_reasons(workload, [(each, chosen[id(each)]) for each in rest])
        if not any(each.reason for each in rest):
            return chosen


def _give_reasons(workload: Workload, choice: remove_channels.Choice) -> None:
    """Set the reason of groups that cannot lose these units, alone or together with others."""
    choice = [(group, units) for group, units in choice if units and len(units) < group.size]
    calls = calls_of(workload)[:1]

    def why(part: remove_channels.Choice) -> str:
        return remove_channels.why_broken(workload.model, calls, part)

    if not why(choice):
        return
    for group, units in choice:
        group.reason = why([(group, units)])
    sound: list[tuple[remove_channels.ChannelGroup, Sequence[int]]] = []
    for group, units in choice:
        if not group.reason and why([*sound, (group, units)]):
            names = ", ".join(each.layers[0] for each, _ in sound)
            group.reason = f"the model does not compute without channels of it and of {names}"
        if not group.reason:
            sound.append((group, units))
