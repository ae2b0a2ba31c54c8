"""Activation layers."""

from __future__ import annotations

from tinytorch.core import operations
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import SettingError

__all__ = ["GELU", "LogSoftmax", "ReLU", "SiLU", "Sigmoid", "Softmax", "Tanh"]


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        return apply(operations.ReLU(), x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        return apply(operations.Sigmoid(), x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        return apply(operations.Tanh(), x)


class GELU(Module):
    """x times the normal distribution function of x.

    `approximate` is "tanh" (the form of GPT-2, default here) or "none" (through erf, exact).
    """

    def __init__(self, approximate: str = "tanh") -> None:
        if approximate not in ("tanh", "none"):
            raise SettingError(f"approximate must be 'tanh' or 'none', got {approximate!r}")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        return apply(operations.GELU(self.approximate), x)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """x times the sigmoid of x, also called Swish."""

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        return apply(operations.SiLU(), x)


class Softmax(Module):
    """exp(x) / sum(exp(x)) along an axis, safe for inputs of any size."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor, dim: int | None = None) -> Tensor:
        check_floating_point(self, x)
        return apply(operations.Softmax(self.dim if dim is None else dim), x)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """The logarithm of the softmax, computed without leaving the logarithm."""

    def forward(self, x: Tensor, dim: int | None = None) -> Tensor:
        check_floating_point(self, x)
        return apply(operations.LogSoftmax(self.dim if dim is None else dim), x)
