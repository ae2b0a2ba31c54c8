"""The layers of a PyTorch model, one by one: which can be quantized, and who shares a weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tinytorch.adapters.pytorch_packed import packed_objects
from tinytorch.errors import SettingError
from tinytorch.perf.quantization.calibrate_torch import Seen
from tinytorch.perf.quantization.layers_torch import (
    KINDS,
    QuantizedEmbedding,
    as_linear,
    kind_of,
    weights_of,
)
from tinytorch.perf.quantization.quantizer_torch import Quantizer, weight_of
from tinytorch.perf.quantization.quantizers_torch import choose_quantizer, version_of
from tinytorch.workloads.kept_layers import why_kept
from tinytorch.workloads.plan import Step

__all__ = ["Candidate", "check_not_quantized", "find_candidates", "unknown_layers"]

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
        """Leave all of its layers in floats; those with a reason of their own keep it."""
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
        """Say why one quantized weight cannot serve all layers that hold it."""
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
        """Give the step of a plan."""
        assert self.quantizer is not None
        made, group = self.quantizer, self.settings["group_size"]
        what = f"INT{made.bits} weight" + (f" in groups of {group}" if made.bits == 4 else "")
        if made.mode != "weight_only":
            what += f", {made.mode} INT8 inputs"
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
    done = [path for path, module in modules.items() if _is_quantized(module)]
    if done:
        raise SettingError(
            f"the model is quantized already ({len(done)} layers, such as {done[0]!r}); quantize "
            "the float model that it was made from"
        )


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
    """Give the layers that quantizers know, in order; those that hold one weight together."""
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
    """Give the other layers that hold floats themselves, with the reason why these stay."""
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
