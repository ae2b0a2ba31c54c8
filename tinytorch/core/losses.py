"""Loss functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch.core import operations
from tinytorch.core.kernels import Array
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import DTypeError, SettingError, ShapeError

__all__ = ["BinaryCrossEntropyLoss", "CrossEntropyLoss", "MSELoss"]


class _Loss(Module):
    """A loss with a `reduction`: "mean", "sum" or "none" (one value per example)."""

    def __init__(self, reduction: str = "mean") -> None:
        if reduction not in ("mean", "sum", "none"):
            raise SettingError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
        self.reduction = reduction

    def reduce(self, values: Tensor) -> Tensor:
        if self.reduction == "none":
            return values
        return values.mean() if self.reduction == "mean" else values.sum()

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class MSELoss(_Loss):
    """The squared difference."""

    def forward(self, predictions: Tensor, targets: Any) -> Tensor:
        targets = _as_tensor(targets)
        _check_same_shape(self, predictions, targets)
        return self.reduce((predictions - targets) ** 2)


class CrossEntropyLoss(_Loss):
    """Cross entropy of logits (..., classes) against class numbers (...,).

    Works on the logits themselves, so it is exact for logits of any size.
    """

    def forward(self, logits: Tensor, targets: Any) -> Tensor:
        check_floating_point(self, logits)
        classes = logits.shape[-1] if logits.ndim else 0
        ids = _class_numbers(_as_tensor(targets).data, classes)
        if ids.shape != logits.shape[:-1] or logits.ndim == 0:
            raise ShapeError(
                f"cross entropy of logits {logits.shape} needs class numbers of shape "
                f"{logits.shape[:-1]}, got {ids.shape}"
            )
        rows = logits if logits.ndim == 2 else logits.reshape(-1, classes)
        values = apply(operations.CrossEntropy(ids.reshape(-1)), rows)
        return self.reduce(values if logits.ndim == 2 else values.reshape(ids.shape))


class BinaryCrossEntropyLoss(_Loss):
    """Cross entropy of probabilities, or of logits with `from_logits`, against 0..1."""

    def __init__(self, reduction: str = "mean", *, from_logits: bool = False) -> None:
        super().__init__(reduction)
        self.from_logits = from_logits

    def forward(self, predictions: Tensor, targets: Any) -> Tensor:
        check_floating_point(self, predictions)
        targets = _as_tensor(targets)
        _check_same_shape(self, predictions, targets)
        wanted = targets.data.astype(predictions.dtype, copy=False)
        if self.from_logits:
            return self.reduce(apply(operations.BinaryCrossEntropyWithLogits(wanted), predictions))
        outside = (predictions.data < 0) | (predictions.data > 1)
        if outside.any():
            raise SettingError(
                f"binary cross entropy needs probabilities in [0, 1], got "
                f"{float(predictions.data[outside][0]):.4g}; for logits use from_logits=True"
            )
        return self.reduce(apply(operations.BinaryCrossEntropy(wanted), predictions))


def _as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(value)


def _check_same_shape(loss: Module, predictions: Tensor, targets: Tensor) -> None:
    if predictions.shape != targets.shape:
        raise ShapeError(
            f"{type(loss).__name__} needs equal shapes, got predictions {predictions.shape} "
            f"and targets {targets.shape}"
        )


def _class_numbers(targets: Array, classes: int) -> Array:
    with np.errstate(invalid="ignore"):  # what has no integer is found by the comparison
        ids = targets if targets.dtype.kind in "iu" else targets.astype(np.int64)
    if ids is not targets and not np.array_equal(ids, targets):
        raise DTypeError(f"class numbers must be whole, got {targets.dtype} with fractions")
    if ids.size and (ids.min() < 0 or ids.max() >= classes):
        raise SettingError(
            f"class numbers must be in 0..{classes - 1}, got {int(ids.min())}..{int(ids.max())}"
        )
    return ids
