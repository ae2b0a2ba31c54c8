"""Layers that get smaller weights than they were built with, as after channels were removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import named_tensors
from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.backends import Array
from tinytorch.perf.compression.trimming import knows_its_size

__all__ = ["why_not_resized"]


def why_not_resized(model: Any, arrays: Mapping[str, Array]) -> str:
    """Say why the tensors of a model cannot take the shapes of these arrays; nothing if they can.

    Layers only become smaller, and only those that know their size from their weights.
    """
    modules, tensors = adapter_for(model).modules(model), named_tensors(model)
    for name, array in arrays.items():
        shape = tensors[name].shape
        layer = modules[name.rpartition(".")[0]]
        if array.ndim != len(shape) or any(
            new > old for new, old in zip(array.shape, shape, strict=True)
        ):
            return f"{name!r} has shape {array.shape}, larger than {shape} of the model"
        if not knows_its_size(layer):
            return (
                f"{name!r} has shape {array.shape}, the model {shape}, and a "
                f"{type(layer).__name__} cannot be resized; build the model with this size"
            )
    return _why_inconsistent(modules, arrays)


def _why_inconsistent(modules: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """Say which layer would not fit together within itself. Between layers, a call tells."""

    def shape_of(path: str, name: str) -> tuple[int, ...]:
        full = f"{path}.{name}" if path else name
        if full in arrays:
            return arrays[full].shape
        tensor = getattr(modules[path], name, None)
        return () if tensor is None else tuple(tensor.shape)

    for path in sorted({name.rpartition(".")[0] for name in arrays}):
        layer = modules[path]
        weight, bias = shape_of(path, "weight"), shape_of(path, "bias")
        outputs = weight[1] if hasattr(layer, "in_features") else weight[0]
        others = [bias, *(shape_of(path, name) for name in ("running_mean", "running_var"))]
        if any(each not in ((), (outputs,)) for each in others):
            return f"the weight of {path!r} has {outputs} outputs, but its other numbers do not"
    for path, layer in modules.items():
        if isinstance(layer, MultiHeadAttention):
            prefix = f"{path}." if path else ""
            widths = {shape_of(f"{prefix}{name}_proj", "weight")[1] for name in "qkv"}
            mixed = shape_of(f"{prefix}out_proj", "weight")[0]
            if widths != {mixed} or mixed % layer.head_dim:
                return f"{path!r} would not have whole heads of {layer.head_dim} numbers"
    return ""
