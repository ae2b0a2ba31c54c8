"""Tensor: an array with operators that remember how to differentiate themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from tinytorch.core import autograd, operations
from tinytorch.core.dispatch import run, state
from tinytorch.core.kernels import Array
from tinytorch.core.operations import Axes, Operation
from tinytorch.errors import DTypeError, ShapeError, TinyTorchError

__all__ = ["Parameter", "Tensor", "apply", "concatenate", "stack", "where"]

Operand = Any  # a Tensor, an array, or a number


class Tensor:
    """An n-dimensional array that can be differentiated.

    Lists and numbers become float32; NumPy arrays keep their dtype (so float64 stays float64, and
    int8 stays int8) and their memory is shared, not copied.

    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> (x**2).sum().backward()
    >>> x.grad
    array([2., 4.], dtype=float32)
    """

    __slots__ = ("__weakref__", "creator", "data", "grad", "requires_grad", "retains_grad")
    __array_ufunc__ = None  # so that `array * tensor` calls Tensor.__rmul__

    data: Array
    grad: Array | None
    requires_grad: bool
    creator: Operation | None
    retains_grad: bool

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self.data = _as_array(data)
        self.grad = None
        self.requires_grad = requires_grad
        self.creator = None
        self.retains_grad = False
        if requires_grad and self.data.dtype.kind != "f":
            raise DTypeError(
                f"only floating-point tensors have gradients, got {self.data.dtype}; "
                "convert with .astype(np.float32)"
            )

    # ------------------------------------------------------------ facts

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.data.dtype

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    @property
    def T(self) -> Tensor:
        return self.transpose()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar tensor has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        extra = ", requires_grad=True" if self.requires_grad else ""
        values = np.array2string(self.data, separator=", ", prefix="Tensor(")
        dtype = "" if self.dtype == np.float32 else f", dtype={self.dtype}"
        return f"Tensor({values}{dtype}{extra})"

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.data, dtype=dtype, copy=copy)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        twin = type(self)(self.data.copy(), requires_grad=self.requires_grad)
        twin.grad = None if self.grad is None else self.grad.copy()
        memo[id(self)] = twin
        return twin

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self.size != 1:
            raise ShapeError(f"item() needs one element, this tensor has shape {self.shape}")
        return self.data.item()

    def numpy(self) -> Array:
        """Return the array itself, not a copy."""
        return self.data

    def astype(self, dtype: Any) -> Tensor:
        """Return a copy of another dtype, without a graph."""
        return Tensor(self.data.astype(dtype))

    # ------------------------------------------------------------ differentiation

    def backward(self, gradient: Any = None, retain_graph: bool = False) -> None:
        """Add the gradient of this tensor to the ``grad`` of the leaves it was computed from."""
        if isinstance(gradient, Tensor):
            gradient = gradient.data
        autograd.backward(self, gradient, retain_graph=retain_graph)

    def detach(self) -> Tensor:
        """Return a tensor that shares memory with this one and has no graph."""
        return Tensor(self.data)

    def retain_grad(self) -> Tensor:
        """Keep ``grad`` of this non-leaf tensor in the next backward pass."""
        self.retains_grad = True
        return self

    def zero_grad(self) -> None:
        self.grad = None

    # ------------------------------------------------------------ arithmetic

    def __add__(self, other: Operand) -> Tensor:
        return apply(operations.Add(), self, _operand(other, self))

    def __sub__(self, other: Operand) -> Tensor:
        return apply(operations.Subtract(), self, _operand(other, self))

    def __mul__(self, other: Operand) -> Tensor:
        return apply(operations.Multiply(), self, _operand(other, self))

    def __truediv__(self, other: Operand) -> Tensor:
        return apply(operations.Divide(), self, _operand(other, self))

    def __pow__(self, other: Operand) -> Tensor:
        if isinstance(other, (int, float)):
            return apply(operations.ScalarPower(other), self)
        return apply(operations.Power(), self, _operand(other, self))

    def __matmul__(self, other: Operand) -> Tensor:
        return apply(operations.Matmul(), self, _operand(other, self))

    def __radd__(self, other: Operand) -> Tensor:
        return _operand(other, self) + self

    def __rsub__(self, other: Operand) -> Tensor:
        return _operand(other, self) - self

    def __rmul__(self, other: Operand) -> Tensor:
        return _operand(other, self) * self

    def __rtruediv__(self, other: Operand) -> Tensor:
        return _operand(other, self) / self

    def __rpow__(self, other: Operand) -> Tensor:
        return apply(operations.Power(), _operand(other, self), self)

    def __rmatmul__(self, other: Operand) -> Tensor:
        return _operand(other, self) @ self

    def __neg__(self) -> Tensor:
        return apply(operations.Negative(), self)

    def __abs__(self) -> Tensor:
        return apply(operations.Absolute(), self)

    def __eq__(self, other: object) -> Any:
        return self._compare("equal", other)

    def __ne__(self, other: object) -> Any:
        return self._compare("not_equal", other)

    def __lt__(self, other: Operand) -> Any:
        return self._compare("less", other)

    def __le__(self, other: Operand) -> Any:
        return self._compare("less_equal", other)

    def __gt__(self, other: Operand) -> Any:
        return self._compare("greater", other)

    def __ge__(self, other: Operand) -> Any:
        return self._compare("greater_equal", other)

    __hash__ = object.__hash__  # a tensor is itself in sets and dictionaries

    def _compare(self, kind: str, other: Any) -> Any:
        """Compare elementwise; the result is boolean and has no graph."""
        if not isinstance(other, (Tensor, np.ndarray, np.number, int, float, list, tuple)):
            return NotImplemented  # so that `tensor == None` is False and `tensor < None` an error
        return Tensor(np.asarray(run(kind, self.data, _operand(other, self).data)))

    def matmul(self, other: Operand) -> Tensor:
        return self @ other

    def abs(self) -> Tensor:
        return abs(self)

    def exp(self) -> Tensor:
        return apply(operations.Exp(), self)

    def log(self) -> Tensor:
        return apply(operations.Log(), self)

    def sqrt(self) -> Tensor:
        return apply(operations.Sqrt(), self)

    # ------------------------------------------------------------ reductions

    def sum(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        return apply(operations.Sum(axis, keepdims), self)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        return apply(operations.Mean(axis, keepdims), self)

    def max(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        return apply(operations.Max(axis, keepdims), self)

    def var(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Return the variance, divided by the number of elements (not by one less)."""
        centred = self - self.mean(axis, keepdims=True)
        return (centred**2).mean(axis, keepdims)

    def argmax(self, axis: int | None = None) -> Tensor:
        """Return the index of the (first) largest element; it has no gradient."""
        return Tensor(np.asarray(self.data.argmax(axis=axis)))

    # ------------------------------------------------------------ shapes

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        return apply(operations.Reshape(_flat(shape)), self)

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """Swap the last two axes, or the two that are given, or reorder all."""
        order = _flat(axes)
        if len(order) in (0, 2) and self.ndim >= 2:
            first, second = order or (-2, -1)
            swapped = list(range(self.ndim))
            if not all(-self.ndim <= axis < self.ndim for axis in (first, second)):
                raise ShapeError(f"cannot swap axes {first} and {second} of shape {self.shape}")
            swapped[first], swapped[second] = swapped[second], swapped[first]
            order = tuple(swapped)
        return apply(operations.Transpose(order or tuple(range(self.ndim))), self)

    def permute(self, *axes: int | Sequence[int]) -> Tensor:
        return apply(operations.Transpose(_flat(axes)), self)

    def broadcast_to(self, *shape: int | Sequence[int]) -> Tensor:
        return apply(operations.BroadcastTo(_flat(shape)), self)

    def flatten(self, start: int = 0) -> Tensor:
        """Join all axes from `start` on."""
        return self.reshape(*self.shape[:start], math.prod(self.shape[start:]))

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, Tensor):
            index = index.data
        elif isinstance(index, tuple):
            index = tuple(part.data if isinstance(part, Tensor) else part for part in index)
        return apply(operations.GetItem(index), self)


class Parameter(Tensor):
    """A tensor that a module learns. It stays a parameter when it is frozen."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(data, requires_grad)


def apply(operation: Operation, *inputs: Tensor) -> Tensor:
    """Run an operation on tensors and, unless under `no_grad`, link it into the graph."""
    tracked = False
    arrays = []
    try:
        for tensor in inputs:
            if tensor.requires_grad:  # asked of each, because an array by mistake has `data`, too
                tracked = True
            arrays.append(tensor.data)
        if tracked:
            tracked = operation.tracked = state.grad_enabled
        output = operation.forward(*arrays)
    except TinyTorchError:
        raise
    except (ValueError, AttributeError) as error:
        explained = _explain(error, operation, inputs)
        if explained is None:
            raise
        raise explained from error
    result = Tensor.__new__(Tensor)
    result.data = output if type(output) is np.ndarray else np.asarray(output)
    result.grad = None
    result.retains_grad = False
    result.requires_grad = tracked
    if tracked:
        operation.inputs = inputs
        operation.path = state.path
        operation.backend = state.backend
        result.creator = operation
    else:
        result.creator = None
    return result


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors along an axis that they have."""
    return apply(operations.Concatenate(axis), *tensors)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors along a new axis."""
    rank = tensors[0].ndim + 1
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is not one of the {rank} axes of the stack")
    position = axis % rank
    expanded = [t.reshape(*t.shape[:position], 1, *t.shape[position:]) for t in tensors]
    return concatenate(expanded, position)


def where(condition: Any, a: Operand, b: Operand) -> Tensor:
    """Take elements of `a` where the condition holds and of `b` elsewhere."""
    like = a if isinstance(a, Tensor) else b
    like = like if isinstance(like, Tensor) else Tensor(like)
    mask = condition.data if isinstance(condition, Tensor) else np.asarray(condition)
    return apply(operations.Where(mask.astype(bool)), _operand(a, like), _operand(b, like))


def _as_array(data: Any) -> Array:
    if isinstance(data, Tensor):
        return data.data
    if isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
        if array.dtype.kind not in "biuf":
            raise DTypeError(f"a tensor holds numbers, got an array of {array.dtype}")
        return array
    if isinstance(data, (list, tuple)) and any(isinstance(item, Tensor) for item in data):
        data = [item.data if isinstance(item, Tensor) else item for item in data]
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"cannot make a tensor of a ragged list: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DTypeError(f"a tensor holds numbers, got {type(data).__name__} of {array.dtype}")
    return array if array.dtype == np.bool_ else array.astype(np.float32)


def _operand(value: Operand, like: Tensor) -> Tensor:
    """Make a tensor of the other side of an operator; a plain number follows `like`'s dtype."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (int, float, np.number)):
        number = value.item() if isinstance(value, np.number) else value
        return Tensor(np.asarray(number, dtype=np.result_type(like.data.dtype, number)))
    return Tensor(value)


def _flat(numbers: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    """Accept both f(2, 3) and f((2, 3))."""
    if len(numbers) == 1 and isinstance(numbers[0], (tuple, list)):
        return tuple(numbers[0])
    return cast("tuple[int, ...]", numbers)


def _explain(
    error: Exception, operation: Operation, inputs: tuple[Any, ...]
) -> TinyTorchError | None:
    """Return the error to raise for invalid inputs, or None where the operation itself failed."""
    name = type(operation).__name__
    strangers = [type(value).__name__ for value in inputs if not isinstance(value, Tensor)]
    if strangers:
        return DTypeError(f"{name} works on tensors, got {strangers[0]}; wrap it in Tensor(...)")
    if isinstance(error, AttributeError):
        return None
    shapes = " and ".join(str(tensor.shape) for tensor in inputs)
    if isinstance(operation, operations.Matmul):
        return ShapeError(
            f"Matmul cannot use shapes {shapes}: the last axis of the first must be as long as the "
            "last but one of the second, and the axes before must broadcast"
        )
    return ShapeError(f"{name} cannot use shapes {shapes}: {error}")
