"""What a tensor of PyTorch is made of: the buffers that it holds, and its description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tinytorch.adapters.records import TensorSpec

__all__ = ["as_spec", "flat_tensors", "held_bytes", "parts_of", "storage_of"]

COMPRESSED_ROWS = (torch.sparse_csr, torch.sparse_bsr)
COMPRESSED_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Give the plain tensors behind one: the values and indices of a sparse one, for example."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in parts_of(getattr(tensor, name))]
    if tensor.layout == torch.strided:
        return [tensor]
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in COMPRESSED_ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in COMPRESSED_COLUMNS:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def held_bytes(tensor: torch.Tensor) -> int:
    """Give the bytes that are really there: a sparse or expanded tensor has fewer than elements."""
    total = 0
    for part in parts_of(tensor):
        nbytes = part.numel() * part.element_size()
        storage = storage_of(part)
        total += nbytes if storage is None else min(nbytes, storage.nbytes())
    return total


def storage_of(tensor: torch.Tensor) -> Any:
    """Give the storage of a tensor, or None where there is none (sparse, packed, fake)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def as_spec(tensor: torch.Tensor, *, is_view: bool = False) -> TensorSpec:
    """Describe a tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        sizes = tuple(tuple(row) for row in tensor._nested_tensor_size().tolist())
        spec = TensorSpec((), dtype, 0, is_view, sizes)
        return TensorSpec((), dtype, spec.size * tensor.element_size(), is_view, sizes)
    stored = None
    if tensor.layout not in (torch.strided, torch._mkldnn):  # type: ignore[attr-defined]
        stored = parts_of(tensor)[-1].numel()
    return TensorSpec(tuple(tensor.shape), dtype, held_bytes(tensor), is_view, stored=stored)


def flat_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in the arguments or results of an operator."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from flat_tensors(item)
    elif isinstance(value, dict):
        yield from flat_tensors(list(value.values()))
