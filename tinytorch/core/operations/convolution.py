"""Convolution and pooling over images (batch, channels, height, width)."""

from __future__ import annotations

from typing import Any

from tinytorch.core.backends import Array
from tinytorch.core.backends.reference_spatial import Pair
from tinytorch.core.dispatch import run
from tinytorch.core.operations.operation import Gradients, Operation


class Conv2d(Operation):
    def __init__(self, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> None:
        self.settings: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }

    def forward(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        self.saved = x, weight
        return run("conv2d", x, weight, bias, **self.settings)

    def backward(self, grad: Array) -> Gradients:
        x, weight = self.saved
        grad_x = grad_weight = grad_bias = None
        if self.wants(0):
            grad_x = run(
                "conv2d_backward_input", grad, weight, input_shape=x.shape, **self.settings
            )
        if self.wants(1):
            grad_weight = run(
                "conv2d_backward_weight", grad, x, weight_shape=weight.shape, **self.settings
            )
        if self.wants(2):
            grad_bias = run("sum", grad, axis=(0, 2, 3))
        return (grad_x, grad_weight, grad_bias)[: len(self.inputs)]


class MaxPool2d(Operation):
    def __init__(self, kernel: Pair, stride: Pair, padding: Pair) -> None:
        self.settings = {"kernel": kernel, "stride": stride, "padding": padding}

    def forward(self, x: Array) -> Array:
        output = run("max_pool2d", x, **self.settings)
        self.saved = x, output
        return output

    def backward(self, grad: Array) -> Gradients:
        return (run("max_pool2d_backward", grad, *self.saved, **self.settings),)


class AvgPool2d(Operation):
    def __init__(self, kernel: Pair, stride: Pair, padding: Pair) -> None:
        self.settings = {"kernel": kernel, "stride": stride, "padding": padding}

    def forward(self, x: Array) -> Array:
        return run("avg_pool2d", x, **self.settings)

    def backward(self, grad: Array) -> Gradients:
        shape = self.inputs[0].shape
        return (run("avg_pool2d_backward", grad, input_shape=shape, **self.settings),)
