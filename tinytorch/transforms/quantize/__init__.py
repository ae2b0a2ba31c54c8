"""Quantize: the transform that holds weights, and computes, in eight or four bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytorch.core.embeddings import PositionalEmbedding
from tinytorch.core.kernels import Array
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError, SettingError
from tinytorch.formats.affine import affine_parameters
from tinytorch.formats.ranges import METHODS, RangeObserver, RangeStatistics, choose_range
from tinytorch.models.adapter import adapter_for, replace_layers
from tinytorch.models.core import own_tensors
from tinytorch.models.workload import Batches, Workload
from tinytorch.profiling.profile import Profile
from tinytorch.showing import Shown
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step, Transform, Variant, check_choice
from tinytorch.transforms.quantize.layers import (
    CATALOG,
    MODES,
    PackedWeights,
    QuantizedLayer,
    check_group_size,
    default_group,
    extra_bytes,
    held_bytes,
    why_not_packed,
)
from tinytorch.transforms.quantize.sensitivity import within_error
from tinytorch.transforms.support.observing import (
    called_layers,
    checked_patterns,
    idle_patterns,
    see_calibration,
    why_kept,
)

# ---------------------------------------------------------------- Quantize: the transform that
# holds weights, and computes, in eight or four bits


@dataclass(frozen=True)
class Quantize(Transform):
    """Quantize the weights of a model, and where it computes in integers also its activations.

    Linear layers, convolutions, embeddings and tied heads of TinyTorch models of any structure;
    PyTorch models by torch's and torchao's own quantizers.

    mode: `weight_only` (inputs stay floats), `dynamic` (inputs are quantized by what they are) or
    `static` (by what calibration data showed). bits: 8, or 4 for weights alone, then with a scale
    for each `group_size` inputs (None: 32, or fewer where 32 does not divide). ranges: how static
    ranges are chosen from the statistics. keep: patterns of layers that stay in floats. max_error:
    the most that outputs may change on the calibration data, relative to their size; layers that
    hurt most stay in floats until it holds.
    """

    variants = (
        Variant(
            "int8-dynamic", "INT8 weights and activations, ranges per call", {"mode": "dynamic"}
        ),
        Variant(
            "int8-static",
            "INT8 weights and activations, with calibrated ranges",
            {"mode": "static"},
            cost="calibration data that represents later inputs",
        ),
        Variant("int8-weights", "INT8 weights, products in floats", {"mode": "weight_only"}),
        Variant(
            "int4-weights", "INT4 weights, one scale per group", {"mode": "weight_only", "bits": 4}
        ),
    )
    role, place, order = "numbers", 4, 100
    risk = "rounding"
    holds_integers = True
    may_compete = True

    mode: str = "dynamic"
    bits: int = 8
    group_size: int | None = None
    ranges: str = "mse"
    keep: tuple[str, ...] = ()
    max_error: float | None = None

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, MODES)
        if self.bits not in (4, 8):
            raise SettingError(f"bits must be 8 or 4, got {self.bits!r}")
        if self.bits == 4 and self.mode != "weight_only":
            raise SettingError(f"bits=4 is for weights: mode='weight_only', not {self.mode!r}")
        if self.bits == 8 and self.group_size is not None:
            raise SettingError("INT8 has a scale for each output, no groups: leave out group_size")
        if not isinstance(self.group_size, int | None):
            raise SettingError(f"group_size is a number of inputs, got {self.group_size!r}")
        if self.group_size is not None:
            check_group_size(self.group_size, self.group_size)
        check_choice("ranges", self.ranges, METHODS)
        object.__setattr__(self, "keep", checked_patterns(self.keep))
        if self.max_error is not None and not self.max_error > 0:
            raise SettingError(f"max_error must be above 0, got {self.max_error}")

    @property
    def precision(self) -> str:
        return f"int{self.bits}"

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        """Find the layers that become what, and those that stay. A copy of the model is called."""
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.transforms.quantize.torch import plan_torch

            plan = plan_torch(workload, self)
        else:
            plan = _plan_layers(workload, self)
        return plan if self.max_error is None else within_error(workload, self, plan)

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        """Replace layers by quantized ones; their float weights are gone."""
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.transforms.quantize.torch import apply_torch

            return apply_torch(model, workload, plan, self)
        return _replace_layers(model, workload, plan)


# ---------------------------------------------------------------- calibration: what the inputs of
# each layer look like on typical data

NO_DATA = (
    "static quantization needs calibration data: give the workload `calibration`, some typical "
    "inputs from the training data; mode='dynamic' needs none"
)


def observe_layers(model: Any, batches: Batches) -> dict[str, RangeStatistics]:
    """Return statistics of the inputs of all layers that can be quantized, on a copy of a model."""
    adapter = adapter_for(model)
    if adapter.name != "core":
        raise SettingError(
            f"statistics are kept for layers of tinytorch, {type(model).__name__} is of "
            f"{adapter.name}, whose quantizers calibrate themselves"
        )
    twin = adapter.clone(model)
    modules = adapter.modules(twin)
    wanted = {
        path: layer
        for path, layer in modules.items()
        if type(layer) in CATALOG and CATALOG[type(layer)].multiplies
    }
    return observe_inputs(twin, wanted, Workload("model", twin, (), calibration=batches))


def observe_inputs(
    model: Any, layers: Mapping[str, Module], workload: Workload
) -> dict[str, RangeStatistics]:
    """Run the calibration data through a model; return statistics of the inputs of these layers.

    Those that were not called are missing. Of layers that look something up, and of those that got
    empty inputs only, nothing was seen: their count is 0.
    """
    if not workload.calibration:
        raise SettingError(NO_DATA)
    observers: dict[str, RangeObserver] = {}

    def see(path: str, x: Any) -> None:
        observer = observers.setdefault(path, RangeObserver())
        if isinstance(x, Tensor) and CATALOG[type(layers[path])].multiplies:
            observer.update(x.data)

    see_calibration(model, layers, workload, see)
    seen = {path: observer.statistics for path, observer in observers.items()}
    multiplied = [seen[path] for path in seen if CATALOG[type(layers[path])].multiplies]
    if multiplied and not any(each.count for each in multiplied):
        raise SettingError(f"the calibration data is empty: no layer got a number. {NO_DATA}")
    return seen


# ---------------------------------------------------------------- which layers of a TinyTorch
# model are quantized, how, and which are not, and why

NO_SPEEDUP = (
    "whether integers are faster depends on the layer's size, the batch and the processor; "
    "compare() measures it"
)


def _plan_layers(workload: Workload, settings: Quantize) -> Plan:
    """Plan layer by layer. A copy of the model is called to observe its layers."""
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = dict(adapter.modules(twin))
    check_not_quantized(modules)
    candidates, skipped = _candidates(modules, settings)
    layers = {path: each.layer for path, each in candidates.items() if not each.reason}
    observed: Mapping[str, RangeStatistics] = {}
    if settings.mode == "static":
        observed = observe_inputs(twin, layers, workload)
        called = set(observed)
    elif workload.arguments:
        called = called_layers(twin, layers, workload)
    else:
        called = set(layers)  # it cannot be called without inputs
    for path, each in candidates.items():
        if path not in called and not each.reason:
            each.reason = "it was not called: its weight may be used in another way"
        if each.settings["mode"] == "static" and path in observed and not each.reason:
            each.reason = _fix_inputs(each.settings, observed[path], settings.ranges)
    _keep_what_shares(candidates, modules)
    _check_groups(candidates, settings)
    steps = tuple(each.step(path) for path, each in candidates.items() if not each.reason)
    if not isinstance(workload.model, Module) and not candidates:
        skipped.append(Skipped("", f"no layer of tinytorch was found in {workload.name}"))
    skipped += [Skipped(path, each.reason) for path, each in candidates.items() if each.reason]
    gain = _shrinkage(modules, [each for each in candidates.values() if not each.reason])
    return settings.planned(
        steps,
        skipped,
        shrinkage=gain,
        not_predicted={"speedup": NO_SPEEDUP},
        notes=idle_patterns(settings.keep, candidates, change="quantized"),
    )


def _replace_layers(twin: Any, workload: Workload, plan: Plan) -> Any:
    """Return a copy with the layers of the plan quantized."""
    adapter = adapter_for(twin, workload.arguments)
    modules = dict(adapter.modules(twin))
    check_not_quantized(modules)
    for step in plan.steps:
        if type(modules.get(step.layer)) not in CATALOG:
            raise SettingError(
                f"the model has no layer {step.layer!r} that can be quantized; make a plan for "
                "this model"
            )
    packed = PackedWeights()
    quantized: dict[int, Any] = {}
    for step in plan.steps:
        layer = modules[step.layer]
        quantized[id(layer)] = CATALOG[type(layer)].build(layer, step.settings, packed)
    model = replace_layers(twin, quantized)
    after = adapter.modules(model)
    for step in plan.steps:
        if not isinstance(after.get(step.layer), QuantizedLayer):
            raise ModelError(f"layer {step.layer!r} could not be replaced where the model holds it")
    for module in after.values():
        for _, tensor in own_tensors(module):
            tensor.requires_grad, tensor.grad = False, None  # whole numbers let none through
    return model


def check_not_quantized(modules: Mapping[str, Any]) -> None:
    """Raise if a model has quantized layers already."""
    done = [path for path, layer in modules.items() if isinstance(layer, QuantizedLayer)]
    if done:
        raise SettingError(
            f"the model is quantized already ({len(done)} layers, such as {done[0]!r}); quantize "
            "the float model that it was made from"
        )


# ---------------------------------------------------------------- layer by layer


@dataclass
class _Candidate:
    layer: Module
    settings: dict[str, Any]
    why: str
    reason: str = ""
    """Why it is not quantized, if so."""

    def step(self, path: str) -> Step:
        bits, mode = self.settings["bits"], self.settings["mode"]
        group = self.settings.get("group_size")
        what = f"INT{bits} weight" + (f" in groups of {group}" if group else "")
        if mode != "weight_only":
            what += f", {mode} INT8 inputs"
        return Step(path, what, self.why, self.settings)


def _candidates(
    modules: Mapping[str, Any], settings: Quantize
) -> tuple[dict[str, _Candidate], list[Skipped]]:
    found: dict[str, _Candidate] = {}
    skipped: list[Skipped] = []
    for path, layer in modules.items():
        entry = CATALOG.get(type(layer))
        if entry is None:
            reason = _why_unknown(layer)
            if reason:
                skipped.append(Skipped(path, reason))
            continue
        chosen, why = _settings_for(layer, settings)
        candidate = _Candidate(layer, chosen, why)
        replaced = "its forward was replaced on this object by another function"
        candidate.reason = (
            why_kept(path, settings.keep)
            or (replaced if "forward" in vars(layer) else "")
            or why_not_packed(entry, layer, chosen)
            or _why_no_gain(layer, chosen)
        )
        found[path] = candidate
    return found, skipped


def _settings_for(layer: Any, settings: Quantize) -> tuple[dict[str, Any], str]:
    """Choose mode and bits for one layer, with the reason."""
    entry = CATALOG[type(layer)]
    shape = entry.weight(layer).shape
    why = f"a weight {shape} of floats"
    if settings.bits == 4:
        return _settings_of_int4(layer, settings, why)
    if not entry.multiplies:
        return {"mode": "weight_only", "bits": 8}, f"{why}, which is looked up"
    if settings.mode != "weight_only" and getattr(layer, "groups", 1) > 1:
        return {"mode": "weight_only", "bits": 8}, (
            f"{why} in {layer.groups} groups, whose products are too small to gain from integers"
        )
    return {"mode": settings.mode, "bits": 8}, why


def _settings_of_int4(layer: Any, settings: Quantize, why: str) -> tuple[dict[str, Any], str]:
    """Choose the groups of a layer, or eight bits where there is no kernel or no group."""
    entry = CATALOG[type(layer)]
    if not entry.takes_int4:
        return {"mode": "weight_only", "bits": 8}, f"{why}; INT4 has no kernel for this layer"
    inputs = len(entry.matrix(entry.weight(layer).data))
    group = settings.group_size or default_group(inputs)
    if group is None or inputs % group:
        groups = f"no group of {group or 8} divides {inputs} inputs"
        return {"mode": "weight_only", "bits": 8}, f"{why}; {groups}"
    return {"mode": "weight_only", "bits": 4, "group_size": group}, why


def _check_groups(candidates: Mapping[str, _Candidate], settings: Quantize) -> None:
    """Raise if a size of groups was asked for that divides the inputs of no layer."""
    linear = [each for each in candidates.values() if CATALOG[type(each.layer)].takes_int4]
    if settings.group_size is None or not linear:
        return
    if all(each.settings["bits"] == 8 for each in linear):
        inputs = sorted({CATALOG[type(e.layer)].weight(e.layer).shape[0] for e in linear})
        raise SettingError(
            f"group_size={settings.group_size} divides the inputs of no layer "
            f"({', '.join(map(str, inputs))}); leave it out, and each layer gets one that does"
        )


def _why_unknown(layer: Any) -> str:
    """Return why a layer that is in no table is left alone; "" if it holds no floats itself."""
    own = [each for _, each in own_tensors(layer) if each.data.dtype.kind == "f"]
    if not own:
        return ""
    name, count = type(layer).__name__, sum(each.data.size for each in own)
    base = next((known for known in CATALOG if isinstance(layer, known)), None)
    if base is not None:
        return f"a {name} is a {base.__name__} that may compute something else"
    return f"{name} is not a layer that can be quantized; its {count:,} numbers stay in floats"


def _why_no_gain(layer: Any, settings: Mapping[str, Any]) -> str:
    entry = CATALOG[type(layer)]
    weight = entry.weight(layer).data
    if not np.isfinite(weight).all():
        return "its weight holds NaN or infinity"
    outputs = entry.matrix(weight).shape[1]
    bias = getattr(layer, "bias", None)
    before = weight.nbytes + (0 if bias is None else bias.data.nbytes)
    after = held_bytes(entry, layer, settings) + extra_bytes(layer, settings, outputs)
    if after >= before:
        return f"it would take {after:,} bytes instead of {before:,}"
    return ""


def _fix_inputs(settings: dict[str, Any], seen: RangeStatistics, ranges: str) -> str:
    """Put a calibrated range into the settings, or return why there is none."""
    if not seen.count:
        return "the calibration data never reached it with a number"
    if seen.low == seen.high == 0:
        return "its inputs are all zero on the calibration data, which tells nothing of their range"
    low, high = choose_range(seen, ranges)
    scale, zero_point = affine_parameters(low, high)
    settings |= {
        "input_scale": float(scale),
        "input_zero_point": int(zero_point),
        "input_range": (low, high),
        "seen": seen.summary,
    }
    return ""


# ---------------------------------------------------------------- shared weights


def _keep_what_shares(candidates: Mapping[str, _Candidate], modules: Mapping[str, Any]) -> None:
    """Skip a layer if its weight stays in floats for another one: it would be held twice."""
    users: dict[int, list[str]] = {}
    for path, each in candidates.items():
        weight = CATALOG[type(each.layer)].weight(each.layer)
        users.setdefault(id(weight), []).append(path)
    for path, module in modules.items():
        if path not in candidates:
            for _, tensor in own_tensors(module):
                if id(tensor) in users:
                    users[id(tensor)].append(path)
    for paths in users.values():
        for path in paths[1:]:
            if path in candidates:
                candidates[path].settings["shares_with"] = paths[0]
        floats = [path for path in paths if path not in candidates or candidates[path].reason]
        for path in paths:
            if floats and path in candidates and not candidates[path].reason:
                candidates[
                    path
                ].reason = f"it shares its weight with {floats[0]!r}, which stays in floats"


def _shrinkage(modules: Mapping[str, Any], chosen: list[_Candidate]) -> Gain | None:
    """Count what is held before and after; exact, as both follow from the shapes."""
    if not chosen:
        return None
    replaced = {id(each.layer) for each in chosen}
    everything = {id(t): t.data.nbytes for m in modules.values() for _, t in own_tensors(m)}
    staying = {
        id(tensor): tensor.data.nbytes
        for module in modules.values()
        if id(module) not in replaced
        for _, tensor in own_tensors(module)
    }
    packed: dict[Any, int] = {}
    extra = 0
    for each in chosen:
        entry = CATALOG[type(each.layer)]
        weight, settings = entry.weight(each.layer), each.settings
        outputs = entry.matrix(weight.data).shape[1]
        # tables of positions are held in another way, each for itself
        key = (id(weight), entry.is_transposed, settings["bits"])
        is_own = isinstance(each.layer, PositionalEmbedding)
        packed[id(each.layer) if is_own else key] = held_bytes(entry, each.layer, settings)
        extra += extra_bytes(each.layer, settings, outputs)
    before = sum(everything.values())
    after = sum(staying.values()) + sum(packed.values()) + extra
    return Gain.of_bytes(before, after, "counted from the shapes")


# ---------------------------------------------------------------- calibration: what was seen of
# the inputs of each layer, and the ranges that follow from it

NAMES_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Calibration(Mapping[str, RangeStatistics], Shown):
    """Statistics of the inputs of layers, by their paths, from `batches` batches.

    It is a mapping of them. `ranges` is how ranges are chosen unless another way is asked for.
    """

    statistics: Mapping[str, RangeStatistics]
    batches: int
    ranges: str = Quantize.ranges

    def __post_init__(self) -> None:
        check_choice("ranges", self.ranges, METHODS)

    def __getitem__(self, layer: str) -> RangeStatistics:
        return self.statistics[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.statistics)

    def __len__(self) -> int:
        return len(self.statistics)

    def range_of(self, layer: str, ranges: str | None = None) -> tuple[float, float]:
        """Choose the range to quantize the inputs of a layer by; it contains zero."""
        chosen = self.ranges if ranges is None else ranges
        check_choice("ranges", chosen, METHODS)
        seen = self._of(layer)
        if not seen.count:
            raise SettingError(
                f"the inputs of layer {layer!r} were empty in all batches, so they have no range; "
                "calibrate with batches that reach it"
            )
        return choose_range(seen, chosen)

    def clipped_share(self, layer: str, limits: tuple[float, float]) -> float:
        """Estimate by the histogram which share of the inputs lies outside of a range.

        The range contains zero. Nothing is clipped by one that holds all that was seen.
        """
        low, high = limits
        if not low <= 0 <= high:
            raise SettingError(f"a range to quantize by contains zero, got {low:g} to {high:g}")
        seen = self._of(layer)
        if not seen.count or (low <= seen.low and seen.high <= high):
            return 0.0
        below = _others_below(seen, np.array([low, high]))
        inside = seen.zeros + float(below[1] - below[0])
        return min(max(1 - inside / seen.count, 0.0), 1.0)

    def shape_of(self, layer: str, pieces: int) -> tuple[float, ...]:
        """Return the shares of the inputs in equal pieces of all that was seen, and zero.

        The first piece begins at the lowest input or at zero, the last ends at the highest or at
        zero. Nothing if nothing was seen.
        """
        if pieces < 1:
            raise SettingError(f"pieces={pieces}; the range has at least one")
        seen = self._of(layer)
        if not seen.count:
            return ()
        edges = np.linspace(min(seen.low, 0.0), max(seen.high, 0.0), pieces + 1)
        below = _others_below(seen, edges)
        below[0], below[-1] = 0, seen.count - seen.zeros
        counts = np.diff(below)
        counts[np.clip(np.searchsorted(edges, 0.0, "right") - 1, 0, pieces - 1)] += seen.zeros
        return tuple((counts / seen.count).tolist())

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "batches": self.batches,
            "ranges": self.ranges,
            "layers": {layer: seen.to_dict() for layer, seen in self.items()},
        }

    def _of(self, layer: str) -> RangeStatistics:
        if layer not in self.statistics:
            names = [repr(each) for each in self.statistics]
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            raise SettingError(
                f"layer {layer!r} was not calibrated; those that were: "
                f"{', '.join(names[:NAMES_SHOWN]) or 'none'}{more}"
            )
        return self.statistics[layer]


def _others_below(seen: RangeStatistics, points: Array) -> Array:
    """Estimate how many inputs other than zero lie below each point; in bins by interpolation."""
    counts = seen.histogram.astype(np.float64)
    if seen.zeros:
        counts[-seen.first_bin] -= seen.zeros  # many are exactly zero, not spread over their bin
    edges = np.clip(seen.edges, seen.low, seen.high)
    return np.interp(points, edges, np.concatenate([[0.0], np.cumsum(counts)]))
