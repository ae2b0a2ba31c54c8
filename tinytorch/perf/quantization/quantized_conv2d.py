"""QuantizedConv2d: a convolution with an INT8 weight."""

from __future__ import annotations

from typing import Any, Self

from tinytorch.core.backends import Array
from tinytorch.core.backends.reference_spatial import Pair, output_size
from tinytorch.core.layers import Product
from tinytorch.core.spatial import Conv2d, check_window, on_batch
from tinytorch.core.tensor import Tensor
from tinytorch.perf.quantization.packed_weight import PackedWeight, pack_weight, quantize_weight
from tinytorch.perf.quantization.quantized_layer import QuantizedProduct, check_kind

__all__ = ["GEOMETRY", "QuantizedConv2d", "kernel_matrix"]

GEOMETRY = ("kernel_size", "stride", "padding", "dilation", "groups")
"""The settings of a convolution that its kernels take."""


def kernel_matrix(weight: Array) -> Array:
    """Give the kernels (out, in / groups, height, width) as a matrix (inputs of a patch, out)."""
    return weight.reshape(len(weight), -1).T


class QuantizedConv2d(QuantizedProduct):
    """A convolution with a weight of whole numbers; made from a `Conv2d`, which stays as it is.

    With the modes `dynamic` and `static` patches are whole numbers too, and their products are
    added up in integers. See :class:`QuantizedProduct` for the modes.
    """

    operation = "conv2d"
    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    def __init__(self, conv: Conv2d, mode: str = "dynamic") -> None:
        check_kind(self, conv, Conv2d)
        weight, bias = conv.weight.data, None if conv.bias is None else conv.bias.data
        packed = pack_weight(quantize_weight(kernel_matrix(weight)))
        held = weight.nbytes + (0 if bias is None else bias.nbytes)
        geometry = {name: getattr(conv, name) for name in GEOMETRY}
        self._fill(packed, bias, mode, geometry, original_bytes=held)
        self.training = conv.training

    @classmethod
    def of(
        cls,
        packed: PackedWeight,
        bias: Array | None,
        mode: str,
        geometry: dict[str, Any],
        *,
        original_bytes: int,
    ) -> Self:
        """Make one of a packed weight, which other layers may hold as well."""
        layer = cls.__new__(cls)
        layer._fill(packed, bias, mode, geometry, original_bytes=original_bytes)
        return layer

    def _fill(
        self,
        packed: PackedWeight,
        bias: Array | None,
        mode: str,
        geometry: dict[str, Any],
        *,
        original_bytes: int,
    ) -> None:
        vars(self).update(geometry)
        depth, self.out_channels = packed.shape
        height, width = self.kernel_size
        self.in_channels = depth // (height * width) * self.groups
        self._hold(packed, bias, mode, original_bytes=original_bytes)

    def forward(self, x: Tensor) -> Tensor:
        return on_batch(self, x, self.in_channels, self._convolve)

    def _convolve(self, x: Tensor) -> Tensor:
        size = output_size(x.shape[2:], self.kernel_size, self.stride, self.padding, self.dilation)
        check_window(self, x, size)
        return self._compute(x)

    def check_input(self, x: Any) -> None:
        on_batch(self, x, self.in_channels, lambda batch: batch)

    def product(self) -> Product:
        kind, arrays, settings = super().product()
        return kind, arrays, settings | {name: getattr(self, name) for name in GEOMETRY}

    @property
    def weight(self) -> Tensor:
        """The kernels (out, in / groups, height, width) as floats, made anew each time."""
        matrix = self.packed.unpacked().dequantize()
        inputs = self.in_channels // self.groups
        return Tensor(matrix.T.reshape(self.out_channels, inputs, *self.kernel_size))

    def extra_repr(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{sizes}, {self._mode_repr()}"
