"""The layers of a TinyTorch model whose weights can become zero, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import named_tensors, own_tensors
from tinytorch.core.backends import Array
from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import TiedHead
from tinytorch.errors import ModelError, SettingError
from tinytorch.perf.compression.pruning_plan import Prunable
from tinytorch.workloads.kept_layers import why_kept
from tinytorch.workloads.plan import Skipped

__all__ = [
    "KINDS",
    "LayerKind",
    "check_rankable",
    "find_prunables",
    "kind_of",
]

TABLE = "embeddings are left alone unless prune_embeddings=True"


@dataclass(frozen=True)
class LayerKind:
    """How the layers of one class hold their weight and meet it with their inputs.

    `spread(layer, norms)` gives one norm per input in a shape that fits the weight; None for a
    table, where rows are looked up. `input_axis` is the axis of the channels of an input.
    """

    weight: Callable[[Any], Tensor]
    output_axis: int = 0
    input_axis: int = -1
    spread: Callable[[Any, Array], Array] | None = None
    is_table: bool = False
    computes_with: tuple[str, ...] = ("forward",)
    """The methods that a subclass must inherit to be the same layer."""


def _own_weight(layer: Any) -> Tensor:
    return layer.weight


def _spread_over_kernels(layer: Any, norms: Array) -> Array:
    """Give each output channel the norms of the input channels of its group."""
    groups = norms.reshape(layer.groups, -1)  # (groups, in / groups)
    rows = np.repeat(groups, layer.weight.shape[0] // layer.groups, axis=0)
    return rows[:, :, None, None]  # (out, in / groups, 1, 1)


KINDS: dict[type[Module], LayerKind] = {
    Linear: LayerKind(_own_weight, output_axis=1, spread=lambda _, norms: norms[:, None]),
    Conv2d: LayerKind(
        _own_weight,
        input_axis=-3,
        spread=_spread_over_kernels,
        computes_with=("forward", "_convolve"),
    ),
    Embedding: LayerKind(_own_weight, is_table=True),
    PositionalEmbedding: LayerKind(_own_weight, is_table=True),
    TiedHead: LayerKind(
        lambda head: head.embedding.weight, spread=lambda _, norms: norms[None], is_table=True
    ),
}
"""Layers by their class; of its subclasses those that inherit how they compute."""


def kind_of(layer: Any) -> LayerKind | None:
    """Give the kind of a layer; None for those that hold no weight, or that nobody knows."""
    for base, kind in KINDS.items():
        if isinstance(layer, base) and all(
            getattr(type(layer), name) is getattr(base, name) for name in kind.computes_with
        ):
            return kind
    return None


def find_prunables(
    model: Any, *, keep: Iterable[str] = (), embeddings: bool = False
) -> tuple[list[Prunable], list[Skipped]]:
    """Give the weights that can be pruned, each once, and the layers that hold others.

    A weight is left alone where one of the layers that hold it is.
    """
    modules: Mapping[str, Any] = adapter_for(model).modules(model)
    names = {id(tensor): name for name, tensor in named_tensors(model).items()}
    found: dict[int, Prunable] = {}
    skipped: list[Skipped] = []
    for path, layer in modules.items():
        kind = kind_of(layer)
        if kind is None:
            reason = _why_unknown(layer)
            skipped += [Skipped(path, reason)] if reason else []
            continue
        weight = kind.weight(layer)
        if id(weight) not in names:
            raise ModelError(f"layer {path!r} computes with a weight that the model does not hold")
        # two tensors on one array are one weight
        prunable = found.setdefault(id(weight.data), _prunable(names[id(weight)], weight))
        reason = why_kept(path, keep) or (TABLE if kind.is_table and not embeddings else "")
        if "forward" in vars(layer):
            reason = reason or "its forward was replaced on this object by another function"
        prunable.reasons[path] = reason or _why_not(weight.data)
    for path, layer in modules.items():
        if kind_of(layer) is None:
            for _, tensor in own_tensors(layer):
                if id(tensor.data) in found:
                    found[id(tensor.data)].leave(
                        f"it shares its weight with {path!r}, which is not pruned"
                    )
    return list(found.values()), skipped


def _prunable(name: str, weight: Tensor) -> Prunable:
    zeros = weight.data.size - int(np.count_nonzero(weight.data))
    return Prunable(name, weight, weight.data.size, zeros, weight.shape, {})


def check_rankable(prunables: Iterable[Prunable]) -> None:
    """Raise if a weight that is to be pruned holds what is neither small nor large."""
    for each in prunables:
        if not each.is_left and not np.isfinite(each.weight.data).all():
            raise SettingError(each.not_finite)


def _why_not(weight: Array) -> str:
    if weight.dtype.kind != "f":
        return f"its weight holds {weight.dtype}, no floats"
    return "" if weight.size else "its weight is empty"


def _why_unknown(layer: Any) -> str:
    """Say why a layer that is in no table is left alone; nothing if it holds no numbers itself."""
    own = [tensor for _, tensor in own_tensors(layer)]
    if not own:
        return ""
    name, count = type(layer).__name__, sum(each.data.size for each in own)
    packed = [each.data.dtype for each in own if each.data.dtype.kind != "f" and each.data.ndim]
    if packed:
        return (
            f"{name} holds its weight in another form ({packed[0]}); prune the float model that "
            "it was made from"
        )
    base = next((known for known in KINDS if isinstance(layer, known)), None)
    if base is not None:
        return f"a {name} is a {base.__name__} that may compute something else"
    return f"{name} is not a layer that is pruned; its {count:,} numbers stay"
