"""Quantize: the transform that holds weights, and computes, in eight or four bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tinytorch.core.embeddings import PositionalEmbedding
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError, SettingError
from tinytorch.formats.affine import affine_parameters
from tinytorch.formats.ranges import METHODS, RangeObserver, RangeStatistics, choose_range
from tinytorch.models.adapter import adapter_for, replace_layers
from tinytorch.models.core import own_tensors
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Gain, Plan, Transform, Variant, check_choice
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
    checked_patterns,
    idle_patterns,
    see_calibration,
)
from tinytorch.transforms.support.weights import (
    NOT_CALLED,
    WeightLayer,
    WeightLayers,
    find_weight_layers,
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

    def outlook(self, framework: str, device: str) -> float:
        """Of PyTorch, weights become floats again at every call, and INT4 by a plain loop."""
        if framework == "pytorch" and self.mode == "weight_only":
            return 0.9 if self.bits == 8 else 0.1
        return 1.1

    def products_of(self, framework: str) -> frozenset[str] | None:
        if framework != "pytorch":
            return frozenset(each.__name__ for each, entry in CATALOG.items() if entry.multiplies)
        by_mode = {"dynamic": {"Linear"}, "static": {"Linear", "Conv2d"}}
        return frozenset(by_mode.get(self.mode, ()))

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
    layers = find_weight_layers(
        workload,
        settings.keep,
        verb="quantized",
        kinds=CATALOG,
        weight_of=lambda layer: CATALOG[type(layer)].weight(layer),
    )
    check_not_quantized(layers.modules)
    owners: dict[int, str] = {}
    for path, each in layers.found.items():
        each.settings, each.why = _settings_for(each.layer, settings)
        each.reason = each.reason or _why_not_packed(each.layer, each.settings)
        owner = owners.setdefault(id(each.tensor), path)
        if owner != path:
            each.settings["shares_with"] = owner
    if settings.mode == "static":
        _fix_ranges(layers, workload, settings)
    layers.keep_what_shares()
    _check_groups(layers.found.values(), settings)
    for each in layers.found.values():
        each.what = what_becomes(each.settings)
    return settings.planned(
        layers.steps,
        layers.skipped,
        shrinkage=_shrinkage(layers),
        not_predicted={"speedup": NO_SPEEDUP},
        notes=idle_patterns(settings.keep, layers.found, change="quantized"),
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
    refuse_quantized(path for path, each in modules.items() if isinstance(each, QuantizedLayer))


def refuse_quantized(paths: Iterable[str]) -> None:
    """Raise if there are such layers."""
    done = list(paths)
    if done:
        raise SettingError(
            f"the model is quantized already ({len(done)} layers, such as {done[0]!r}); quantize "
            "the float model that it was made from"
        )


# ---------------------------------------------------------------- layer by layer


def what_becomes(settings: Mapping[str, Any]) -> str:
    """Say what a layer becomes, by the settings of its step."""
    bits, mode, group = settings["bits"], settings["mode"], settings.get("group_size")
    what = f"INT{bits} weight" + (f" in groups of {group}" if group else "")
    return what if mode == "weight_only" else f"{what}, {mode} INT8 inputs"


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


def _check_groups(layers: Iterable[WeightLayer], settings: Quantize) -> None:
    """Raise if a size of groups was asked for that divides the inputs of no layer."""
    linear = [each for each in layers if CATALOG[type(each.layer)].takes_int4]
    if settings.group_size is None or not linear:
        return
    if all(each.settings["bits"] == 8 for each in linear):
        inputs = sorted({CATALOG[type(e.layer)].weight(e.layer).shape[0] for e in linear})
        raise SettingError(
            f"group_size={settings.group_size} divides the inputs of no layer "
            f"({', '.join(map(str, inputs))}); leave it out, and each layer gets one that does"
        )


def _why_not_packed(layer: Any, settings: Mapping[str, Any]) -> str:
    """Return why a layer cannot hold whole numbers, or would not gain by that, or ""."""
    entry = CATALOG[type(layer)]
    reason = why_not_packed(entry, layer, settings)
    if reason:
        return reason
    weight, bias = entry.weight(layer).data, getattr(layer, "bias", None)
    before = weight.nbytes + (0 if bias is None else bias.data.nbytes)
    outputs = entry.matrix(weight).shape[1]
    after = held_bytes(entry, layer, settings) + extra_bytes(layer, settings, outputs)
    return f"it would take {after:,} bytes instead of {before:,}" if after >= before else ""


def _fix_ranges(layers: WeightLayers, workload: Workload, settings: Quantize) -> None:
    """Put calibrated ranges into the settings of the layers, or say why there are none."""
    free = {path: each for path, each in layers.found.items() if not each.reason}
    wanted = {path: each.layer for path, each in free.items()}
    observed = observe_inputs(layers.modules[""], wanted, workload)
    for path, each in free.items():
        if path not in observed:
            each.reason = NOT_CALLED
        elif each.settings["mode"] == "static":
            each.reason = _fix_inputs(each.settings, observed[path], settings.ranges)


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


def _shrinkage(layers: WeightLayers) -> Gain | None:
    """Count what is held before and after; exact, as both follow from the shapes."""
    chosen = [each for each in layers.found.values() if not each.reason]
    if not chosen:
        return None
    replaced = {id(each.layer) for each in chosen}
    staying = {
        id(tensor): tensor.data.nbytes
        for module in layers.modules.values()
        if id(module) not in replaced
        for _, tensor in own_tensors(module)
    }
    packed: dict[Any, int] = {}
    extra = 0
    for each in chosen:
        entry, settings = CATALOG[type(each.layer)], each.settings
        outputs = entry.matrix(each.weight).shape[1]
        # tables of positions are held in another way, each for itself
        key = (id(each.tensor), entry.is_transposed, settings["bits"])
        is_own = isinstance(each.layer, PositionalEmbedding)
        packed[id(each.layer) if is_own else key] = held_bytes(entry, each.layer, settings)
        extra += extra_bytes(each.layer, settings, outputs)
    before = layers.bytes_held
    after = sum(staying.values()) + sum(packed.values()) + extra
    return Gain.of_bytes(before, after, "counted from the shapes")
