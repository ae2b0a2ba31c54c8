"""Cutting indices out of the weights of a model, in place, with the sizes that layers know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.embeddings import Embedding
from tinytorch.core.layers import Linear
from tinytorch.core.spatial import BatchNorm2d, Conv2d
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.core import named_tensors
from tinytorch.transforms.support.channels import Place, Unit

Removal = Mapping[Place, tuple[int, ...]]
"""The indices that go, by axis of a weight."""
Lengths = Mapping[Place, int]
"""How long these axes were when that was planned."""


def joined(units: Iterable[Unit]) -> Removal:
    """Return everything that goes with some units, in order."""
    indices: dict[Place, set[int]] = {}
    for unit in units:
        for place, found in unit.items():
            indices.setdefault(place, set()).update(found)
    return {place: tuple(sorted(found)) for place, found in indices.items()}


def trim(model: Any, removal: Removal, lengths: Lengths | None = None) -> None:
    """Cut indices out of the weights, and let the layers know their new sizes."""
    _check(model, removal, lengths or {})
    tensors = named_tensors(model)
    for place, indices in removal.items():
        tensor = tensors[place.tensor]
        tensor.data = np.ascontiguousarray(np.delete(tensor.data, indices, axis=place.axis))
        tensor.grad = None
    let_layers_know(model)


def let_layers_know(model: Any) -> None:
    """Update the sizes of the layers of a model from the shapes of their weights."""
    for module in adapter_for(model).modules(model).values():
        for kind, sizes in SIZES.items():
            if isinstance(module, kind):
                vars(module).update(sizes(module))
        if _is_linear(module):
            vars(module).update(_sizes_of_linear(module))


def knows_its_size(layer: Any) -> bool:
    """Return whether a layer has a size that follows from the shape of its weights."""
    return _is_linear(layer) or isinstance(layer, tuple(SIZES))


def _is_linear(layer: Any) -> bool:
    return getattr(layer, "__dict__", {}).keys() >= {"in_features", "out_features", "weight"}


def zero_out(model: Any, removal: Removal) -> None:
    """Set the same indices to zero instead, which needs no other size."""
    _check(model, removal, {})
    tensors = named_tensors(model)
    for place, indices in removal.items():
        array = tensors[place.tensor].data.copy()
        np.moveaxis(array, place.axis, 0)[list(indices)] = 0
        tensors[place.tensor].data = array


def _check(model: Any, removal: Removal, lengths: Lengths) -> None:
    tensors = named_tensors(model)
    for place, indices in removal.items():
        tensor = tensors.get(place.tensor)
        length = tensor.shape[place.axis] if tensor is not None and place.axis < tensor.ndim else 0
        if max(indices) >= length or length != lengths.get(place, length):
            seen = "no such weight" if tensor is None else f"one of shape {tensor.shape}"
            wanted = f" of {lengths[place]}" if place in lengths else ""
            raise SettingError(
                f"index {max(indices)}{wanted} of axis {place.axis} of {place.tensor!r} is to be "
                f"removed, but the model has {seen}; make a plan for this model"
            )


def _sizes_of_linear(layer: Any) -> dict[str, int]:
    if layer.weight.ndim != 2:
        return {}
    return {"in_features": layer.weight.shape[0], "out_features": layer.weight.shape[1]}


def _sizes_of_attention(layer: MultiHeadAttention) -> dict[str, int]:
    """Count the heads by what the queries are made with, which may be two layers in one's place."""
    products = [each for each in layer.q_proj.modules() if isinstance(each, Linear)]
    if not products:
        return {}
    return {
        "embed_dim": products[0].weight.shape[0],
        "num_heads": products[-1].weight.shape[1] // layer.head_dim,
    }


def _sizes_of_convolution(layer: Conv2d) -> dict[str, int]:
    outputs, inputs = layer.weight.shape[:2]
    is_depthwise = layer.groups > 1
    groups = outputs if is_depthwise else 1  # other groups are never trimmed
    if is_depthwise and layer.groups != layer.out_channels:
        return {}
    return {"in_channels": inputs * groups, "out_channels": outputs, "groups": groups}


SIZES: dict[type, Callable[[Any], dict[str, int]]] = {
    Conv2d: _sizes_of_convolution,
    BatchNorm2d: lambda layer: {"num_features": layer.weight.shape[0]},
    Embedding: lambda layer: {"embedding_dim": layer.weight.shape[1]},
    MultiHeadAttention: _sizes_of_attention,
}
"""What a layer knows about its size, from the shape of its weights; beside what is linear."""
