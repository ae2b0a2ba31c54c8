"""Weights that quantized layers of PyTorch keep in objects of C++: what is in them, in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["PackedWeight", "packed_objects", "packed_weights", "unpacked_bytes"]

BYTES_PER_STEP = 8
"""A scale and a zero point as kernels hold them, four bytes each."""
HALF_BYTES = (torch.quint4x2,)

PackedWeight = tuple[str, int, int]
"""The name inside of the layer, how many numbers, how many bytes."""


def packed_objects(module: Any) -> Iterator[tuple[str, torch.ScriptObject]]:
    """Yield the objects of C++ that a layer itself holds, with the names of its attributes."""
    for name, value in getattr(module, "__dict__", {}).items():
        if isinstance(value, torch.ScriptObject) and not isinstance(value, torch._C.ScriptModule):
            yield name, value


def packed_weights(module: Any) -> list[PackedWeight]:
    """Give what a layer keeps in objects of C++, by their unpacked size.

    That is the values, a scale and a zero point of four bytes for each channel, and the bias.
    What the engine adds is not seen: FBGEMM adds padding and one sum per output (a few percent),
    oneDNN keeps the unpacked weights beside the packed ones. An object that cannot be unpacked
    raises what its own code raises.
    """
    found: list[PackedWeight] = []
    for name, packed in packed_objects(module):
        tensors = list(_tensors_of(packed))
        if not tensors:
            raise TypeError(f"{name} gives out no tensors when it is unpacked")
        size = sum(tensor.numel() for tensor in tensors)
        found.append((name, size, sum(unpacked_bytes(tensor) for tensor in tensors)))
    return found


def unpacked_bytes(tensor: torch.Tensor) -> int:
    """Count the values of a tensor and, if it is quantized, its scales and zero points."""
    nbytes = tensor.numel() * tensor.element_size()
    if not tensor.is_quantized:
        return nbytes
    if tensor.dtype in HALF_BYTES:
        nbytes = -(-tensor.numel() // 2)
    per_tensor = tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
    steps = 1 if per_tensor else tensor.q_per_channel_scales().numel()
    return nbytes + BYTES_PER_STEP * steps


def _tensors_of(packed: torch.ScriptObject) -> Iterator[torch.Tensor]:
    """Yield weights and biases, each once; whole numbers say how, not what, it computes."""
    seen: set[int] = set()
    for leaf in _leaves(packed):
        if (leaf.is_quantized or leaf.is_floating_point()) and leaf.data_ptr() not in seen:
            seen.add(leaf.data_ptr())
            yield leaf


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, torch.ScriptObject):
        yield from _leaves(value.__getstate__())
