"""Quantizer: what a quantizer of torch or torchao takes, and what it makes of a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tinytorch.perf.quantization.layers_torch import weights_of

__all__ = ["Quantizer", "Settings", "shape_of", "weight_of"]

Settings = Mapping[str, Any]
"""The settings of one step of a plan: mode, bits, device, group_size, input_range, ..."""


def _takes_all(layer: Any, settings: Settings) -> str:
    return ""


@dataclass(frozen=True)
class Quantizer:
    """One quantizer, for one kind of layer.

    `carry_out` gives the layer to put in the place of a float one; `weight_bytes` counts from the
    shapes what then stands for its weights. `needs_ranges`: somebody must have watched the layer;
    `is_symmetric`: zero is in the middle of the range of its inputs.
    """

    by: str
    mode: str
    carry_out: Callable[[Any, Settings], nn.Module]
    weight_bytes: Callable[[Any, Settings], int]
    bits: int = 8
    why_not: Callable[[Any, Settings], str] = _takes_all
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    needs_ranges: bool = False
    is_symmetric: bool = False


def weight_of(layer: nn.Module) -> nn.Parameter:
    """Give the weight of a layer, the first one if it has several."""
    return next(iter(weights_of(layer).values()))


def shape_of(layer: nn.Module) -> tuple[int, ...]:
    """Give the shape of the weight."""
    return tuple(weight_of(layer).shape)
