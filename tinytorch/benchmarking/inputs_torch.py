"""Inputs for PyTorch models. Imported only after torch was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from tinytorch.core.tensor import Tensor


def torch_input(value: Any, modules: Iterable[Any]) -> Any:
    """Convert an array to a tensor on the model's device, floats in the dtype of its parameters.

    Tensors of PyTorch are given as they are: their owner has chosen dtype and device.
    """
    array = value.data if isinstance(value, Tensor) else value
    if isinstance(array, torch.Tensor) or not isinstance(array, np.ndarray):
        return value
    tensor = torch.from_numpy(np.array(array))  # a copy, since PyTorch warns of read-only memory
    home = _home(modules)
    if tensor.is_floating_point() and home.is_floating_point():
        tensor = tensor.to(home.dtype)
    return tensor.to(home.device)


def _home(modules: Iterable[Any]) -> torch.Tensor:
    """Return the first floating-point parameter or buffer of a model, or else any of them."""
    held = [
        tensor
        for module in modules
        if isinstance(module, torch.nn.Module)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    ]
    floating = [tensor for tensor in held if tensor.is_floating_point()]
    return next(iter((*floating, *held)), torch.empty(0))
