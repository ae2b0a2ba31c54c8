"""What an operation is, and the arithmetic that many of them share."""

from __future__ import annotations

from typing import Any

from tinytorch.core.backends import Array, Backend
from tinytorch.core.dispatch import run
from tinytorch.errors import GraphError

Gradients = tuple[Array | None, ...]


class Operation:
    """One differentiable operation, applied once.

    ``forward`` takes the arrays of the inputs and puts what the derivative needs into ``saved``.
    ``backward`` takes the gradient of the output and gives one gradient per input, or None where
    :meth:`wants` says that nobody needs it. A gradient is `grad` itself, a view of it, or a new
    array that nothing else holds.
    """

    inputs: tuple[Any, ...] = ()
    saved: Any = None
    tracked = False
    freed = False
    path: str | None = None
    backend: Backend | None = None

    def forward(self, *arrays: Any, **settings: Any) -> Array:
        raise NotImplementedError

    def backward(self, grad: Array) -> Gradients:
        raise NotImplementedError

    def wants(self, position: int) -> bool:
        """Tell whether the gradient of this input is needed."""
        inputs = self.inputs
        return position < len(inputs) and bool(inputs[position].requires_grad)

    def free(self) -> None:
        """Drop the graph behind this operation and what it saved."""
        self.inputs, self.saved, self.freed = (), None, True

    def check_not_freed(self) -> None:
        if self.freed:
            raise GraphError(
                f"the graph of {type(self).__name__} was freed by an earlier backward(); "
                "call backward(retain_graph=True) the first time, or run the forward pass again"
            )


def sum_to_shape(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Undo broadcasting: sum `gradient` over the axes along which `shape` was repeated."""
    if gradient.shape == shape:
        return gradient
    extra = gradient.ndim - len(shape)
    repeated = [axis for axis, length in enumerate(shape, extra) if length == 1]
    total: Array = run("sum", gradient, axis=(*range(extra), *repeated), keepdims=True)
    return total.reshape(shape)
