"""Which layers of a TinyTorch model are quantized, how, and which are not, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import own_tensors
from tinytorch.adapters.surgery import replace_layers
from tinytorch.core.embeddings import PositionalEmbedding
from tinytorch.core.module import Module
from tinytorch.errors import ModelError, SettingError
from tinytorch.formats.affine import affine_parameters
from tinytorch.formats.ranges import RangeStatistics, choose_range
from tinytorch.perf.quantization.calibration import observe_inputs
from tinytorch.perf.quantization.layer_catalog import (
    CATALOG,
    PackedWeights,
    extra_bytes,
    held_bytes,
    why_not_packed,
)
from tinytorch.perf.quantization.packed_weight import default_group
from tinytorch.perf.quantization.quantized_layer import QuantizedLayer
from tinytorch.perf.quantization.settings import Settings
from tinytorch.workloads.kept_layers import idle_patterns, why_kept
from tinytorch.workloads.observing import called_layers, switch_to_eval
from tinytorch.workloads.plan import Gain, Plan, Skipped, Step
from tinytorch.workloads.workload import Workload

__all__ = ["apply_plan", "check_not_quantized", "make_plan"]

NAME = "Quantize"
NO_SPEEDUP = (
    "whether integers are faster depends on the layer's size, the batch and the processor; "
    "compare() measures it"
)


def make_plan(workload: Workload, settings: Settings) -> Plan:
    """Look at each layer of a model. It is called on a copy, to see its layers at work."""
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = dict(adapter.modules(twin))
    check_not_quantized(modules)
    switch_to_eval(modules)
    candidates, skipped = _candidates(modules, settings)
    layers = {path: each.layer for path, each in candidates.items() if not each.reason}
    observed: Mapping[str, RangeStatistics] = {}
    if settings.mode == "static":
        observed = observe_inputs(twin, layers, workload)
        called = set(observed)
    elif workload.arguments:
        called = called_layers(twin, layers, workload)
    else:
        called = set(layers)  # nobody can call it without inputs
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
    return Plan(
        NAME,
        settings.to_dict(),
        steps,
        tuple(skipped),
        shrinkage=gain,
        not_predicted={"speedup": NO_SPEEDUP},
        notes=idle_patterns(settings.keep, candidates, change="quantized"),
    )


def apply_plan(workload: Workload, plan: Plan) -> Any:
    """Give a copy of the model in which the layers of the plan are quantized."""
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    if plan.is_empty:
        return twin
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
    modules: Mapping[str, Any], settings: Settings
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


def _settings_for(layer: Any, settings: Settings) -> tuple[dict[str, Any], str]:
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


def _settings_of_int4(layer: Any, settings: Settings, why: str) -> tuple[dict[str, Any], str]:
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


def _check_groups(candidates: Mapping[str, _Candidate], settings: Settings) -> None:
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
    """Say why a layer that is in no table is left alone; nothing if it holds no floats itself."""
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
    """Put a calibrated range into the settings, or say why there is none."""
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
    """Leave a layer alone if its weight stays in floats for another one: it would be held twice."""
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
    return Gain.counted(before, after, "counted from the shapes")
