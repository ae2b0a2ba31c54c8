"""The weights of a PyTorch model that can be pruned, and setting some to zero. After torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.adapters.pytorch_packed import packed_objects
from tinytorch.errors import SettingError
from tinytorch.perf.compression.pruning_plan import Prunable
from tinytorch.workloads.kept_layers import why_kept
from tinytorch.workloads.plan import Skipped

__all__ = [
    "TorchKind",
    "check_rankable_torch",
    "find_prunables_torch",
    "kind_of_torch",
    "maskable_names",
    "named_weights",
    "set_zero_torch",
]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TABLE = "embeddings are left alone unless prune_embeddings=True"


@dataclass(frozen=True)
class TorchKind:
    """How the layers of one class hold their weight and meet it with their inputs.

    `input_axis` is the axis of the channels of an input, None for a table that is looked up;
    `spread(layer, norms)` gives one norm per input in a shape that fits the weight.
    """

    output_axis: int = 0
    input_axis: int | None = -1
    spread: Callable[[Any, torch.Tensor], torch.Tensor] = lambda _, norms: norms[None]
    computes_with: tuple[str, ...] = ("forward",)


def _spread_over_kernels(layer: Any, norms: torch.Tensor) -> torch.Tensor:
    """Give each output channel the norms of the input channels of its group."""
    rows = norms.reshape(layer.groups, -1)  # (groups, in / groups)
    rows = rows.repeat_interleave(layer.weight.shape[0] // layer.groups, dim=0)
    return rows.reshape(*rows.shape, *(1 for _ in layer.kernel_size))


def _convolution(axes: int) -> TorchKind:
    methods = ("forward", "_conv_forward")
    return TorchKind(input_axis=-1 - axes, spread=_spread_over_kernels, computes_with=methods)


KINDS: dict[type[nn.Module], TorchKind] = {
    nn.Linear: TorchKind(),
    nn.Conv1d: _convolution(1),
    nn.Conv2d: _convolution(2),
    nn.Conv3d: _convolution(3),
    nn.Embedding: TorchKind(input_axis=None),
}
"""Layers by their class; of its subclasses those that inherit how they compute."""
TRANSPOSED = TorchKind(output_axis=1, spread=lambda _, norms: norms[:, None])
"""The `Conv1D` of transformers: a linear layer with a weight (inputs, outputs)."""


def _known() -> dict[type[nn.Module], TorchKind]:
    """Give the table, with what transformers adds where somebody has imported that."""
    source = sys.modules.get("transformers.pytorch_utils")
    transposed = getattr(source, "Conv1D", None)
    return KINDS if transposed is None else {**KINDS, transposed: TRANSPOSED}


def kind_of_torch(layer: Any) -> TorchKind | None:
    """Give the kind of a layer; None for those that hold no weight, or that nobody knows."""
    for base, kind in _known().items():
        if isinstance(layer, base) and all(
            getattr(type(layer), name) is getattr(base, name) for name in kind.computes_with
        ):
            return kind
    return None


def named_weights(model: Any) -> dict[str, torch.Tensor]:
    """Give every parameter of a model, once, under its first name."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for path, module in TorchAdapter().modules(model).items():
        if isinstance(module, nn.Module):
            for name, item in module.named_parameters(recurse=False):
                found.setdefault(id(item), (f"{path}.{name}" if path else name, item))
    return dict(found.values())


def maskable_names(model: Any) -> list[str]:
    """Give the names of the weights of linear layers and convolutions."""
    prunables, _ = find_prunables_torch(model)
    return [each.name for each in prunables if not each.is_left]


def set_zero_torch(weight: torch.Tensor, chosen: Any) -> None:
    """Set the chosen weights to zero, in place."""
    with torch.no_grad():
        weight.masked_fill_(torch.as_tensor(chosen, device=weight.device), 0)


def find_prunables_torch(
    model: Any, *, keep: Iterable[str] = (), embeddings: bool = False
) -> tuple[list[Prunable], list[Skipped]]:
    """Give the weights that can be pruned, each once, and the layers that hold others."""
    modules = TorchAdapter().modules(model)
    names = {id(tensor): name for name, tensor in named_weights(model).items()}
    found: dict[Any, Prunable] = {}
    skipped: list[Skipped] = []
    for path, layer in modules.items():
        kind = kind_of_torch(layer)
        weight = layer._parameters.get("weight") if kind else None
        if kind is None or weight is None:
            reason = _why_unknown(layer, kind)
            skipped += [Skipped(path, reason)] if reason else []
            continue
        reason = _why_not(weight) or why_kept(path, keep)
        if kind.input_axis is None and not embeddings:
            reason = reason or TABLE
        if "forward" in vars(layer):
            reason = reason or "its forward was replaced on this object by another function"
        prunable = found.setdefault(_key(weight), _prunable(names[id(weight)], weight))
        prunable.reasons[path] = reason
    for path, layer in modules.items():
        if kind_of_torch(layer) is None and isinstance(layer, nn.Module):
            for tensor in layer.parameters(recurse=False):
                if _key(tensor) in found:
                    reason = f"it shares its weight with {path!r}, which is not pruned"
                    found[_key(tensor)].leave(reason)
    return list(found.values()), skipped


def check_rankable_torch(prunables: Iterable[Prunable]) -> None:
    """Raise if a weight that is to be pruned holds what is neither small nor large."""
    for each in prunables:
        if not each.is_left and not torch.isfinite(each.weight.detach()).all():
            raise SettingError(each.not_finite)


def _key(weight: torch.Tensor) -> Any:
    """Tell weights apart by the memory that they have, where they have some."""
    if _why_not(weight):
        return id(weight)
    return weight.device, weight.data_ptr()


def _prunable(name: str, weight: torch.Tensor) -> Prunable:
    if _why_not(weight):
        return Prunable(name, weight, 0, 0, (), {})
    size = weight.numel()
    zeros = size - int(torch.count_nonzero(weight.detach()))
    return Prunable(name, weight, size, zeros, tuple(weight.shape), {})


def _why_not(weight: torch.Tensor) -> str:
    """Say why nobody can look at the numbers of a weight, or nothing."""
    if isinstance(weight, UninitializedParameter):
        return "its weight has no shape yet; call the model once before"
    if weight.is_meta:
        return "its weight is on the meta device, without numbers"
    if weight.is_quantized or type(weight.detach()) is not torch.Tensor:
        kind = type(weight.detach()).__name__
        return f"its weight is held in another form ({kind}); prune the model it was made from"
    if weight.dtype not in DTYPES:
        return f"its weight holds {str(weight.dtype).removeprefix('torch.')}, no floats to rank"
    return "" if weight.numel() else "its weight is empty"


def _why_unknown(layer: Any, kind: TorchKind | None) -> str:
    """Say why a layer is left alone; nothing if it holds no numbers itself."""
    if not isinstance(layer, nn.Module):
        return ""
    name = type(layer).__name__
    if kind is not None:
        return "its weight is computed anew before each call"
    if any(True for _ in packed_objects(layer)):
        return f"{name} holds its weight in another form; prune the model that it was made from"
    own = list(layer.parameters(recurse=False))
    if not own:
        return ""
    base = next((known for known in _known() if isinstance(layer, known)), None)
    if base is not None:
        return f"a {name} is a {base.__name__} that may compute something else"
    count = sum(each.numel() for each in own if not isinstance(each, UninitializedParameter))
    return f"{name} is not a layer that is pruned; its {count:,} numbers stay"
