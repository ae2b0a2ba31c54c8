"""SparseLayers: the transform that computes without the zeros of a pruned model, where it pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import own_tensors
from tinytorch.core.layers import Linear
from tinytorch.core.spatial import Conv2d
from tinytorch.errors import SettingError
from tinytorch.perf.compression.crossover import Crossover, measure_crossover, merge_doubts
from tinytorch.perf.compression.sparse_linear import SparseLinear, sparse_bytes
from tinytorch.perf.compression.weight_layers import (
    WeightLayer,
    WeightLayers,
    carry_out,
    find_weight_layers,
)
from tinytorch.workloads.kept_layers import checked_patterns, idle_patterns
from tinytorch.workloads.observing import see_calibration, switch_to_eval
from tinytorch.workloads.plan import Gain, Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload, check_workload

__all__ = ["GOALS", "SparseLayers"]

NAME = "SparseLayers"
GOALS = ("latency", "memory")
NO_CONVOLUTION = "there is no sparse kernel for convolutions; RemoveChannels makes them smaller"
NO_PROFILE = (
    "each step says what its layer gains; for the model it depends on their share of its time, "
    "which plan(workload, profile) reads from a profile"
)
NO_TORCH = (
    "PyTorch has sparse tensors of its own: on a CPU at 90% sparsity we measured "
    "weight.to_sparse_csr() @ x.T to be slower than a dense layer of 784 x 128, and about twice as "
    "fast as one of 1024 x 1024 with 16 rows or more"
)


@dataclass(frozen=True)
class SparseLayers:
    """Hold and multiply only the weights that are not zero, in linear layers.

    goal="latency": where it is measured to be faster, at the layer's sparsity and with the rows
    that it gets from the example inputs (:func:`measure_crossover`); goal="memory": where it holds
    fewer bytes. keep: patterns of layers that stay. The result is for inference: sparse layers let
    no gradients through, so its tensors need none.
    """

    goal: str = "latency"
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise SettingError(f"unknown goal {self.goal!r}; there are {', '.join(GOALS)}")
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Look at each layer's zeros, and measure whether they pay. A copy of it is called."""
        check_workload(workload)
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            return self._empty((Skipped("", NO_TORCH),))
        layers = find_weight_layers(workload, self.keep, verb="sparse")
        for each in layers.found.values():
            each.reason = each.reason or _why_not(each, layers)
        doubts: list[str] = []
        layers.choose(
            _deciding_by_time(workload, layers, doubts)
            if self.goal == "latency"
            else _decide_by_bytes
        )
        notes = (*idle_patterns(self.keep, layers.found, change="sparse"), *merge_doubts(doubts))
        if not layers.steps:
            return self._empty(_skipped(layers), notes)
        speedup = None if profile is None else _speedup(layers, profile)
        return Plan(
            NAME,
            self.to_dict(),
            layers.steps,
            _skipped(layers),
            speedup=speedup,
            shrinkage=layers.shrinkage,
            not_predicted=_why_no_speedup(self.goal, profile) if speedup is None else {},
            notes=notes,
        )

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model in which the layers of the plan are sparse."""
        plan.check_made_by(NAME, self.to_dict())
        model = carry_out(workload, plan, _build)
        if plan.is_empty:
            return model
        for module in adapter_for(model, workload.arguments).modules(model).values():
            for _, tensor in own_tensors(module):
                tensor.requires_grad, tensor.grad = False, None  # sparse layers let none through
        return model

    def _empty(self, skipped: tuple[Skipped, ...], notes: tuple[str, ...] = ()) -> Plan:
        return Plan(NAME, self.to_dict(), (), skipped, notes=notes)


def _build(layer: Any, settings: Mapping[str, Any]) -> SparseLinear:
    kept = int(np.count_nonzero(layer.weight.data))
    if kept != settings["weights"]:
        raise SettingError(
            f"{layer!r} has {kept:,} weights that are not zero, and had {settings['weights']:,} "
            "when the plan was made; make a new one"
        )
    return SparseLinear.of(layer)


# ---------------------------------------------------------------- layer by layer


def _why_not(each: WeightLayer, layers: WeightLayers) -> str:
    """Say why a layer cannot be sparse, whatever the goal."""
    if type(each.layer) is Conv2d:
        return NO_CONVOLUTION
    weight = each.weight
    if weight.dtype != np.float32:
        return f"its weight holds {weight.dtype}, and the sparse kernel takes float32"
    if weight.all():
        return "its weight has no zeros; Prune makes some"
    own = {id(tensor) for _, tensor in own_tensors(each.layer)}
    for path, module in layers.modules.items():
        if module is not each.layer and own & {id(tensor) for _, tensor in own_tensors(module)}:
            return f"it shares its weight or bias with {path!r}, so that it would be held twice"
    return ""


def _decide_by_bytes(each: WeightLayer) -> None:
    weight, after = each.weight, sparse_bytes(each.weight)
    if after >= weight.nbytes:
        each.reason = (
            f"at {_sparsity(each):.1%} sparsity it would hold {after:,} bytes in the place of "
            f"{weight.nbytes:,}: a weight that is not zero takes its index, too"
        )
        return
    why = f"its weight holds {after:,} bytes in the place of {weight.nbytes:,}"
    _choose(each, why, {})


def _deciding_by_time(
    workload: Workload, layers: WeightLayers, doubts: list[str]
) -> Callable[[WeightLayer], None]:
    """Give the function that decides by time, after seeing how many rows each layer gets."""
    rows = _rows_seen(workload, layers)
    paths = {id(each.layer): path for path, each in layers.found.items()}

    def decide(each: WeightLayer) -> None:
        path = paths[id(each.layer)]
        if path not in rows:
            each.reason = "without example inputs nobody knows how many rows it gets"
            return
        inputs, outputs = each.weight.shape
        crossover = measure_crossover(inputs, outputs, rows[path])
        doubts.extend(crossover.doubts)
        _decide_by_time(each, crossover)

    return decide


def _decide_by_time(each: WeightLayer, crossover: Crossover) -> None:
    sparsity = _sparsity(each)
    if crossover.high is None or sparsity < crossover.high:
        seen = f"this layer has {sparsity:.1%}"
        if crossover.low is not None and sparsity >= crossover.low:
            seen += ", where no difference is shown"
        elif crossover.low == crossover.points[0].sparsity:
            seen += ", where it was not tried"
        each.reason = f"{crossover.note}; {seen}"
        return
    ratio = crossover.ratio_at(sparsity)
    why = f"{1 / ratio.value:.1f} times as fast at {sparsity:.1%} sparsity; {crossover.note}"
    measured = {"rows": crossover.rows, "crossover": crossover.sparsity, **_as_gains(ratio)}
    _choose(each, why, measured)


def _choose(each: WeightLayer, why: str, measured: Mapping[str, Any]) -> None:
    kept = int(np.count_nonzero(each.weight))
    each.what = f"sparse: {kept:,} of {each.weight.size:,} weights"
    each.why = why
    each.settings = {"weights": kept, "sparsity": _sparsity(each), **measured}
    each.new_bytes = sparse_bytes(each.weight)


def _as_gains(ratio: Any) -> dict[str, float]:
    return {
        "speedup": 1 / ratio.value,
        "speedup_low": 1 / ratio.high,
        "speedup_high": 1 / ratio.low,
    }


def _sparsity(each: WeightLayer) -> float:
    return 1 - np.count_nonzero(each.weight) / each.weight.size


def _skipped(layers: WeightLayers) -> tuple[Skipped, ...]:
    """Give all that stays; layers that are sparse already hold floats, but that is no news."""
    return tuple(
        Skipped(each.layer, "it is sparse already")
        if isinstance(layers.modules.get(each.layer), SparseLinear)
        else each
        for each in layers.skipped
    )


# ---------------------------------------------------------------- seeing and predicting


def _rows_seen(workload: Workload, layers: WeightLayers) -> dict[str, int]:
    """Give the most rows that each layer gets in a call on the example inputs, by its path."""
    paths = [path for path, each in layers.found.items() if not each.reason]
    if not workload.arguments or not paths:
        return {}
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = dict(adapter.modules(twin))
    switch_to_eval(modules)
    rows: dict[str, int] = {}

    def see(path: str, x: Any) -> None:
        rows[path] = max(rows.get(path, 1), math.prod(x.shape[:-1]))

    inputs = replace(workload, calibration=(workload.inputs,))
    see_calibration(twin, {path: modules[path] for path in paths}, inputs, see)
    return rows


def _speedup(layers: WeightLayers, profile: Profile) -> Gain | None:
    """Predict by Amdahl's law, from the share of each layer; None where it did not run."""
    by_path = {layer.path: layer for layer in profile.layers if layer.kind == Linear.__name__}
    chosen = [step for step in layers.steps if "speedup" in step.settings]
    if not chosen or not all(step.layer in by_path for step in chosen):
        return None
    left = {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0}
    total = 0.0
    for step in chosen:
        share = profile.share(by_path[step.layer])
        total += share
        for name in left:
            left[name] -= share * (1 - 1 / step.settings[name])
    value, low, high = (1 / left[name] for name in ("speedup", "speedup_low", "speedup_high"))
    basis = f"Amdahl's law: these layers take {total:.0%} of a call in the profile"
    return Gain(value, low, high, basis)


def _why_no_speedup(goal: str, profile: Profile | None) -> dict[str, str]:
    if goal == "memory":
        return {"speedup": 'only bytes were counted; goal="latency" measures the time of layers'}
    if profile is None:
        return {"speedup": NO_PROFILE}
    return {"speedup": "the profile is of another model: not all of these layers ran in it"}
