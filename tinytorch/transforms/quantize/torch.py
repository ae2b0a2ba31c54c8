"""PyTorch models: plans that the quantizers of torch and torchao carry out. Imported after torch.

On a processor, `torch.ao` has kernels that multiply integers. The tensors of torchao hold few bytes
on every device; they are fast where torch.compile fuses them into the products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tinytorch.errors import SettingError, first_line
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import packed_objects, replace_modules, why_no_module
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step
from tinytorch.transforms.quantize import refuse_quantized, what_becomes
from tinytorch.transforms.quantize.quantizers import (
    AO_INT4_CPU,
    DYNAMIC_LINEAR,
    DYNAMIC_RECURRENT,
    STATIC_CONVOLUTION,
    STATIC_LINEAR,
    choose_quantizer,
    input_bits,
    notes_on_gpu,
    quantizer_of,
    version_of,
)
from tinytorch.transforms.quantize.torch_layers import (
    KINDS,
    QuantizedEmbedding,
    Quantizer,
    Seen,
    as_linear,
    kind_of,
    observe_layers,
    require_calls,
    weight_of,
    weights_of,
)
from tinytorch.transforms.support.observing import idle_patterns, why_kept

if TYPE_CHECKING:
    from tinytorch.transforms.quantize import Quantize


# ---------------------------------------------------------------- the layers of a PyTorch model,
# one by one: which can be quantized, and who shares a weight

DEFAULT_GROUP = 32
NOT_CALLED = "it was not called: its weight may be used in another way"
Modules = Mapping[str, nn.Module]


@dataclass
class Candidate:
    """A layer, or several that hold one weight, on the way to a step or to a reason."""

    layers: dict[str, nn.Module]
    reasons: dict[str, str] = field(default_factory=dict)
    quantizer: Quantizer | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    not_better: str = ""
    """Why it is not the quantizer that would be taken first."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.layers)

    @property
    def main(self) -> str:
        """The layer that decides how: one that multiplies, if there is one."""
        return next((path for path in self.layers if self.kind(path) == "linear"), self.paths[0])

    def kind(self, path: str) -> str:
        kind = kind_of(self.layers[path])
        assert kind is not None
        return kind

    @property
    def view(self) -> nn.Module:
        """The main layer, with its weight as quantizers see it."""
        return as_linear(self.layers[self.main])

    @property
    def bytes_before(self) -> int:
        """What its weights take in floats."""
        weights = weights_of(self.layers[self.main]).values()
        return sum(each.numel() * each.element_size() for each in weights)

    @property
    def bytes_after(self) -> int:
        """What stands for its weights when it is quantized, from the shapes."""
        assert self.quantizer is not None
        return self.quantizer.weight_bytes(self.view, self.settings)

    def leave(self, reason: str) -> None:
        """Leave all of its layers in floats; those that have a reason keep it."""
        floats = next((path for path, each in self.reasons.items() if each), None)
        for path in self.paths:
            shared = f"it shares its weight with {floats!r}, which stays in floats"
            self.reasons[path] = self.reasons.get(path) or (shared if floats else reason)

    @property
    def is_left(self) -> bool:
        return any(self.reasons.values())

    def choose(self, settings: Any, seen: Mapping[str, Seen]) -> None:
        """Choose a quantizer, or note why there is none."""
        kind = self.kind(self.main)
        weight = weight_of(self.view)
        self.settings = {
            "mode": settings.mode,
            "bits": settings.bits,
            "device": weight.device.type,
            "group_size": settings.group_size or DEFAULT_GROUP,
        }
        watched = seen.get(self.main)
        if settings.mode == "static" and watched is not None:
            self.settings["input_axes"] = tuple(sorted(watched.axes))
        chosen, reason = None, self._why_not_shared(settings.mode)
        if not reason:
            is_shared = len(self.layers) > 1
            chosen, reason = choose_quantizer(kind, self.view, self.settings, is_shared=is_shared)
        if chosen is None:
            self.leave(reason)
            return
        self.quantizer, self.not_better = chosen, reason
        if chosen.needs_ranges:
            assert watched is not None
            symmetric = chosen.is_symmetric
            self.settings |= watched.settings(settings.ranges, symmetric=symmetric)
        if self.bytes_after >= self.bytes_before:
            self.leave(f"it would take {self.bytes_after:,} bytes instead of {self.bytes_before:,}")

    def _why_not_shared(self, mode: str) -> str:
        """Return why one quantized weight cannot serve all layers that hold it."""
        kinds = [self.kind(path) for path in self.layers]
        if len(kinds) == 1:
            return ""
        odd = [p for p in self.paths if type(self.layers[p]) not in (nn.Linear, nn.Embedding)]
        if odd:
            return f"{', '.join(self.paths)} hold one weight, which cannot be quantized for all"
        if mode == "static" and kinds.count("linear") > 1:
            return f"{', '.join(self.paths)} hold one weight and have inputs of different ranges"
        return ""

    def step(self, bits: int) -> Step:
        """Return the step of a plan."""
        assert self.quantizer is not None
        made, group = self.quantizer, self.settings["group_size"]
        about = {"bits": made.bits, "mode": made.mode}
        what = what_becomes(about | ({"group_size": group} if made.bits == 4 else {}))
        weight = weight_of(self.view)
        why = f"a weight {tuple(weight.shape)} of {str(weight.dtype).removeprefix('torch.')}"
        if len(self.layers) > 1:
            why += f", held by {' and '.join(self.paths)}, which go on sharing it"
        if made.bits > bits:
            why += f"; no INT4: {self.not_better or 'there is no quantizer for this layer'}"
        used = {"by": made.by, "version": version_of(made), "mode": made.mode, "bits": made.bits}
        if len(self.layers) > 1:
            used["layers"] = self.paths
        if made.bits == 4:
            used["group_size"] = group
        if made.needs_ranges:
            names = ("input_range", "output_range", "input_axes", "seen")
            used |= {name: self.settings[name] for name in names}
        return Step(self.paths[0], what, why, used)


def check_not_quantized(modules: Modules) -> None:
    """Raise if a model has quantized layers already."""
    refuse_quantized(path for path, module in modules.items() if _is_quantized(module))


def _is_quantized(module: Any) -> bool:
    if any(True for _ in packed_objects(module)) or isinstance(module, QuantizedEmbedding):
        return True
    own = module.parameters(recurse=False) if isinstance(module, nn.Module) else ()
    return any(
        each.is_quantized
        or type(each).__module__.startswith("torchao")
        or each.dtype in (torch.int8, torch.uint8)
        for each in own
    )


def find_candidates(modules: Modules, *, keep: Iterable[str]) -> list[Candidate]:
    """Return the layers that quantizers know, in order; those that hold one weight together."""
    found: dict[Any, Candidate] = {}
    for path, layer in modules.items():
        if kind_of(layer) is None:
            continue
        weights = weights_of(layer)
        key = id(next(iter(weights.values()))) if len(weights) == 1 else path
        candidate = found.setdefault(key, Candidate({}))
        candidate.layers[path] = layer
        candidate.reasons[path] = why_kept(path, keep) or _why_no_weight(weights)
    holders = {
        id(tensor): path
        for path, module in modules.items()
        if kind_of(module) is None
        for tensor in module.parameters(recurse=False)
    }
    for key, candidate in found.items():
        if key in holders:
            candidate.leave(f"it shares its weight with {holders[key]!r}, which stays in floats")
        elif candidate.is_left:
            candidate.leave("")
    return list(found.values())


def _why_no_weight(weights: Mapping[str, nn.Parameter]) -> str:
    if not weights:
        return "its weight is computed anew before each call"
    for name, each in weights.items():
        if each.is_meta:
            return f"its {name} is on the meta device, without numbers"
        if not each.numel():
            return f"its {name} is empty"
        if not torch.isfinite(each.detach()).all():
            return f"its {name} holds NaN or infinity"
    return ""


def unknown_layers(modules: Modules) -> dict[str, str]:
    """Return the other layers that hold floats themselves, with the reason why these stay."""
    found = {}
    for path, module in modules.items():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        count = sum(each.numel() for each in own if each.is_floating_point())
        if kind_of(module) is None and count:
            found[path] = _why_unknown(module, count)
    return found


def _why_unknown(module: nn.Module, count: int) -> str:
    name = type(module).__name__
    base = next((known for known in KINDS if isinstance(module, known)), None)
    if base is not None:
        return f"{name} is a subclass of {base.__name__} and may compute something else"
    return f"no quantizer for {name}; its {count:,} numbers stay in floats"


# ---------------------------------------------------------------- PyTorch models: plans that the
# quantizers of torch and torchao carry out. Imported after torch

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


def plan_torch(workload: Workload, settings: Quantize) -> Plan:
    """Plan layer by layer for a PyTorch model. A copy of it is called to observe its layers."""
    model = workload.model
    reason = why_no_module(model)
    if reason:
        return settings.skipping(reason)
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
    return settings.planned(
        steps,
        skipped,
        shrinkage=gain,
        not_predicted={"speedup": NO_SPEEDUP[settings.mode]},
        notes=(*graph.notes, *_notes(chosen), *idle),
    )


def apply_torch(model: nn.Module, workload: Workload, plan: Plan, settings: Quantize) -> nn.Module:
    """Return the copy with the layers of the plan quantized, and nothing else."""
    check_not_quantized(dict(model.named_modules()))
    by_graph = [step.layer for step in plan.steps if step.settings["by"] == GRAPH]
    if by_graph:
        from tinytorch.transforms.quantize.quantizers import quantize_graph

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


def _observe(
    workload: Workload, settings: Quantize, candidates: list[Candidate]
) -> Mapping[str, Seen] | None:
    """Return which layers are called, for static quantization with what; None if unknown."""
    kinds = {path: each.kind(path) for each in candidates for path in each.paths}
    if settings.mode == "static":
        calls = require_calls(workload.calibration_calls)
        measured = [path for path, kind in kinds.items() if kind in ("linear", "convolution")]
    elif workload.arguments:
        calls, measured = (workload.call,), []
    else:
        return None
    twin = TorchAdapter().clone(workload.model).eval()
    layers = {path: twin.get_submodule(path) for path in kinds}
    return observe_layers(twin, layers, calls, measured=frozenset(measured))


@dataclass(frozen=True)
class _Graph:
    """Whether the static layers can be quantized as one graph, and what is then held."""

    layers: frozenset[str] = frozenset()
    folded: tuple[str, ...] = ()
    nbytes: int | None = None
    notes: tuple[str, ...] = ()

    def step(self, candidate: Candidate, settings: Quantize) -> Step:
        step = candidate.step(settings.bits)
        if step.layer not in self.layers:
            return step
        kept = {name: step.settings[name] for name in ("version", "mode", "bits", "seen")}
        used = {"by": GRAPH, "ranges": settings.ranges} | kept
        return Step(step.layer, step.what, step.why, used)


def _try_graph(workload: Workload, settings: Quantize, chosen: list[Candidate]) -> _Graph:
    """Trace a model with convolutions and run it once in integers; nothing without these."""
    static = [each for each in chosen if each.quantizer in (STATIC_CONVOLUTION, STATIC_LINEAR)]
    if not any(each.quantizer is STATIC_CONVOLUTION for each in static):
        return _Graph()
    layers = frozenset(each.paths[0] for each in static)
    adapter = TorchAdapter()
    try:
        from tinytorch.transforms.quantize.quantizers import folded_layers, quantize_graph

        converted = quantize_graph(
            adapter.clone(workload.model), layers, workload, ranges=settings.ranges
        )
        with torch.no_grad():
            converted(*workload.inputs, **workload.keywords)
    except Exception as error:  # tracing raises whatever the code of a model raises
        note = (
            f"the model cannot be traced ({first_line(error)}), so each layer turns its own inputs "
            "into integers and its outputs back into floats"
        )
        return _Graph(notes=(note,))
    nbytes = adapter.held_bytes(converted)
    note = "the copy is traced and computes as in evaluation mode"
    folded = tuple(folded_layers(workload.model, converted))
    return _Graph(layers, folded, nbytes, (note,))


def _shrinkage(
    adapter: TorchAdapter, model: nn.Module, chosen: list[Candidate], graph: _Graph
) -> Gain | None:
    """Count what is held before and after, from the shapes; a traced model was counted."""
    if not chosen:
        return None
    before = adapter.held_bytes(model)
    after = before if graph.nbytes is None else graph.nbytes
    for each in chosen:
        if each.paths[0] not in graph.layers:
            after += each.bytes_after - each.bytes_before
    how = "by the shapes" if graph.nbytes is None else "counted on a traced copy"
    return Gain.of_bytes(before, after, how)


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
    replaced = {layers[main]: quantizer.quantized(layer, step.settings)}
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
