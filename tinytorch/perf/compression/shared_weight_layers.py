"""Layers whose weights share a few values: each weight is a code, the number of a codebook's entry.

Codes take four bits for up to 16 entries, and eight for more. Each call looks the weight up and
forgets it again. The codebook can be trained: the gradient of an entry is the sum of those of all
weights that share it (Han, Mao and Dally, 2016).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.backends.reference_codebook import check_codes, pack_codes, unpack_codes
from tinytorch.core.backends.reference_spatial import output_size
from tinytorch.core.dispatch import run
from tinytorch.core.layers import Linear, Product
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.operations import convolution, products
from tinytorch.core.operations.operation import Gradients, Operation
from tinytorch.core.spatial import Conv2d, check_window, on_batch
from tinytorch.core.tensor import Parameter, Tensor, apply
from tinytorch.errors import DTypeError, ShapeError
from tinytorch.perf.compression.clustering import codes_for

__all__ = ["SharedWeightConv2d", "SharedWeightLayer", "SharedWeightLinear"]


class CodebookLookup(Operation):
    """The entries of a codebook that packed codes mean."""

    def __init__(self, codes: Array, size: int, *, keeps_zero: bool) -> None:
        self.codes = codes
        self.size = size
        self.keeps_zero = keeps_zero

    def forward(self, codebook: Array) -> Array:
        return run("codebook_lookup", self.codes, codebook, size=self.size)

    def backward(self, grad: Array) -> Gradients:
        entries = self.inputs[0].shape[0]
        slopes = run("codebook_lookup_backward", grad, self.codes, entries=entries)
        if self.keeps_zero:
            slopes[0] = 0
        return (slopes,)


class SharedWeightLayer(Module):
    """What these layers have in common. `keeps_zero`: the first entry is zero, and is not learned.

    `values` are the packed codes of `weight_size` weights, and `codebook` what they mean.
    """

    made_from: ClassVar[type[Module]]
    bias: Tensor | None
    _checked: tuple[Array, int] | None = None
    """The codes, and the size of the codebook, that are known to go together."""

    def _hold(self, layer: Any, codebook: Array, *, like: SharedWeightLayer | None) -> None:
        """Make codes, or take those of a layer `like` this one, which has the same weight."""
        is_right = type(layer) is self.made_from  # exactly: others may compute something else
        if not is_right:
            raise DTypeError(
                f"{type(self).__name__} is made from a {self.made_from.__name__}, not from "
                f"{layer!r}"
            )
        weight = layer.weight
        self.weight_shape: tuple[int, ...] = weight.shape
        self.weight_size = weight.size
        if like is None:
            codes = codes_for(weight.data, codebook)
            self.values = Tensor(pack_codes(codes, len(codebook)))
            held = np.array(codebook, weight.dtype)
            self.codebook = Parameter(held, requires_grad=weight.requires_grad)
        else:
            self.values, self.codebook = like.values, like.codebook
        # an entry of zero may also be the mean of numbers around it, which may move
        self.keeps_zero = bool(self.codebook.data[0] == 0 and (weight.data == 0).any())
        self.bias = layer.bias
        self.training = layer.training

    @property
    def codes(self) -> Array:
        """The number of its entry for each weight, one in each uint8; made anew each time."""
        packed, entries = self._codes(), len(self.codebook.data)
        codes = unpack_codes(packed, size=self.weight_size, entries=entries)
        return codes.reshape(self.weight_shape)

    @property
    def weight(self) -> Tensor:
        """The weight as floats, made anew each time: nobody holds it."""
        return Tensor(self._array())

    def dense(self) -> Any:
        """Give the ordinary layer with this weight, which holds it in full."""
        raise NotImplementedError

    def memory_usage(self) -> dict[str, Any]:
        """Give the bytes that the ordinary layer would hold, those held here, and their ratio."""
        held = sum(tensor.data.nbytes for _, tensor in self._named_tensors())
        extra = held - self.values.data.nbytes - self.codebook.data.nbytes
        original = self.weight_size * self.codebook.dtype.itemsize + extra
        return {
            "original_bytes": original,
            "shared_bytes": held,
            "compression_ratio": original / held,
        }

    def _codes(self) -> Array:
        """Give the packed codes; those that came from elsewhere are looked at once."""
        packed, entries = self.values.data, len(self.codebook.data)
        if self._checked is None or self._checked[0] is not packed or self._checked[1] != entries:
            check_codes(packed, size=self.weight_size, entries=entries)
            self._checked = (packed, entries)
        return packed

    def _array(self) -> Array:
        line: Array = run(
            "codebook_lookup", self._codes(), self.codebook.data, size=self.weight_size
        )
        return line.reshape(self.weight_shape)

    def _looked_up(self) -> Tensor:
        """Give the weight, through which gradients reach the codebook."""
        operation = CodebookLookup(self._codes(), self.weight_size, keeps_zero=self.keeps_zero)
        return apply(operation, self.codebook).reshape(self.weight_shape)

    def _into(self, layer: Any) -> Any:
        layer.weight = Parameter(self._array(), requires_grad=self.codebook.requires_grad)
        layer.bias = self.bias
        layer.training = self.training
        return layer

    def _codes_repr(self) -> str:
        return f"entries={len(self.codebook.data)}, bias={self.bias is not None}"


class SharedWeightLinear(SharedWeightLayer):
    """x @ weight + bias with a weight of codes; made from a `Linear`, which stays as it is."""

    made_from = Linear

    def __init__(
        self, linear: Linear, codebook: Array, *, like: SharedWeightLayer | None = None
    ) -> None:
        self._hold(linear, codebook, like=like)
        self.in_features, self.out_features = self.weight_shape

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        if x.data.ndim == 0 or x.data.shape[-1] != self.in_features:
            raise ShapeError(f"{self!r} needs input (..., {self.in_features}), got {x.shape}")
        bias = () if self.bias is None else (self.bias,)
        return apply(products.Linear(), x, self._looked_up(), *bias)

    def product(self) -> Product:
        """Give the kernel that computes this layer, and what it takes after x."""
        return "linear", (self._array(), None if self.bias is None else self.bias.data), {}

    def dense(self) -> Linear:
        layer: Linear = self._into(Linear(self.in_features, self.out_features, bias=False, rng=0))
        return layer

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self._codes_repr()}"


class SharedWeightConv2d(SharedWeightLayer):
    """A convolution with a weight of codes; made from a `Conv2d`, which stays as it is."""

    made_from = Conv2d

    def __init__(
        self, conv: Conv2d, codebook: Array, *, like: SharedWeightLayer | None = None
    ) -> None:
        self._hold(conv, codebook, like=like)
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels
        self.kernel_size, self.stride, self.padding = conv.kernel_size, conv.stride, conv.padding
        self.dilation, self.groups = conv.dilation, conv.groups

    def forward(self, x: Tensor) -> Tensor:
        return on_batch(self, x, self.in_channels, self._convolve)

    def _convolve(self, x: Tensor) -> Tensor:
        size = output_size(x.shape[2:], self.kernel_size, self.stride, self.padding, self.dilation)
        check_window(self, x, size)
        operation = convolution.Conv2d(self.stride, self.padding, self.dilation, self.groups)
        bias = () if self.bias is None else (self.bias,)
        return apply(operation, x, self._looked_up(), *bias)

    def dense(self) -> Conv2d:
        layer: Conv2d = self._into(
            Conv2d(
                self.in_channels,
                self.out_channels,
                self.kernel_size,
                self.stride,
                self.padding,
                self.groups,
                self.dilation,
                bias=False,
                rng=0,
            )
        )
        return layer

    def extra_repr(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{sizes}, {self._codes_repr()}"
