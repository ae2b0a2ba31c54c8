"""Operations that move elements: shapes, axes, indices, look-ups."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.dispatch import run
from tinytorch.core.operations.operation import Gradients, Operation, sum_to_shape


class Reshape(Operation):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def forward(self, x: Array) -> Array:
        return run("reshape", x, shape=self.shape)

    def backward(self, grad: Array) -> Gradients:
        return (run("reshape", grad, shape=self.inputs[0].shape),)


class Transpose(Operation):
    def __init__(self, axes: tuple[int, ...]) -> None:
        self.axes = axes

    def forward(self, x: Array) -> Array:
        return run("transpose", x, axes=self.axes)

    def backward(self, grad: Array) -> Gradients:
        inverse = tuple(int(axis) for axis in np.argsort([axis % grad.ndim for axis in self.axes]))
        return (run("transpose", grad, axes=inverse),)


class BroadcastTo(Operation):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def forward(self, x: Array) -> Array:
        return run("broadcast_to", x, shape=self.shape)

    def backward(self, grad: Array) -> Gradients:
        return (sum_to_shape(grad, self.inputs[0].shape),)


class GetItem(Operation):
    def __init__(self, index: Any) -> None:
        self.index = index

    def forward(self, x: Array) -> Array:
        return run("getitem", x, index=self.index)

    def backward(self, grad: Array) -> Gradients:
        shape = self.inputs[0].shape
        return (run("getitem_backward", grad, shape=shape, index=self.index),)


class Concatenate(Operation):
    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, *arrays: Array) -> Array:
        return run("concatenate", arrays, axis=self.axis)

    def backward(self, grad: Array) -> Gradients:
        lengths = [tensor.shape[self.axis] for tensor in self.inputs]
        return tuple(np.split(grad, list(accumulate(lengths))[:-1], axis=self.axis))


class Embedding(Operation):
    """Rows of a table, by integer ids."""

    def __init__(self, ids: Array) -> None:
        self.ids = ids

    def forward(self, weight: Array) -> Array:
        return run("embedding", weight, self.ids)

    def backward(self, grad: Array) -> Gradients:
        return (run("embedding_backward", grad, self.ids, count=self.inputs[0].shape[0]),)
