"""A linear layer with its activation as one kernel."""

from __future__ import annotations

from typing import Any

from tinytorch.core.activations import GELU, ReLU, Sigmoid, Tanh
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.operations import products
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import ShapeError

__all__ = ["FusedLinear", "InFront", "activation_word"]


class FusedLinear(Module):
    """activation(x @ weight + bias) in one kernel; a `Linear` and what came after it."""

    def __init__(self, linear: Linear, activation: Module) -> None:
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias
        self.training = linear.training
        self.activation = activation_word(activation)

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        if x.ndim == 0 or x.shape[-1] != self.in_features:
            raise ShapeError(f"{self!r} needs input (..., {self.in_features}), got {x.shape}")
        parameters = (self.weight,) if self.bias is None else (self.weight, self.bias)
        return apply(products.Linear(self.activation), x, *parameters)

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.out_features}"
        return f"{sizes}, bias={self.bias is not None}, activation={self.activation!r}"


class InFront(Module):
    """What is left of a layer that the one in front of it computes, so that names stay."""

    def forward(self, x: Any) -> Any:
        return x


WORDS: dict[type[Module], str] = {ReLU: "relu", Tanh: "tanh", Sigmoid: "sigmoid"}


def activation_word(activation: Module) -> str:
    """Give what the kernel calls an activation, or "" where it does not have it."""
    if type(activation) is GELU:
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    return WORDS.get(type(activation), "")
