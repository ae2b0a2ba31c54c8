"""Layers in two thin parts: what a linear layer or a convolution becomes at a lower rank.

They have what the layers had whose places they take, so that code which reads the `weight` or
`in_features` of a layer finds them.
"""

from __future__ import annotations

from typing import Any

from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Parameter, Tensor

__all__ = ["FactoredConv2d", "FactoredLinear", "factored_layer"]


class _Factored(Sequential):
    """Two layers, of which the second adds the bias."""

    @property
    def bias(self) -> Tensor | None:
        bias: Tensor | None = self.layers[1].bias
        return bias


class FactoredLinear(_Factored):
    """A `Linear` as two thin ones, (in, rank) and (rank, out)."""

    def __init__(self, layer: Linear, first: Parameter, second: Parameter) -> None:
        rank = first.shape[1]
        one = Linear(layer.in_features, rank, bias=False, rng=0)
        other = Linear(rank, layer.out_features, bias=False, rng=0)
        one.weight, other.weight, other.bias = first, second, layer.bias
        super().__init__(one, other)

    @property
    def weight(self) -> Tensor:
        """The product (in, out) of both weights, made anew each time: nobody holds it."""
        return self.layers[0].weight @ self.layers[1].weight

    # those of the parts, which may be resized
    in_features = property(lambda self: self.layers[0].in_features)
    out_features = property(lambda self: self.layers[1].out_features)


class FactoredConv2d(_Factored):
    """A `Conv2d` without groups as one to `rank` channels and one of 1x1."""

    def __init__(self, layer: Conv2d, first: Parameter, second: Parameter) -> None:
        rank = len(first.data)
        one = Conv2d(
            layer.in_channels,
            rank,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            dilation=layer.dilation,
            bias=False,
            rng=0,
        )
        other = Conv2d(rank, layer.out_channels, 1, bias=False, rng=0)
        one.weight, other.weight, other.bias = first, second, layer.bias
        super().__init__(one, other)

    @property
    def weight(self) -> Tensor:
        """The kernels (out, in, height, width), made anew each time: nobody holds them."""
        first, second = self.layers[0].weight, self.layers[1].weight
        rank = first.shape[0]
        product = second.reshape(-1, rank) @ first.reshape(rank, -1)
        return product.reshape(-1, *first.shape[1:])

    in_channels = property(lambda self: self.layers[0].in_channels)
    out_channels = property(lambda self: self.layers[1].out_channels)
    kernel_size = property(lambda self: self.layers[0].kernel_size)
    stride = property(lambda self: self.layers[0].stride)
    padding = property(lambda self: self.layers[0].padding)
    dilation = property(lambda self: self.layers[0].dilation)
    groups = property(lambda self: self.layers[0].groups)


def factored_layer(
    layer: Any, first: Parameter, second: Parameter
) -> FactoredLinear | FactoredConv2d:
    """Put two weights into the place of a layer's; its bias, the same object, is in the second."""
    if isinstance(layer, Linear):
        return FactoredLinear(layer, first, second)
    return FactoredConv2d(layer, first, second)
