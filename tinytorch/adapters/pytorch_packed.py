"""Weights that quantized layers of PyTorch keep in objects of C++: what is in them, in bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

__all__ = [
    "PackedWeight",
    "is_held_twice",
    "packed_objects",
    "packed_weights",
    "packing_of",
    "unpacked_bytes",
]

BYTES_PER_STEP = 8
"""A scale and a zero point as kernels hold them, four bytes each."""
HALF_BYTES = (torch.quint4x2,)

KERNELS = {
    "Conv2dPackedParamsBase": torch.ops.quantized.conv2d,
    "Conv3dPackedParamsBase": torch.ops.quantized.conv3d,
    "LinearPackedParamsBase": torch.ops.quantized.linear,
}
"""The class of packed weights -> what computes with them."""

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
    oneDNN keeps the unpacked values beside the packed ones, and they count twice. What FBGEMM adds
    is not seen: padding and one sum per output (a few percent). An object that cannot be unpacked
    raises what its own code raises.
    """
    found: list[PackedWeight] = []
    for name, packed in packed_objects(module):
        tensors = list(_tensors_of(packed))
        if not tensors:
            raise TypeError(f"{name} gives out no tensors when it is unpacked")
        size = sum(tensor.numel() for tensor in tensors)
        nbytes = sum(unpacked_bytes(tensor) for tensor in tensors)
        if is_held_twice(packed):
            nbytes += sum(
                each.numel() * each.element_size() for each in tensors if each.is_quantized
            )
        found.append((name, size, nbytes))
    return found


def packing_of(packed: torch.ScriptObject) -> str:
    """Return a text that is equal for weights that the same kernels have packed.

    The class is the same for all engines, and torch shows nobody which one has packed. So it is
    what the kernels answer to numbers that none of them takes, and each has an answer of its own.
    The text is for comparing with another such text; nothing may depend on what it says.
    """
    name = str(packed._type().name())  # type: ignore[attr-defined]
    inner = [packing_of(each) for each in _inner_objects(packed)]
    if name not in KERNELS:
        return " ".join([name, *inner])
    refused = torch._empty_affine_quantized(
        (1, 1, 1, 1), scale=1.0, zero_point=0, dtype=torch.qint32
    )
    try:
        KERNELS[name](refused, packed, 1.0, 0)
    except (RuntimeError, NotImplementedError) as error:
        return f"{name}: {(str(error).splitlines() or [''])[0]}"
    return name


def is_held_twice(packed: torch.ScriptObject) -> bool:
    """Return whether oneDNN has packed weights: it keeps the unpacked ones as well."""
    return packing_of(packed) in _packings_by_onednn()


@cache
def _packings_by_onednn() -> frozenset[str]:
    """Return how weights are packed by oneDNN alone; nothing where torch is built without it."""
    engines = torch.backends.quantized
    if "onednn" not in engines.supported_engines:
        return frozenset()
    before = engines.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight = torch.quantize_per_tensor(torch.ones(1, 1, 1, 1), 1.0, 0, torch.qint8)
        try:
            engines.engine = "onednn"
            pair = [1, 1]
            packed = (
                torch.ops.quantized.conv2d_prepack(weight, None, pair, [0, 0], pair, 1),
                torch.ops.quantized.linear_prepack(weight.reshape(1, 1), None),
            )
        except (RuntimeError, NotImplementedError):
            return frozenset()
        finally:
            engines.engine = before
    return frozenset(map(packing_of, packed))


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


def _inner_objects(packed: torch.ScriptObject) -> Iterator[torch.ScriptObject]:
    """Yield the packed weights that another object holds, such as those of a recurrent cell."""
    try:
        state = packed.__getstate__()
    except (RuntimeError, TypeError):  # it tells nobody
        return
    found = [state]
    while found:
        each = found.pop()
        if isinstance(each, torch.ScriptObject):
            yield each
        elif isinstance(each, (list, tuple)):
            found.extend(each)


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, torch.ScriptObject):
        yield from _leaves(value.__getstate__())
