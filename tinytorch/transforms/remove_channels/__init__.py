"""RemoveChannels: the transform that makes a model smaller by taking channels out of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.errors import SettingError, first_line
from tinytorch.models.adapter import adapter_for, namespace_of
from tinytorch.models.inputs import ModelCall
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step, Transform, Variant, check_choice
from tinytorch.transforms.support import observing
from tinytorch.transforms.support.channels import Place
from tinytorch.transforms.support.trimming import Removal, joined, trim, zero_out
from tinytorch.transforms.support.weights import count_macs, macs_note

# ---------------------------------------------------------------- groups of channels that can only
# go together with everything that belongs to them


@dataclass
class ChannelGroup:
    """Channels, or heads, of which each can go together with everything that belongs to it.

    `places` has for each unit its indices along an axis of a tensor. What the `consumers` hold
    multiplies the channels: zeros there have the same effect as removing. `layers` make the
    channels. `sizes` are numbers that layers keep beside their tensors: how many they count per
    unit.
    """

    layers: tuple[str, ...]
    kind: str
    places: dict[Place, Any]
    consumers: frozenset[Place] = frozenset()
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    reason: str = ""
    """Why they all stay, if so."""
    order: Any = None
    """Units from the least important on."""

    @property
    def size(self) -> int:
        return len(next(iter(self.places.values()))) if self.places else 0

    @property
    def width(self) -> int:
        """How many channels of the first layer a unit has."""
        return len(next(iter(self.places.values()))[0])

    def removal(self, units: Iterable[int], *, consumers_only: bool = False) -> Removal:
        chosen = sorted(units)
        return {
            place: tuple(sorted({int(index) for unit in chosen for index in indices[unit]}))
            for place, indices in self.places.items()
            if chosen and (place in self.consumers or not consumers_only)
        }

    def sizes_without(self, count: int) -> dict[str, dict[str, int]]:
        """Return the sizes of layers after `count` units are removed."""
        return {
            path: {name: (self.size - count) * each for name, each in values.items()}
            for path, values in self.sizes.items()
        }

    def weakest(self, count: int) -> list[int]:
        return [int(unit) for unit in self.order[:count]]

    def removed_count(self, ratio: float, round_to: int) -> int:
        """Return how many units go at a ratio; at least one stays."""
        kept = self.size - math.floor(ratio * self.size + 1e-9)
        if self.kind == "channels":
            step = round_to // math.gcd(round_to, self.width)
            kept = math.ceil(kept / step) * step
        return self.size - min(self.size, max(1, kept))


Choice = Sequence[tuple[ChannelGroup, Sequence[int]]]
"""Groups with the units that go."""


def layer_of(place: Place) -> str:
    return place.tensor.rpartition(".")[0]


def remove_units(model: Any, choice: Choice) -> None:
    """Remove units from a model, in place."""
    removal = joined(group.removal(units) for group, units in choice)
    if adapter_for(model).name == "pytorch":
        from tinytorch.transforms.remove_channels.torch import trim_torch

        trim_torch(model, removal, [group.sizes_without(len(units)) for group, units in choice])
    else:
        trim(model, removal)


LARGEST_ERROR = 1e-3
"""Sums in another order differ by some 1e-6 per layer; channels that are missed, by far more."""


def why_broken(
    model: Any, calls: Iterable[ModelCall], choice: Choice, limit: float = LARGEST_ERROR
) -> str:
    """Remove units, and compare with weights of zero for what they feed.

    A channel that was removed must do as little as one whose weights in the layers after it are
    zero. A graph that was traced cannot promise that: it does not see sizes that are written down
    in the code of a model, nor operations that mix channels.
    """
    adapter = adapter_for(model)
    zeroed, trimmed = adapter.clone(model), adapter.clone(model)
    removal = joined(group.removal(units, consumers_only=True) for group, units in choice)
    if adapter.name == "pytorch":
        from tinytorch.transforms.support.weights_torch import zero_out as zero_out_torch

        zero_out_torch(zeroed, removal)
    else:
        zero_out(zeroed, removal)
    remove_units(trimmed, choice)
    for call in calls:
        expected = observing.outputs_of(zeroed, call)
        try:
            found = observing.outputs_of(trimmed, call)
        except SettingError as error:
            said = first_line(error.__cause__ or error)
            return f"the model does not compute without some of its channels: {said}"
        change, reason = observing.relative_change(*_without_equal_infinities(expected, found))
        if reason:
            return f"{reason} without some of its channels"
        if change > limit:
            return "the model computes something else without some of its channels"
    return ""


def _without_equal_infinities(
    expected: Sequence[Any], found: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Put zeros where both outputs are the same and not finite, as behind a mask."""
    if [each.shape for each in expected] != [each.shape for each in found]:
        return expected, found
    pairs = [
        (np.where(same, 0, one), np.where(same, 0, other))
        for one, other in zip(expected, found, strict=True)
        for same in [~np.isfinite(one) & ((one == other) | (np.isnan(one) & np.isnan(other)))]
    ]
    return [one for one, _ in pairs], [other for _, other in pairs]


# ---------------------------------------------------------------- how much a channel matters: by
# its weights, or by what it brings on calibration data

IMPORTANCES = ("magnitude", "activation")

Energies = Mapping[str, npt.NDArray[np.float64]]
"""By the name of a weight: the sum of squares of each of its inputs on the calibration data."""

NO_DATA = (
    "importance='activation' needs calibration data: give the workload `calibration`, some typical "
    "inputs from the training data; importance='magnitude' needs none"
)


def input_energies(workload: Workload, groups: Iterable[ChannelGroup]) -> Energies:
    """Run the calibration data through a copy of a model; sum up squares of inputs of consumers."""
    if not workload.calibration:
        raise SettingError(NO_DATA)
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    names = {id(tensor): name for name, tensor in adapter.named_tensors(twin).items()}
    consumers = {place.tensor for group in groups for place in group.consumers}
    weights = {
        path: name
        for path, layer in adapter.modules(twin).items()
        for _, tensor in adapter.own_tensors(layer)
        if (name := names[id(tensor)]) in consumers
    }
    layers = {path: adapter.modules(twin)[path] for path in weights}
    energies: dict[str, npt.NDArray[np.float64]] = {}

    def see(path: str, x: Any) -> None:
        values = adapter.values(x)
        xp = namespace_of(values)
        axis = -1 - len(getattr(layers[path], "kernel_size", ()))
        rows = xp.moveaxis(xp.asarray(values, dtype=xp.float64), axis, -1)
        (energy,) = adapter.arrays(xp.square(rows.reshape(-1, rows.shape[-1])).sum(axis=0))
        if not np.isfinite(energy).all():
            raise SettingError("it holds NaN or infinity")
        energies[weights[path]] = energies.get(weights[path], 0.0) + energy

    observing.see_calibration(twin, layers, workload, see)
    return energies


def unit_importance(
    group: ChannelGroup, tensors: Mapping[str, Any], energies: Energies | None = None
) -> npt.NDArray[np.float64]:
    """Return a number for each unit of a group: how much would be missing without it.

    By magnitude it is the norm of all weights that go with the unit. With energies, it is the norm
    of what the unit adds to the sums of those layers that take it in, on the calibration data; a
    layer whose inputs were not seen counts by its weights. `tensors` are arrays.
    """
    total = np.zeros(group.size)
    for place, indices in group.places.items():
        weight = tensors[place.tensor]
        if weight.ndim < 2 or (energies is not None and place not in group.consumers):
            continue
        squares = _squares(weight, place.axis)
        energy = None if energies is None else energies.get(place.tensor)
        if energy is not None and len(energy) % len(squares) == 0:
            # of a convolution in groups: that of all groups
            squares = squares * energy.reshape(-1, len(squares)).sum(axis=0)
        total += [squares[list(unit)].sum() for unit in indices]
    return np.sqrt(total)


def _squares(weight: Any, axis: int) -> npt.NDArray[np.float64]:
    """Sum up the squares of a weight at each index of an axis."""
    xp = namespace_of(weight)
    rows = xp.moveaxis(xp.asarray(weight, dtype=xp.float64), axis, 0).reshape(
        weight.shape[axis], -1
    )
    return np.array(xp.square(rows).sum(axis=1).tolist())


def put_in_order(
    workload: Workload, groups: Sequence[ChannelGroup], settings: RemoveChannels
) -> None:
    """Sort the units of each group by how much would be missing without them."""
    is_seen = settings.importance == "activation"
    energies = input_energies(workload, groups) if is_seen else None
    adapter = adapter_for(workload.model, workload.arguments)
    named = adapter.named_tensors(workload.model)
    tensors = {name: adapter.values(tensor) for name, tensor in named.items()}
    for group in groups:
        group.order = np.argsort(unit_importance(group, tensors, energies), kind="stable")


# ---------------------------------------------------------------- how many of them go


def chosen_units(
    workload: Workload, groups: Sequence[ChannelGroup], settings: RemoveChannels
) -> dict[int, list[int]]:
    """Return the units that go, by the `id` of their group."""

    def at(ratio: float) -> dict[int, list[int]]:
        return {id(g): g.weakest(g.removed_count(ratio, settings.round_to)) for g in groups}

    if settings.ratio is not None:
        return at(settings.ratio)
    assert settings.macs is not None
    allowed = settings.macs * count_macs(workload.model, workload)
    ratios = sorted({count / group.size for group in groups for count in range(group.size)} | {0.0})
    low, high = 0, len(ratios) - 1  # the least ratio that is enough lies in between
    least = _macs_without(workload, groups, at(ratios[high]))
    if least > allowed:
        raise SettingError(
            f"macs={settings.macs} cannot be reached: with one channel left of each group, "
            f"{least / allowed * settings.macs:.1%} of the multiply-accumulates remain"
        )
    while low < high:
        middle = (low + high) // 2
        if _macs_without(workload, groups, at(ratios[middle])) <= allowed:
            high = middle
        else:
            low = middle + 1
    return at(ratios[high])


def _macs_without(
    workload: Workload, groups: Iterable[ChannelGroup], chosen: Mapping[int, list[int]]
) -> int:
    twin = adapter_for(workload.model, workload.arguments).clone(workload.model)
    remove_units(twin, [(group, chosen[id(group)]) for group in groups])
    return count_macs(twin, workload)


def check_finite(model: Any) -> None:
    """Raise if a weight holds what has no importance."""
    adapter = adapter_for(model)
    for name, tensor in adapter.named_tensors(model).items():
        values = adapter.values(tensor)
        is_readable = not adapter.why_unreadable(tensor)
        if is_readable and not namespace_of(values).isfinite(values).all():
            raise SettingError(
                f"{name!r} holds NaN or infinity, so the importance of channels is not known"
            )


# ---------------------------------------------------------------- the plan, and carrying it out

NO_SPEEDUP = (
    "fewer multiply-accumulates are not as much less time: that depends on the kernels and on what "
    "else a call does; compare() measures it"
)


def make_plan(
    workload: Workload,
    settings: RemoveChannels,
    steps: tuple[Step, ...],
    skipped: Iterable[Skipped],
    notes: tuple[str, ...] = (),
) -> Plan:
    """Carry the steps out on a copy, and count what that saves."""
    gain = None
    if steps:
        adapter = adapter_for(workload.model, workload.arguments)
        twin = adapter.clone(workload.model)
        before, held = map(adapter.held_bytes, (workload.model, twin))
        macs = count_macs(twin, workload)
        config_note = carry_out(twin, steps)
        after = adapter.held_bytes(twin)
        gain = Gain.of_bytes(before, before + after - held, "counted on a copy")
        counted = macs_note(macs, count_macs(twin, workload))
        notes = tuple(note for note in (counted, config_note, *notes) if note)
    return settings.planned(
        steps,
        tuple(skipped),
        shrinkage=gain,
        not_predicted={"speedup": NO_SPEEDUP},
        notes=notes,
    )


def step_of(
    workload: Workload, group: ChannelGroup, units: Sequence[int], settings: RemoveChannels
) -> Step:
    """Return the step that removes units of a group."""
    tensors = adapter_for(workload.model).named_tensors(workload.model)
    removed: dict[str, dict[int, tuple[int, ...]]] = {}
    lengths: dict[str, dict[int, int]] = {}
    for place, indices in group.removal(units).items():
        removed.setdefault(place.tensor, {})[place.axis] = indices
        lengths.setdefault(place.tensor, {})[place.axis] = tensors[place.tensor].shape[place.axis]
    layer = group.layers[0]
    by = "weights" if settings.importance == "magnitude" else "share in the layers after it"
    why = f"those with the smallest {by}"
    others = [path for path in group.layers[1:] if not path.startswith(f"{layer}.")]
    if others:
        why += f"; with them those of {', '.join(others)}"
    why += f"; fewer go into {', '.join(sorted({layer_of(place) for place in group.consumers}))}"
    return Step(
        layer,
        f"remove {len(units)} of {group.size} {group.kind}",
        why,
        {
            "removed": removed,
            "lengths": lengths,
            "channels": group.size,
            "gone": len(units),
            "kind": group.kind,
            "layers": group.layers,
            "sizes": group.sizes_without(len(units)),
        },
    )


def carry_out(model: Any, steps: Sequence[Step]) -> str:
    """Remove what the steps say, in place, and return a note about the config, if it has one."""
    removal = joined(_by_place(step, "removed") for step in steps)
    if adapter_for(model).name == "pytorch":
        from tinytorch.transforms.remove_channels.torch import config_note, trim_torch

        trim_torch(model, removal, [step.settings["sizes"] for step in steps])
        return config_note(model, steps)
    trim(model, removal, {k: n for step in steps for k, n in _by_place(step, "lengths").items()})
    return ""


def _by_place(step: Step, what: str) -> dict[Place, Any]:
    """Return what the settings of a step say about axes of weights."""
    return {
        Place(tensor, int(axis)): each
        for tensor, axes in step.settings.get(what, {}).items()
        for axis, each in axes.items()
    }


# ---------------------------------------------------------------- RemoveChannels: the transform
# that makes a model smaller by taking channels out of it


@dataclass(frozen=True)
class RemoveChannels(Transform):
    """Remove channels of convolutions, neurons of linear layers and heads of attention.

    With each channel goes everything that belongs to it: its batch norm, the inputs of the layers
    after it, its twins in residual sums. What the model takes in and gives out stays. The result is
    an ordinary model of the same classes.

    ratio: the share of the channels that goes, in each group of layers that shrink together.
    macs: instead, the share of the multiply-accumulates that may remain: the least ratio that gets
    there is found by counting. importance: `magnitude` (the norm of the weights of a channel) or
    `activation` (what it adds to the layers after it, on calibration data). keep: patterns of
    layers whose outputs all stay. round_to: keep multiples of this many channels, for kernels that
    work on blocks of them; it does not apply to heads.
    """

    variants = (
        Variant(
            "fewer-channels",
            "structured pruning of channels to 50% of the multiply-accumulates",
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
        check_choice("importance", self.importance, IMPORTANCES)
        try:
            is_whole = operator.index(self.round_to) >= 1
        except TypeError:
            is_whole = False
        if not is_whole:
            raise SettingError(f"round_to is a number of channels from 1 on, got {self.round_to!r}")
        object.__setattr__(self, "keep", observing.checked_patterns(self.keep))

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        """Return the plan: which channels go, and which layers keep theirs. A copy is called."""
        if not workload.arguments:
            raise SettingError(
                f"channels are followed through a call of the model, but {workload.name} has no "
                "inputs; give the workload one example"
            )
        observing.check_no_cache(adapter_for(workload.model).modules(workload.model))
        check_finite(workload.model)
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.transforms.remove_channels.torch import plan_torch

            return plan_torch(workload, self)
        from tinytorch.transforms.remove_channels.core import plan_core

        return plan_core(workload, self)

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        """Make a model smaller."""
        observing.check_no_cache(adapter_for(model, workload.arguments).modules(model))
        carry_out(model, plan.steps)
        return model
