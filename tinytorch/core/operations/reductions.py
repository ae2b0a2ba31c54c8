"""Sums, means and maxima over axes."""

from __future__ import annotations

import math

from tinytorch.core.backends import Array
from tinytorch.core.dispatch import run
from tinytorch.core.operations.operation import Gradients, Operation

Axes = int | tuple[int, ...] | None


class _Reduction(Operation):
    def __init__(self, axis: Axes, keepdims: bool) -> None:
        self.axis = axis
        self.keepdims = keepdims

    def axes(self) -> tuple[int, ...]:
        """Give the reduced axes as non-negative numbers."""
        rank = len(self.inputs[0].shape)
        if self.axis is None or rank == 0:  # NumPy allows axis -1 of a scalar
            return tuple(range(rank))
        axes = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        return tuple(axis % rank for axis in axes)

    def spread(self, reduced: Array) -> Array:
        """Repeat a reduced array over the axes that are gone. Returns a view."""
        shape = self.inputs[0].shape
        axes = self.axes()
        kept = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
        return run("broadcast_to", reduced.reshape(kept), shape=shape)


class Sum(_Reduction):
    def forward(self, x: Array) -> Array:
        return run("sum", x, axis=self.axis, keepdims=self.keepdims)

    def backward(self, grad: Array) -> Gradients:
        return (self.spread(grad),)


class Mean(_Reduction):
    def forward(self, x: Array) -> Array:
        return run("mean", x, axis=self.axis, keepdims=self.keepdims)

    def backward(self, grad: Array) -> Gradients:
        count = math.prod(self.inputs[0].shape[axis] for axis in self.axes())
        return (self.spread(run("divide", grad, grad.dtype.type(count))),)


class Max(_Reduction):
    """The largest element; elements that share the maximum share its gradient."""

    def forward(self, x: Array) -> Array:
        result = run("max", x, axis=self.axis, keepdims=self.keepdims)
        self.saved = x, result
        return result

    def backward(self, grad: Array) -> Gradients:
        x, result = self.saved
        is_largest = run("equal", x, self.spread(result)).astype(grad.dtype)
        count = run("sum", is_largest, axis=self.axes(), keepdims=True)
        share = run("divide", grad.reshape(count.shape), count)
        return (run("multiply", is_largest, share),)
