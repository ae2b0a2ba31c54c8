"""Losses that give one value per example or element; the mean is taken by the caller."""

from __future__ import annotations

from typing import ClassVar

from tinytorch.core.backends import Array
from tinytorch.core.dispatch import run
from tinytorch.core.operations.operation import Gradients, Operation


class CrossEntropy(Operation):
    """Cross entropy of logits (rows, classes) against class numbers (rows,)."""

    def __init__(self, targets: Array) -> None:
        self.targets = targets

    def forward(self, logits: Array) -> Array:
        losses, self.saved = run("cross_entropy", logits, self.targets)
        return losses

    def backward(self, grad: Array) -> Gradients:
        return (run("cross_entropy_backward", grad, self.saved, self.targets),)


class BinaryCrossEntropy(Operation):
    """Cross entropy of probabilities against targets in [0, 1], element by element."""

    kind: ClassVar[str] = "binary_cross_entropy"

    def __init__(self, targets: Array) -> None:
        self.targets = targets

    def forward(self, predictions: Array) -> Array:
        self.saved = predictions
        return run(self.kind, predictions, self.targets)

    def backward(self, grad: Array) -> Gradients:
        return (run(f"{self.kind}_backward", grad, self.saved, self.targets),)


class BinaryCrossEntropyWithLogits(BinaryCrossEntropy):
    """The same on logits, exact for logits of any size."""

    kind: ClassVar[str] = "binary_cross_entropy_with_logits"
