"""Values of PyTorch: tensors as arrays, copies of them, and a model's state in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tinytorch.adapters.values import Array
from tinytorch.core.files import write_atomically
from tinytorch.errors import BackendError, CheckpointError

__all__ = ["as_arrays", "copied_tensor", "merged_state", "single", "write_state"]

PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""What a safetensors file can hold; other classes keep their numbers somewhere else."""


def as_arrays(tensor: torch.Tensor) -> tuple[Array, ...]:
    """Copy a tensor to the CPU as an array, a ragged one as several.

    What NumPy cannot hold (bfloat16, numbers of eight bits) and half precision become float32,
    quantized numbers what they stand for, sparse tensors dense.
    """
    if tensor.is_meta:
        raise BackendError(
            "the output is on the meta device, which computes nothing; run the model on a device "
            "that does"
        )
    tensor = tensor.detach()
    if tensor.is_nested:
        return tuple(array for part in tensor.unbind() for array in as_arrays(part))
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu()
    if tensor.is_floating_point() and tensor.dtype != torch.float64:
        tensor = tensor.float()
    elif tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    return (np.array(tensor.resolve_conj().resolve_neg().numpy()),)


def copied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with its memory layout; axes along which memory repeats go on doing so."""
    part = single(tensor)
    twin = part.clone(memory_format=torch.preserve_format)
    if part.shape != tensor.shape:
        twin = twin.expand(tensor.shape)
    return twin.requires_grad_(tensor.requires_grad)


def single(tensor: torch.Tensor) -> torch.Tensor:
    """Give a view without the axes along which memory repeats, so that it can be written to."""
    tensor = tensor.detach()
    if tensor.layout == torch.strided and not tensor.is_nested:
        for axis, step in enumerate(tensor.stride()):
            tensor = tensor.narrow(axis, 0, 1) if step == 0 and tensor.shape[axis] > 1 else tensor
    return tensor


# ---------------------------------------------------------------- files


def merged_state(roots: Iterable[tuple[str, torch.nn.Module]]) -> dict[str, Any]:
    """Give what `state_dict` says of some modules in one dictionary, under their paths."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in roots
        for name, value in module.state_dict().items()
    }


def write_state(state: Mapping[str, Any], path: Path) -> None:
    """Write a state to one file, atomically: safetensors, or what `torch.save` writes.

    A tensor under several names is written once; the file's metadata has the other names. The
    second format is for what safetensors cannot hold, such as packed weights.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with write_atomically(path) as temporary:
            if not all(_is_plain(value) for value in state.values()):
                torch.save(dict(state), temporary)
                return
            tensors, names = _each_once(state)
            save_file(tensors, temporary, metadata=names)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def _is_plain(value: Any) -> bool:
    return (
        type(value) in PLAIN_CLASSES
        and value.layout == torch.strided
        and not (value.is_quantized or value.is_nested or value.is_meta)
        and value.dtype != torch.complex32
    )


def _each_once(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Give tensors ready for safetensors, and for every further name the first one."""
    first: dict[Any, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    names: dict[str, str] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        known = first.setdefault(place, name) if tensor.numel() else name
        if known != name:
            names[name] = known
            continue
        fills_storage = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        owns = tensor.is_contiguous() and fills_storage
        tensors[name] = tensor if owns else tensor.clone(memory_format=torch.contiguous_format)
    return tensors, names
