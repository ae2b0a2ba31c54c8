"""The layers of PyTorch whose weights can become zero, one by one. Imported after torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tinytorch.transforms.prune.layers import LayerKind, spread_over_kernels
from tinytorch.transforms.support.weights_torch import transposed_linear


def _weight(layer: Any) -> torch.Tensor | None:
    weight: torch.Tensor | None = layer._parameters.get("weight")
    return weight


def _convolution(axes: int) -> LayerKind:
    return LayerKind(
        _weight,
        input_axis=-1 - axes,
        spread=spread_over_kernels,
        computes_with=("forward", "_conv_forward"),
    )


KINDS: dict[type, LayerKind] = {
    nn.Linear: LayerKind(_weight, spread=lambda _, norms: norms[None]),
    nn.Conv1d: _convolution(1),
    nn.Conv2d: _convolution(2),
    nn.Conv3d: _convolution(3),
    nn.Embedding: LayerKind(_weight, is_table=True),
}
TRANSPOSED = LayerKind(_weight, output_axis=1, spread=lambda _, norms: norms[:, None])
"""The `Conv1D` of transformers: a linear layer with a weight (inputs, outputs)."""


def kinds() -> Mapping[type, LayerKind]:
    """Return the table, with what transformers adds where that is imported."""
    transposed = transposed_linear()
    return KINDS if transposed is None else {**KINDS, transposed: TRANSPOSED}
