"""RemoveChannels: the transform that makes a model smaller by taking channels out of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.kernels import Array
from tinytorch.core.layers import Linear
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.models.adapter import Adapter, adapter_for, leaves, plain_arrays
from tinytorch.models.core import named_tensors, own_tensors
from tinytorch.models.workload import Workload, call_model, check_workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step, Transform, Variant
from tinytorch.transforms.support.channels import ChannelGraph, Family, Place, Unit, trace_channels
from tinytorch.transforms.support.observing import (
    check_no_cache,
    checked_patterns,
    idle_patterns,
    see_calibration,
    why_kept,
)
from tinytorch.transforms.support.trimming import Removal, joined, lengths_of, trim, zero_out
from tinytorch.transforms.support.weights import count_macs, macs_note

__all__ = [
    "IMPORTANCES",
    "NAME",
    "RemoveChannels",
    "apply_removal",
    "input_energies",
    "plan_removal",
    "unit_importance",
    "why_broken",
]


# ---------------------------------------------------------------- how much a channel matters: by
# its weights, or by what it brings on calibration data

IMPORTANCES = ("magnitude", "activation")

Energies = Mapping[str, npt.NDArray[np.float64]]
"""By the name of a weight: the sum of squares of each of its inputs on the calibration data."""

NO_DATA = (
    "importance='activation' needs calibration data: give the workload `calibration`, some typical "
    "inputs from the training data; importance='magnitude' needs none"
)


def input_energies(workload: Workload) -> Energies:
    """Run the calibration data through a copy of a model and sum up the squares of inputs."""
    if not workload.calibration:
        raise SettingError(NO_DATA)
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = adapter.modules(twin)
    names = {id(tensor): name for name, tensor in named_tensors(twin).items()}
    layers = {path: layer for path, layer in modules.items() if isinstance(layer, (Linear, Conv2d))}
    energies: dict[str, npt.NDArray[np.float64]] = {}

    def see(path: str, x: Any) -> None:
        layer = layers[path]
        axis = -1 if isinstance(layer, Linear) else -3
        if isinstance(x, Tensor) and id(layer.weight) in names and x.data.size:
            rows = np.moveaxis(x.data, axis, -1).reshape(-1, x.shape[axis]).astype(np.float64)
            if not np.isfinite(rows).all():
                raise SettingError("it holds NaN or infinity")
            name = names[id(layer.weight)]
            energies[name] = energies.get(name, 0.0) + (rows**2).sum(axis=0)

    see_calibration(twin, layers, workload, see)
    return energies


def unit_importance(
    family: Family, tensors: Mapping[str, Tensor], energies: Energies | None = None
) -> npt.NDArray[np.float64]:
    """Give a number for each unit of a family: how much would be missing without it.

    By magnitude it is the norm of all weights that go with the unit. With energies, it is the norm
    of what the unit adds to the sums of those layers that take it in, on the calibration data; a
    layer whose inputs were not seen counts by its weights.
    """
    places = family.places
    if energies is not None:
        places = tuple(place for place in places if place in family.consumers)
    parts = {
        place: _squares(place, tensors[place.tensor].data)
        for place in places
        if tensors[place.tensor].ndim > 1
    }
    for place in parts:
        energy = None if energies is None else energies.get(place.tensor)
        if energy is not None and len(energy) == len(parts[place]):
            parts[place] = parts[place] * energy
    totals = [
        sum(parts[place][list(unit[place])].sum() for place in parts) for unit in family.units
    ]
    return np.sqrt(np.array(totals, np.float64))


def _squares(place: Place, weight: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Sum up the squares of a weight at each index of an axis."""
    others = tuple(axis for axis in range(weight.ndim) if axis != place.axis)
    total: npt.NDArray[np.float64] = (weight.astype(np.float64) ** 2).sum(axis=others)
    return total


# ---------------------------------------------------------------- does a model without some of its
# channels compute what it should? Tried on copies

LARGEST_ERROR = 1e-3
"""Sums in another order differ by some 1e-6 per layer; channels that are missed, by far more."""
SMALLEST_ERROR = 1e-6


def why_broken(workload: Workload, choice: Sequence[tuple[Family, Sequence[Unit]]]) -> str:
    """Remove units, and compare with weights of zero for what they feed."""
    feeds = [
        {place: unit[place] for place in family.consumers}
        for family, units in choice
        for unit in units
    ]
    adapter = adapter_for(workload.model, workload.arguments)
    zeroed, trimmed = adapter.clone(workload.model), adapter.clone(workload.model)
    zero_out(zeroed, joined(feeds))
    trim(trimmed, joined(unit for _, units in choice for unit in units))
    expected = _outputs(adapter, zeroed, workload)
    try:
        found = _outputs(adapter, trimmed, workload)
    except Exception as error:  # the code of a model raises whatever it likes
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        return f"the model does not compute without channels of it: {first_line}"
    if [each.shape for each in found] != [each.shape for each in expected]:
        return "the outputs of the model have another shape without channels of it"
    if not all(map(_are_alike, found, expected)):
        return "the model computes something else without channels of it"
    return ""


def _are_alike(found: Array, expected: Array) -> bool:
    """Tell whether outputs differ by rounding alone; what is not finite must be the same."""
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return False
    one, other = found[finite].astype(np.float64), expected[finite].astype(np.float64)
    error = float(np.linalg.norm(one - other))
    return error <= LARGEST_ERROR * float(np.linalg.norm(other)) + SMALLEST_ERROR


def _outputs(adapter: Adapter, model: Any, workload: Workload) -> list[Array]:
    adapter.switch_to_eval(model)
    with adapter.plain_calls(model):
        result = call_model(model, *workload.inputs, **workload.keywords)
    return [array for leaf in leaves(result) for array in plain_arrays(leaf)]


# ---------------------------------------------------------------- which channels of a TinyTorch
# model are removed, and why others stay

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
        gain = Gain.of_bytes(before, after, "counted on a copy")
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


# ---------------------------------------------------------------- RemoveChannels: the transform
# that makes a model smaller by taking channels out of it


@dataclass(frozen=True)
class RemoveChannels(Transform):
    """Remove channels of convolutions, neurons of linear layers and heads of attention, for real.

    With each channel goes everything that belongs to it: its batch norm, the inputs of the layers
    after it, its twins in residual sums. What the model takes in and gives out stays. The result is
    an ordinary model of the same classes.

    ratio: the share of the channels that goes, in each group of layers that shrink together.
    macs: instead, the share of the multiply-accumulates that may remain: the least ratio that gets
    there is found by counting. importance: `magnitude` (the norm of the weights of a channel) or
    `activation` (what it adds to the layers after it, on calibration data). keep: patterns of
    layers whose outputs all stay. round_to: keep multiples of so many channels, for kernels that
    work on blocks of them; it does not apply to heads.
    """

    variants = (
        Variant(
            "fewer-channels",
            "remove the least important channels, until half of the multiply-accumulates are left",
            {"macs": 0.5},
        ),
    )
    role, place, order = "structure", 1, 10
    may_compete, effect = True, "removes channels with their weights"

    ratio: float | None = None
    macs: float | None = None
    importance: str = "magnitude"
    keep: tuple[str, ...] = ()
    round_to: int = 1

    def __post_init__(self) -> None:
        if (self.ratio is None) is (self.macs is None):
            raise SettingError(
                "say how much goes: either ratio=0.5, half of the channels, or macs=0.5, until "
                "half of the multiply-accumulates remain"
            )
        for name, share in (("ratio", self.ratio), ("macs", self.macs)):
            if share is not None and not isinstance(share, Real):
                raise SettingError(f"{name} is a share such as 0.5, got {share!r}")
        if self.ratio is not None and not 0 <= self.ratio < 1:
            raise SettingError(
                f"ratio is the share of the channels that goes, from 0 to below 1, got {self.ratio}"
            )
        if self.macs is not None and not 0 < self.macs <= 1:
            raise SettingError(
                f"macs is the share of the multiply-accumulates that may remain, above 0 and at "
                f"most 1, got {self.macs}"
            )
        if self.importance not in IMPORTANCES:
            raise SettingError(
                f"unknown importance {self.importance!r}; there are {', '.join(IMPORTANCES)}"
            )
        try:
            is_whole = operator.index(self.round_to) >= 1
        except TypeError:
            is_whole = False
        if not is_whole:
            raise SettingError(f"round_to is a number of channels from 1 on, got {self.round_to!r}")
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Say which channels go, and which layers keep theirs. A copy of the model is called."""
        check_workload(workload)
        if not workload.arguments:
            raise SettingError(
                f"channels are followed through a call of the model, but {workload.name} has no "
                "inputs; give the workload one example"
            )
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.transforms.remove_channels.torch import plan_torch

            return plan_torch(workload, self)
        return plan_removal(workload, self)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a smaller copy of the model."""
        plan.check_made_by(NAME, self.to_dict())
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.transforms.remove_channels.torch import apply_torch

            return apply_torch(workload, plan, self)
        return apply_removal(workload, plan)
