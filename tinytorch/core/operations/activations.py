"""Activation functions."""

from __future__ import annotations

from typing import ClassVar

from tinytorch.core.backends import Array
from tinytorch.core.dispatch import run
from tinytorch.core.operations.operation import Gradients, Operation


class _FromOutput(Operation):
    """An activation whose derivative is a function of its output."""

    kind: ClassVar[str]

    def forward(self, x: Array) -> Array:
        self.saved = run(self.kind, x)
        return self.saved

    def backward(self, grad: Array) -> Gradients:
        return (run(f"{self.kind}_backward", grad, self.saved),)


class ReLU(_FromOutput):
    kind = "relu"


class Sigmoid(_FromOutput):
    kind = "sigmoid"


class Tanh(_FromOutput):
    kind = "tanh"


class GELU(Operation):
    def __init__(self, approximate: str) -> None:
        self.approximate = approximate

    def forward(self, x: Array) -> Array:
        self.saved = x
        return run("gelu", x, approximate=self.approximate)

    def backward(self, grad: Array) -> Gradients:
        return (run("gelu_backward", grad, self.saved, approximate=self.approximate),)


class _AlongAxis(_FromOutput):
    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        self.saved = run(self.kind, x, axis=self.axis)
        return self.saved

    def backward(self, grad: Array) -> Gradients:
        return (run(f"{self.kind}_backward", grad, self.saved, axis=self.axis),)


class Softmax(_AlongAxis):
    kind = "softmax"


class LogSoftmax(_AlongAxis):
    kind = "log_softmax"
