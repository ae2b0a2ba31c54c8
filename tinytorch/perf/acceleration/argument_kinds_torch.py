"""What calls must have in common to be replayed as one. Imported after torch."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any

import torch
from torch import nn

from tinytorch.errors import ModelError

__all__ = ["UnknownArgumentError", "kind_of_arguments"]

TENSORS = (torch.Tensor, nn.Parameter)
FRACTIONS = (float, complex)
PLAIN = (bool, int, str, bytes, type(None), Enum)
CONSTANTS = (torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout)


class UnknownArgumentError(ModelError):
    """An argument of which nobody can tell whether it is the same as in another call."""


def kind_of_arguments(value: Any, tensors: list[torch.Tensor]) -> Hashable:
    """Give what calls must have in common to be the same graph, and collect the tensors.

    Tensors count by shape, strides, dtype and device, everything else by its value.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in TENSORS:
            raise UnknownArgumentError(
                f"an argument is a {type(value).__name__}, a tensor of a class of its own"
            )
        if value.layout != torch.strided or value.is_nested or value.is_quantized:
            raise UnknownArgumentError("an argument is a sparse, ragged or quantized tensor")
        tensors.append(value)
        return (value.shape, value.stride(), value.dtype, value.device)
    if isinstance(value, FRACTIONS):
        return (type(value), repr(value))  # which tells -0.0 from 0.0
    if isinstance(value, PLAIN + CONSTANTS):
        return (type(value), value)
    if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return (type(value), *[kind_of_arguments(each, tensors) for each in value])
    if isinstance(value, dict):
        items = value.items()
        return (type(value), *[(name, kind_of_arguments(each, tensors)) for name, each in items])
    raise UnknownArgumentError(
        f"an argument is a {type(value).__name__}, of which nobody can tell what it holds"
    )
