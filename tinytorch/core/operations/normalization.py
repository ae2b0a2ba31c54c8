"""Layer and batch normalisation with the statistics of the data at hand."""

from __future__ import annotations

from tinytorch.core.backends import Array
from tinytorch.core.dispatch import run
from tinytorch.core.operations.operation import Gradients, Operation


class LayerNorm(Operation):
    def __init__(self, eps: float) -> None:
        self.eps = eps

    def forward(self, x: Array, weight: Array, bias: Array) -> Array:
        output, mean, inverse = run("layer_norm", x, weight, bias, eps=self.eps)
        self.saved = x, weight, mean, inverse
        return output

    def backward(self, grad: Array) -> Gradients:
        gradients: Gradients = run("layer_norm_backward", grad, *self.saved)
        return gradients


class BatchNorm(Operation):
    """Normalise each channel; afterwards `mean` and `variance` hold the batch's statistics."""

    mean: Array
    variance: Array

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def forward(self, x: Array, weight: Array, bias: Array) -> Array:
        output, normalised, inverse, self.mean, self.variance = run(
            "batch_norm", x, weight, bias, eps=self.eps
        )
        self.saved = weight, normalised, inverse
        return output

    def backward(self, grad: Array) -> Gradients:
        gradients: Gradients = run("batch_norm_backward", grad, *self.saved)
        return gradients
