"""SparseLinear: a linear layer that holds, reads and multiplies only weights that are not zero."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.backends.reference_sparse import (
    check_sparse,
    index_type,
    pack_sparse,
    unpack_sparse,
)
from tinytorch.core.dispatch import run, state
from tinytorch.core.layers import Linear, Product
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import DTypeError, GraphError, ShapeError

__all__ = ["SparseLinear", "sparse_bytes"]


class SparseLinear(Module):
    """x @ weight + bias, where the weight (in, out) is held output by output without its zeros.

    `values` are the weights, `indices` the inputs that they meet (two bytes each up to 65,536
    inputs, else four), and ``pointers[j] : pointers[j + 1]`` says which of them belong to output j.
    It computes no gradients. Its multiply-accumulates are counted as what is multiplied: the rows
    times the weights that are not zero. What a zero would meet is not looked at, so infinities and
    NaN there do not spread.
    """

    def __init__(
        self,
        values: Array,
        indices: Array,
        pointers: Array,
        bias: Array | None = None,
        *,
        in_features: int,
    ) -> None:
        self.in_features, self.out_features = in_features, pointers.size - 1
        self.weight_size = self.in_features * self.out_features
        self.activation: str | None = None
        self.values = Tensor(values)
        self.indices = Tensor(indices)
        self.pointers = Tensor(pointers)
        self.bias = None if bias is None else Tensor(np.array(bias))
        self._checked: tuple[Array, ...] = ()
        self._arrays()

    @classmethod
    def of(cls, linear: Linear) -> Self:
        """Give a layer that computes the same as a Linear; nothing is held in common."""
        if not isinstance(linear, Linear):
            raise DTypeError(f"SparseLinear is made of a Linear, not of {linear!r}")
        bias = None if linear.bias is None else linear.bias.data
        packed = pack_sparse(linear.weight.data)
        layer = cls(*packed, bias, in_features=linear.in_features)
        layer.training = linear.training
        return layer

    def dense(self) -> Linear:
        """Give an ordinary layer, with all its weights bit for bit (but -0 is 0 now)."""
        linear = Linear(self.in_features, self.out_features, self.bias is not None, rng=0)
        linear.weight = Parameter(self.weight.data)
        if self.bias is not None:
            linear.bias = Parameter(self.bias.data.copy())
        linear.training = self.training
        return linear

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        if x.data.ndim == 0 or x.data.shape[-1] != self.in_features:
            raise ShapeError(f"{self!r} needs input (..., {self.in_features}), got {x.shape}")
        if x.requires_grad and state.grad_enabled:
            raise GraphError(
                f"{self!r} lets no gradient through; call it inside of no_grad(), or train the "
                "layer that dense() gives"
            )
        kind, arrays, settings = self.product()
        result = run(kind, x.data, *arrays, **settings)
        return Tensor(result if result.dtype == x.data.dtype else result.astype(x.data.dtype))

    def product(self) -> Product:
        """Give the kernel that computes this layer, and what it takes after x."""
        bias = None if self.bias is None else self.bias.data
        settings = {} if self.activation is None else {"activation": self.activation}
        return "sparse_linear", (*self._arrays(), bias), settings

    def _arrays(self) -> tuple[Array, Array, Array]:
        """Give values, indices and pointers; those that came from elsewhere are looked at once."""
        arrays = (self.values.data, self.indices.data, self.pointers.data)
        known = self._checked
        if not known or any(one is not other for one, other in zip(arrays, known, strict=True)):
            self._check_weight(*arrays)
            self._checked = arrays
        return arrays

    def _check_weight(self, values: Array, indices: Array, pointers: Array) -> None:
        """Raise unless this is a weight, such as one from a file should be: the kernels trust it.

        Its size is that of this layer.
        """
        if pointers.shape != (self.out_features + 1,):
            raise ShapeError(
                f"{self.out_features} outputs have {self.out_features + 1} pointers, got "
                f"{pointers.shape}"
            )
        if indices.dtype != index_type(self.in_features):
            raise DTypeError(
                f"indices of {self.in_features} inputs are {index_type(self.in_features)}, got "
                f"{indices.dtype}"
            )
        check_sparse(values, indices, pointers, inputs=self.in_features)
        outputs = np.repeat(np.arange(self.out_features), np.diff(pointers))
        places = outputs * self.in_features + indices
        if (np.diff(places) <= 0).any():
            raise ShapeError("the indices of each output of a sparse matrix ascend; these do not")

    def with_activation(self, word: str) -> Self:
        """Give the same layer, which applies an activation to its result in the same kernel."""
        twin = copy.copy(self)
        twin.activation = word
        return twin

    @property
    def weight(self) -> Tensor:
        """The weight (in, out) with its zeros, made anew each time: nobody holds it."""
        return Tensor(unpack_sparse(*self._arrays(), inputs=self.in_features))

    @property
    def sparsity(self) -> float:
        """The share of the weights that is zero."""
        return 1 - self.values.size / self.weight_size

    def memory_usage(self) -> dict[str, Any]:
        """Give the bytes of the dense layer and those that are really held, and their ratio."""
        held = sum(tensor.data.nbytes for _, tensor in self._named_tensors())
        bias = 0 if self.bias is None else self.bias.data.nbytes
        original = self.weight_size * self.values.data.itemsize + bias
        return {
            "original_bytes": original,
            "sparse_bytes": held,
            "compression_ratio": original / held,
        }

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
        activation = f", activation={self.activation!r}" if self.activation else ""
        return f"{sizes}, sparsity={self.sparsity:.3f}{activation}"


def sparse_bytes(weight: Array) -> int:
    """Count what a weight (in, out) takes without its zeros: values, indices and pointers."""
    inputs, outputs = weight.shape
    kept = int(np.count_nonzero(weight))
    per_pointer = 4 if kept < 2**31 else 8
    return kept * (weight.itemsize + index_type(inputs).itemsize) + (outputs + 1) * per_pointer
