"""QuantizedLinear: a linear layer with an INT8 or INT4 weight."""

from __future__ import annotations

import copy
from typing import Any, Self

from tinytorch.core.backends import Array
from tinytorch.core.layers import Linear, Product
from tinytorch.core.module import check_floating_point
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ShapeError
from tinytorch.perf.quantization.packed_weight import PackedWeight, pack_weight, quantize_weight
from tinytorch.perf.quantization.quantized_layer import QuantizedProduct, check_kind

__all__ = ["QuantizedLinear"]


class QuantizedLinear(QuantizedProduct):
    """x @ weight + bias with a weight of whole numbers; made from a `Linear`, which stays as it is.

    Inputs of INT8 are quantized too, and the product is one of integers, unless the mode is
    `weight_only`. See :class:`QuantizedProduct` for the modes.
    """

    operation = "linear"

    def __init__(
        self,
        linear: Linear,
        mode: str = "dynamic",
        *,
        bits: int = 8,
        group_size: int | None = None,
    ) -> None:
        check_kind(self, linear, Linear)
        weight, bias = linear.weight.data, None if linear.bias is None else linear.bias.data
        packed = pack_weight(quantize_weight(weight, bits=bits, group_size=group_size))
        held = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._fill(packed, bias, mode, original_bytes=held)
        self.training = linear.training

    @classmethod
    def of(
        cls, packed: PackedWeight, bias: Array | None, mode: str, *, original_bytes: int
    ) -> Self:
        """Make one of a packed weight, which other layers may hold as well."""
        layer = cls.__new__(cls)
        layer._fill(packed, bias, mode, original_bytes=original_bytes)
        return layer

    def _fill(
        self, packed: PackedWeight, bias: Array | None, mode: str, *, original_bytes: int
    ) -> None:
        self.in_features, self.out_features = packed.shape
        self.activation: str | None = None
        self._hold(packed, bias, mode, original_bytes=original_bytes)

    def forward(self, x: Tensor) -> Tensor:
        self.check_input(x)
        return self._compute(x)

    def check_input(self, x: Any) -> None:
        check_floating_point(self, x)
        if x.data.ndim == 0 or x.data.shape[-1] != self.in_features:
            raise ShapeError(f"{self!r} needs input (..., {self.in_features}), got {x.shape}")

    def product(self) -> Product:
        kind, arrays, settings = super().product()
        if self.activation is not None:
            settings["activation"] = self.activation
        return kind, arrays, settings

    def with_activation(self, word: str) -> Self:
        """Give the same layer, which applies an activation to its result in the same kernel."""
        twin = copy.copy(self)
        twin.activation = word
        return twin

    @property
    def weight(self) -> Tensor:
        """The weight (in, out) as floats, made anew each time: nobody holds it."""
        return Tensor(self.packed.unpacked().dequantize())

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
        activation: Any = f", activation={self.activation!r}" if self.activation else ""
        return f"{sizes}, {self._mode_repr()}{activation}"
