"""Linear layers, dropout and containers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tinytorch.core import operations
from tinytorch.core.activations import GELU, LogSoftmax, ReLU, Sigmoid, Softmax, Tanh
from tinytorch.core.kernels import Array
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.tensor import Parameter, Tensor, apply
from tinytorch.errors import SettingError, ShapeError

__all__ = [
    "GELU",
    "Dropout",
    "Linear",
    "LogSoftmax",
    "Module",
    "Parameter",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Softmax",
    "Tanh",
]

Product = tuple[str, tuple[Any, ...], dict[str, Any]]
"""The kernel of a layer that is one product, what it takes after x, and its settings."""
Seed = np.random.Generator | int | None
"""Where random numbers come from: a generator, a seed for one, or None for a fresh one."""


def uniform(shape: tuple[int, ...], fan_in: int, rng: Seed) -> Array:
    """Draw weights between -1/sqrt(fan_in) and 1/sqrt(fan_in), in float32."""
    bound = 1 / math.sqrt(max(1, fan_in))
    return np.random.default_rng(rng).uniform(-bound, bound, shape).astype(np.float32)


class Linear(Module):
    """x @ weight + bias for x of shape (..., in_features); weight is (in, out)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, rng: Seed = None
    ) -> None:
        if in_features < 1 or out_features < 1:
            raise SettingError(f"Linear needs sizes of at least 1, got {in_features, out_features}")
        self.in_features = in_features
        self.out_features = out_features
        rng = np.random.default_rng(rng)
        self.weight = Parameter(uniform((in_features, out_features), in_features, rng))
        self.bias = Parameter(uniform((out_features,), in_features, rng)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        if x.data.ndim == 0 or x.data.shape[-1] != self.in_features:
            raise ShapeError(f"{self!r} needs input (..., {self.in_features}), got {x.shape}")
        if self.bias is None:
            return apply(operations.Linear(), x, self.weight)
        return apply(operations.Linear(), x, self.weight, self.bias)

    def product(self) -> Product:
        """Return the kernel that computes this layer, and what it takes after x."""
        return "linear", (self.weight.data, None if self.bias is None else self.bias.data), {}

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Dropout(Module):
    """Zero each element with probability `p` while training, and scale the rest by 1 / (1 - p)."""

    def __init__(self, p: float = 0.5, *, rng: Seed = None) -> None:
        if not 0 <= p <= 1:
            raise SettingError(f"dropout probability must be in [0, 1], got {p}")
        self.p = p
        self.rng = np.random.default_rng(rng)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        check_floating_point(self, x)
        if self.p == 1:
            return x * 0.0
        keep = self.rng.random(x.shape, dtype=np.float32) >= self.p
        return x * Tensor(keep.astype(x.dtype) / x.dtype.type(1 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Sequential(Module):
    """Layers one after the other."""

    def __init__(self, *layers: Any) -> None:
        if len(layers) == 1 and isinstance(layers[0], (list, tuple)):
            layers = tuple(layers[0])
        for number, layer in enumerate(layers):
            if isinstance(layer, type) or not callable(layer):
                raise SettingError(
                    f"layer {number} of Sequential is {layer!r}, which is not a layer"
                    + ("; write the brackets: ReLU()" if isinstance(layer, type) else "")
                )
        self.layers: list[Any] = list(layers)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> Any:
        return self.layers[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)
