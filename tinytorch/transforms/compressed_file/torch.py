"""What a compressed file holds of a PyTorch model. Imported only after torch was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from tinytorch.core.kernels import Array
from tinytorch.errors import SettingError
from tinytorch.models.adapter import held_by, owner_of
from tinytorch.models.pytorch_tensors import merged_state
from tinytorch.transforms.compressed_file import (
    BFLOAT16,
    as_floats,
    beyond_reach,
    check_fits,
    raise_problems,
)

COMPILED = "_orig_mod."
"""What torch.compile puts before the names of the model inside."""


def torch_arrays(model: Any) -> dict[str, Array]:
    """Return the state of a model as arrays, each once."""
    return {name: _as_array(name, tensor) for name, tensor in _each_once(model).items()}


def without_wrappers(name: str) -> str:
    """Return the name that a tensor has in a model which was not compiled."""
    return name.replace(COMPILED, "")


def fill_torch(model: Any, arrays: Mapping[str, Array]) -> None:
    """Copy arrays into the state of a model; nothing changes unless everything fits."""
    state = _each_once(model)
    check_fits(arrays, state, can_hold=_can_hold)
    cast = {name: _as_tensor(arrays[name]).to(tensor.dtype) for name, tensor in state.items()}
    raise_problems(
        [
            problem
            for name, tensor in cast.items()
            for problem in beyond_reach(
                name, as_floats(arrays[name]), torch.isinf(tensor).numpy(), str(tensor.dtype)
            )
        ]
    )
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(cast[name])


def _can_hold(wanted: torch.dtype, given: np.dtype[Any]) -> bool:
    """Floats of other widths are converted; whole numbers must be the same."""
    if given.kind == "f" or given == BFLOAT16:
        return wanted.is_floating_point
    return str(wanted) == f"torch.{given.name}"


def _as_tensor(array: Array) -> torch.Tensor:
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _each_once(model: Any) -> dict[str, torch.Tensor]:
    """Return every tensor of the state under the first of its names."""
    owner = owner_of(model)
    is_module = isinstance(owner, torch.nn.Module)
    found = merged_state([("", owner)] if is_module else held_by(owner, torch.nn.Module))
    first: dict[Any, str] = {}
    state: dict[str, torch.Tensor] = {}
    for long_name, value in found.items():
        name = without_wrappers(long_name)
        if isinstance(value, (UninitializedParameter, UninitializedBuffer)):
            raise SettingError(f"{name!r} has no shape yet; call the model once before")
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            kind = value.layout if isinstance(value, torch.Tensor) else type(value).__name__
            raise SettingError(
                f"{name!r} is {kind}, which a compressed file does not hold; save the model as it "
                "was before it was packed or made sparse"
            )
        if value.is_meta or value.is_quantized:
            raise SettingError(
                f"{name!r} has no plain numbers (it is on the meta device, or packed)"
            )
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype, value.device)
        if not value.numel() or first.setdefault(place, name) == name:
            state[name] = value
    return state


def _as_array(name: str, tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.contiguous().view(torch.int16).numpy()
        return bits.copy().view(BFLOAT16)
    try:
        array: Array = tensor.numpy()
    except TypeError as error:
        raise SettingError(
            f"{name!r} holds {tensor.dtype}, which NumPy does not have; convert it to float32"
        ) from error
    return array.copy()
