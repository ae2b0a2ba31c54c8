"""Fake quantization: layers that compute in floats with the rounding of a quantized layer.

Rounding has no useful derivative: it is 0 nearly everywhere. The straight-through estimator (Bengio
et al., 2013) lets gradients pass as if there were no rounding, but not where values are cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.operations import convolution, products
from tinytorch.core.spatial import Conv2d, on_batch
from tinytorch.core.tensor import Tensor, apply
from tinytorch.perf.quantization.packed_weight import quantize_weight
from tinytorch.perf.quantization.quantized_conv2d import kernel_matrix

__all__ = ["FAKES", "FakeQuantizedConv2d", "FakeQuantizedLinear", "straight_through"]


def straight_through(x: Tensor, rounded: Array, inside: Array | None = None) -> Tensor:
    """Give the rounded values, with the gradient of x where it lies `inside` of the range."""
    if inside is None:
        return x + Tensor(rounded - x.data)
    kept = x * Tensor(inside.astype(x.dtype))
    return kept + Tensor(rounded - kept.data)


class _FakeQuantized(Module):
    """Holds a float layer, and the settings of the step that will quantize it."""

    def __init__(self, layer: Any, settings: Mapping[str, Any]) -> None:
        self.layer = layer
        self.settings = dict(settings)
        self.training = layer.training

    def _inputs(self, x: Tensor) -> Tensor:
        """Round inputs as the layer will: not at all, by a fixed step, or each row by its own."""
        mode = self.settings["mode"]
        if mode == "weight_only":
            return x
        if mode == "static":
            scale = np.float32(self.settings["input_scale"])
            zero_point = self.settings["input_zero_point"]
            whole = np.rint(x.data / scale)
            inside = (whole >= -128 - zero_point) & (whole <= 127 - zero_point)
            cut = np.clip(whole, -128 - zero_point, 127 - zero_point)
            return straight_through(x, (cut * scale).astype(x.dtype), inside)
        axes = (-1,) if isinstance(self.layer, Linear) else (-3, -2, -1)  # a row, or an image
        largest = np.abs(x.data).max(axis=axes, keepdims=True, initial=0)
        step = np.where(largest > 0, largest / 127, 1).astype(x.dtype)
        return straight_through(x, np.rint(x.data / step) * step)

    def _weight(self, matrix: Array) -> Array:
        bits, group_size = self.settings["bits"], self.settings.get("group_size")
        return quantize_weight(matrix, bits=bits, group_size=group_size).dequantize()


class FakeQuantizedLinear(_FakeQuantized):
    """A linear layer that learns to live with rounding."""

    layer: Linear

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        rounded = straight_through(weight, self._weight(weight.data))
        inputs = (self._inputs(x), rounded)
        bias = () if self.layer.bias is None else (self.layer.bias,)
        return apply(products.Linear(), *inputs, *bias)


class FakeQuantizedConv2d(_FakeQuantized):
    """A convolution that learns to live with rounding."""

    layer: Conv2d

    def forward(self, x: Tensor) -> Tensor:
        return on_batch(self, x, self.layer.in_channels, self._convolve)

    def _convolve(self, x: Tensor) -> Tensor:
        conv = self.layer
        matrix = self._weight(kernel_matrix(conv.weight.data))
        rounded = straight_through(conv.weight, matrix.T.reshape(conv.weight.shape))
        operation = convolution.Conv2d(conv.stride, conv.padding, conv.dilation, conv.groups)
        bias = () if conv.bias is None else (conv.bias,)
        return apply(operation, self._inputs(x), rounded, *bias)


FAKES: dict[type[Module], type[_FakeQuantized]] = {
    Linear: FakeQuantizedLinear,
    Conv2d: FakeQuantizedConv2d,
}
"""The layers whose rounding is trained; tables and tied heads are rounded after it."""
