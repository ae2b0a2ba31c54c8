"""How a PyTorch model lies in memory, is packed and is called: what a copy of it must share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tinytorch.adapters.adapter import Layout
from tinytorch.adapters.pytorch_packed import packed_objects, packing_of

__all__ = ["layout_of"]

ASPECTS: dict[str, Callable[[torch.Tensor], object]] = {
    "class": lambda tensor: type(tensor).__name__,
    "dtype": lambda tensor: tensor.dtype,
    "shape": lambda tensor: tuple(tensor.shape),
    "strides": lambda tensor: tensor.stride() if tensor.layout == torch.strided else None,
    "memory layout": lambda tensor: tensor.layout,
    "device": lambda tensor: tensor.device,
    "requires_grad": lambda tensor: tensor.requires_grad,
}
"""What decides which kernels a tensor is computed with, and how fast they are."""


def layout_of(
    modules: Mapping[str, Any], tensors: Iterable[tuple[str, torch.Tensor, bool]]
) -> Layout:
    """Return every aspect of every tensor, and how each layer is packed and called."""
    found: dict[tuple[str, str], object] = {}
    for name, tensor, _ in tensors:
        if not tensor.is_nested:
            found |= {(name, aspect): read(tensor) for aspect, read in ASPECTS.items()}
    for path, module in modules.items():
        own = getattr(module, "__dict__", {})
        if "forward" in own:
            found[path, "forward of its own"] = True
        if "dynamo_ctx" in own or own.get("_compiled_call_impl") is not None:
            found[path, "compiled code"] = True
        for name, packed in packed_objects(module):
            found[f"{path}.{name}" if path else name, "packed weights"] = packing_of(packed)
    return found
