"""Reverse-mode differentiation: walk the graph of operations backwards.

A tensor that was computed knows the operation that made it (``creator``); an operation knows its
inputs. That is the whole graph. :func:`backward` sorts it so that a tensor comes after everything
that used it, and then hands gradients from outputs to inputs, without recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from tinytorch.core.dispatch import phase, run, state
from tinytorch.core.kernels import Array
from tinytorch.errors import DTypeError, GraphError, ShapeError

if TYPE_CHECKING:
    from tinytorch.core.tensor import Tensor

__all__ = [
    "backward",
    "check_gradients",
    "enable_autograd",
    "is_grad_enabled",
    "no_grad",
]


class _GradMode(ContextDecorator):
    """Switch graph building in this thread; use with `with`, as a decorator, and nested."""

    enabled: bool

    def __init__(self) -> None:
        self._previous: list[bool] = []

    def __enter__(self) -> None:
        self._previous.append(state.grad_enabled)
        state.grad_enabled = self.enabled

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state.grad_enabled = self._previous.pop()

    def _recreate_cm(self) -> _GradMode:
        return type(self)()  # a decorated function may run in several threads at once


class no_grad(_GradMode):
    """Compute without building a graph."""

    enabled = False


def enable_autograd() -> None:
    """Switch graph building on in this thread, where it is on from the start."""
    state.grad_enabled = True


def is_grad_enabled() -> bool:
    return state.grad_enabled


def backward(root: Tensor, gradient: Array | None = None, *, retain_graph: bool = False) -> None:
    """Add the gradient of `root` to the ``grad`` of every leaf that it depends on.

    The graph is freed on the way unless `retain_graph` is true.
    """
    gradients = {id(root): _seed(root, gradient)}
    path, backend = state.path, state.backend
    try:
        with phase("backward"):
            for tensor in reversed(topological_order(root)):
                grad = gradients.pop(id(tensor), None)
                if grad is not None:
                    _step_back(tensor, grad, gradients, retain_graph)
    finally:
        state.path, state.backend = path, backend


def _step_back(
    tensor: Tensor, grad: Array, gradients: dict[int, Array], retain_graph: bool
) -> None:
    """Store the gradient of one tensor where requested, and propagate it to its inputs."""
    operation = tensor.creator
    if operation is None or tensor.retains_grad:
        _accumulate(tensor, grad)
    if operation is None:
        return
    state.path, state.backend = operation.path, operation.backend  # those of the forward pass
    for source, slope in zip(operation.inputs, operation.backward(grad), strict=True):
        if slope is None or not source.requires_grad:
            continue
        if slope.dtype != source.data.dtype:
            slope = slope.astype(source.data.dtype)
        is_kept = source.creator is None or source.retains_grad
        if is_kept and _shares_memory(slope, grad):
            slope = slope.copy()
        known = gradients.get(id(source))
        gradients[id(source)] = slope if known is None else run("add", known, slope)
    if not retain_graph:
        operation.free()


def _seed(root: Tensor, gradient: Array | None) -> Array:
    if not root.requires_grad:
        raise GraphError(
            "backward() on a tensor without a graph: none of its inputs has requires_grad=True, "
            "or it was computed under no_grad()"
        )
    if gradient is None:
        if root.data.size != 1:
            raise GraphError(
                f"backward() starts from a scalar, got shape {root.shape}; "
                "reduce it with .sum() or .mean(), or pass the gradient of this tensor"
            )
        return np.ones_like(root.data)
    gradient = np.asarray(gradient, dtype=root.data.dtype)
    if gradient.shape != root.shape:
        raise ShapeError(f"gradient has shape {gradient.shape}, the tensor {root.shape}")
    return gradient.copy()


def topological_order(root: Tensor) -> list[Tensor]:
    """List the tensors behind `root`, each after everything that it was computed from."""
    order: list[Tensor] = []
    seen = {id(root)}
    pending: list[tuple[Tensor, Iterator[Tensor]]] = [(root, _sources(root))]
    while pending:
        tensor, sources = pending[-1]
        for source in sources:
            if source.requires_grad and id(source) not in seen:
                seen.add(id(source))
                pending.append((source, _sources(source)))
                break
        else:
            order.append(tensor)
            pending.pop()
    return order


def _sources(tensor: Tensor) -> Iterator[Tensor]:
    if tensor.creator is None:
        return iter(())
    tensor.creator.check_not_freed()
    return iter(tensor.creator.inputs)


def _shares_memory(slope: Array, grad: Array) -> bool:
    """Return whether a tensor would keep an array that others may still read or write."""
    return slope is grad or slope.base is not None


def _accumulate(tensor: Tensor, grad: Array) -> None:
    total = grad if tensor.grad is None else run("add", tensor.grad, grad)
    tensor.grad = np.asarray(total)  # NumPy gives numbers, not arrays, for arrays without axes


def check_gradients(
    function: Callable[..., Tensor], *tensors: Tensor, step: float = 1e-6, tolerance: float = 1e-5
) -> None:
    """Compare the gradients of a scalar function with central differences, in float64.

    Raises :class:`GraphError` with the first element that disagrees.
    """
    for tensor in tensors:
        if tensor.data.dtype != np.float64:
            raise DTypeError(f"central differences need float64, got {tensor.data.dtype}")
        tensor.grad = None
    function(*tensors).backward()
    for number, tensor in enumerate(tensors):
        computed = np.zeros_like(tensor.data) if tensor.grad is None else tensor.grad
        for index in np.ndindex(tensor.shape):
            kept = tensor.data[index]
            values = []
            for shift in (step, -step):
                tensor.data[index] = kept + shift
                with no_grad():
                    values.append(float(function(*tensors).data))
            tensor.data[index] = kept
            measured = (values[0] - values[1]) / (2 * step)
            if abs(measured - computed[index]) > tolerance * max(1.0, abs(measured)):
                raise GraphError(
                    f"input {number} at {index}: backward computes {computed[index]:.8g}, "
                    f"central differences {measured:.8g}"
                )
