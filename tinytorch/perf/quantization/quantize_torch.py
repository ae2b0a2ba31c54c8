"""PyTorch models: plans that the quantizers of torch and torchao carry out. Imported after torch.

On a processor, `torch.ao` has kernels that multiply integers. The tensors of torchao hold few bytes
on every device; they are fast where torch.compile fuses them into the products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.adapters.pytorch_surgery import replace_modules, why_no_module
from tinytorch.errors import SettingError
from tinytorch.perf.quantization.calibrate_torch import Seen, observe_layers, require_batches
from tinytorch.perf.quantization.candidates_torch import (
    NOT_CALLED,
    Candidate,
    check_not_quantized,
    find_candidates,
    unknown_layers,
)
from tinytorch.perf.quantization.layers_torch import (
    QuantizedEmbedding,
    as_linear,
    kind_of,
)
from tinytorch.perf.quantization.packed_torch import (
    DYNAMIC_LINEAR,
    DYNAMIC_RECURRENT,
    STATIC_CONVOLUTION,
    STATIC_LINEAR,
    input_bits,
)
from tinytorch.perf.quantization.quantizer_torch import weight_of
from tinytorch.perf.quantization.quantizers_torch import notes_on_gpu, quantizer_of
from tinytorch.perf.quantization.torchao_torch import AO_INT4_CPU
from tinytorch.workloads.kept_layers import idle_patterns
from tinytorch.workloads.plan import Gain, Plan, Skipped, Step
from tinytorch.workloads.workload import Workload

if TYPE_CHECKING:
    from tinytorch.perf.quantization.settings import Settings

__all__ = ["apply_torch", "plan_torch"]

NAME = "Quantize"
GRAPH = "torch.ao.quantization.quantize_fx"
FOLDED = "torch folds it into the convolution before it; nothing of it is left"
NO_SPEEDUP = {
    "weight_only": "the weights become floats again at every call: whether fewer bytes outweigh "
    "that depends on the kernels and on torch.compile; compare() measures it",
    "dynamic": "whether integers are faster depends on the sizes, the batch and the device; "
    "compare() measures it",
    "static": "whether integers are faster depends on the sizes, the batch and the device; "
    "compare() measures it",
}
SEVEN_BITS = "torch uses 7 of the 8 bits for the inputs of {layers} on this processor"
SLOW_INT4 = (
    "on a processor, PyTorch's INT4 product is fast for bfloat16 only; for {dtype} it is a plain "
    "loop, many times slower than floats"
)


def plan_torch(workload: Workload, settings: Settings) -> Plan:
    """Look at each layer of a PyTorch model. A copy of it is called, to see its layers at work."""
    model = workload.model
    reason = why_no_module(model)
    if reason:
        return _plan(settings, (), [Skipped("", reason)], None, ())
    adapter = TorchAdapter()
    modules = adapter.modules(model)
    check_not_quantized(modules)
    candidates = find_candidates(modules, keep=settings.keep)
    seen = _observe(workload, settings, candidates)
    for each in candidates:
        if seen is not None and not each.is_left:
            each.reasons |= {path: NOT_CALLED for path in each.paths if path not in seen}
        if each.is_left:
            each.leave("")
        else:
            each.choose(settings, seen or {})
    reasons = unknown_layers(modules)
    for each in candidates:
        reasons |= {path: reason for path, reason in each.reasons.items() if reason}
    chosen = [each for each in candidates if not each.is_left]
    graph = _try_graph(workload, settings, chosen)
    reasons |= dict.fromkeys(graph.folded, FOLDED)
    steps = tuple(graph.step(each, settings) for each in chosen)
    skipped = [Skipped(path, reasons[path]) for path in modules if path in reasons]
    gain = _shrinkage(adapter, model, chosen, graph)
    paths = [path for each in candidates for path in each.paths]
    idle = idle_patterns(settings.keep, paths, change="quantized")
    return _plan(settings, steps, skipped, gain, (*graph.notes, *_notes(chosen), *idle))


def apply_torch(workload: Workload, plan: Plan, settings: Settings) -> nn.Module:
    """Give a copy of the model in which the layers of the plan are quantized, and nothing else."""
    plan.check_made_by(NAME, settings.to_dict())
    model: nn.Module = TorchAdapter().clone(workload.model)
    if plan.is_empty:
        return model
    check_not_quantized(dict(model.named_modules()))
    by_graph = [step.layer for step in plan.steps if step.settings["by"] == GRAPH]
    if by_graph:
        from tinytorch.perf.quantization.graph_torch import quantize_graph

        model = quantize_graph(model, by_graph, workload, ranges=settings.ranges)
    modules = dict(model.named_modules())
    replaced: dict[nn.Module, nn.Module] = {}
    for step in plan.steps:
        missing = [path for path in _layers_of(step) if path not in modules]
        if missing:
            raise SettingError(f"the model has no layer {missing[0]!r}; make a plan for this model")
        if step.layer not in by_graph:
            replaced |= _carry_out(step, {path: modules[path] for path in _layers_of(step)})
    model = replace_modules(model, replaced)
    for parameter in model.parameters():
        parameter.requires_grad_(False)  # whole numbers let no gradient through
    return model


# ---------------------------------------------------------------- planning


def _plan(
    settings: Settings,
    steps: tuple[Step, ...],
    skipped: list[Skipped],
    gain: Gain | None,
    notes: tuple[str, ...],
) -> Plan:
    return Plan(
        NAME,
        settings.to_dict(),
        steps,
        tuple(skipped),
        shrinkage=gain,
        not_predicted={"speedup": NO_SPEEDUP[settings.mode]},
        notes=notes,
    )


def _observe(
    workload: Workload, settings: Settings, candidates: list[Candidate]
) -> Mapping[str, Seen] | None:
    """See which layers are called, for static quantization with what; None if nobody can tell."""
    kinds = {path: each.kind(path) for each in candidates for path in each.paths}
    if settings.mode == "static":
        batches = require_batches(workload.calibration)
        measured = [path for path, kind in kinds.items() if kind in ("linear", "convolution")]
    elif workload.arguments:
        batches, measured = (workload.inputs,), []
    else:
        return None
    twin = TorchAdapter().clone(workload.model).eval()
    layers = {path: twin.get_submodule(path) for path in kinds}
    return observe_layers(
        twin, layers, batches, keywords=workload.keywords, measured=frozenset(measured)
    )


@dataclass(frozen=True)
class _Graph:
    """Whether the static layers can be quantized as one graph, and what is then held."""

    layers: frozenset[str] = frozenset()
    folded: tuple[str, ...] = ()
    nbytes: int | None = None
    notes: tuple[str, ...] = ()

    def step(self, candidate: Candidate, settings: Settings) -> Step:
        step = candidate.step(settings.bits)
        if step.layer not in self.layers:
            return step
        kept = {name: step.settings[name] for name in ("version", "mode", "bits", "seen")}
        used = {"by": GRAPH, "ranges": settings.ranges} | kept
        return Step(step.layer, step.what, step.why, used)


def _try_graph(workload: Workload, settings: Settings, chosen: list[Candidate]) -> _Graph:
    """Trace a model with convolutions and run it once in integers; nothing without these."""
    static = [each for each in chosen if each.quantizer in (STATIC_CONVOLUTION, STATIC_LINEAR)]
    if not any(each.quantizer is STATIC_CONVOLUTION for each in static):
        return _Graph()
    layers = frozenset(each.paths[0] for each in static)
    adapter = TorchAdapter()
    try:
        from tinytorch.perf.quantization.graph_torch import folded_layers, quantize_graph

        converted = quantize_graph(
            adapter.clone(workload.model), layers, workload, ranges=settings.ranges
        )
        with torch.no_grad():
            converted(*workload.inputs, **workload.keywords)
    except Exception as error:  # tracing raises whatever the code of a model raises
        first_line = (str(error).splitlines() or ["no message"])[0]
        note = (
            f"the model cannot be traced ({first_line}), so each layer turns its own inputs into "
            "integers and its outputs back into floats"
        )
        return _Graph(notes=(note,))
    nbytes = sum(each.nbytes for each in adapter.parameters(converted))
    note = "the copy is traced and computes as in evaluation mode"
    folded = tuple(folded_layers(workload.model, converted))
    return _Graph(layers, folded, nbytes, (note,))


def _shrinkage(
    adapter: TorchAdapter, model: nn.Module, chosen: list[Candidate], graph: _Graph
) -> Gain | None:
    """Count what is held before and after, from the shapes; a traced model was counted."""
    if not chosen:
        return None
    before = sum(each.nbytes for each in adapter.parameters(model))
    after = before if graph.nbytes is None else graph.nbytes
    for each in chosen:
        if each.paths[0] not in graph.layers:
            after += each.bytes_after - each.bytes_before
    how = "by the shapes" if graph.nbytes is None else "counted on a traced copy"
    return Gain.counted(before, after, how)


def _notes(chosen: list[Candidate]) -> Iterator[str]:
    """Yield what users should know about the quantizers that were chosen."""
    if any(each.quantizer is DYNAMIC_LINEAR for each in chosen) and input_bits() < 8:
        yield SEVEN_BITS.format(layers="linear layers")
    if any(each.quantizer is DYNAMIC_RECURRENT for each in chosen):
        yield SEVEN_BITS.format(layers="recurrent layers")
    convolutions = [each.view for each in chosen if each.quantizer is STATIC_CONVOLUTION]
    if input_bits(convolutions) < input_bits():
        yield SEVEN_BITS.format(layers="a model with depthwise convolutions")
    dtypes = {weight_of(each.view).dtype for each in chosen if each.quantizer is AO_INT4_CPU}
    for dtype in sorted(map(str, dtypes - {torch.bfloat16})):
        yield SLOW_INT4.format(dtype=dtype.removeprefix("torch."))
    yield from notes_on_gpu([e.quantizer for e in chosen if e.settings["device"] == "cuda"])


# ---------------------------------------------------------------- carrying out


def _layers_of(step: Step) -> tuple[str, ...]:
    return tuple(step.settings.get("layers", (step.layer,)))


def _carry_out(step: Step, layers: Mapping[str, nn.Module]) -> dict[nn.Module, nn.Module]:
    """Quantize the layers of one step; those that share a weight share the quantized one."""
    main = next((path for path, each in layers.items() if kind_of(each) == "linear"), step.layer)
    kind = kind_of(layers[main])
    quantizer = quantizer_of(step.settings["by"], kind) if kind else None
    if quantizer is None:
        raise SettingError(
            f"{step.settings['by']!r} cannot quantize {main!r}, a {type(layers[main]).__name__}; "
            "make a plan for this model"
        )
    layer = as_linear(layers[main])
    if kind == "linear":
        weight_of(layer).data = weight_of(layer).data.contiguous()
    replaced = {layers[main]: quantizer.carry_out(layer, step.settings)}
    if len(layers) == 1:
        return replaced
    shared = weight_of(replaced[layers[main]])
    for path, other in layers.items():
        if path == main:
            continue
        if isinstance(other, nn.Embedding):
            replaced[other] = QuantizedEmbedding(other, shared)
        else:
            other.weight = shared
    return replaced
