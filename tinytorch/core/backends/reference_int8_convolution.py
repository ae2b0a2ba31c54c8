"""INT8 convolutions of the reference backend, in short, obvious NumPy.

Weights come packed (:mod:`int8_packing`), as the matrix (inputs of a patch, output channels) with
one scale for each output channel. Images become whole numbers q with x = step (q - zero_point), and
zeros around an image are the number zero, whatever its q is. A whole image shares one step. If it
holds NaN (or infinity, where its own largest element makes the step), the step is NaN, and so is
all that comes from this image; the others of the batch do not notice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.core.backends.int8_packing import unpack_values
from tinytorch.core.backends.reference_int8 import dequantize, quantize_by, quantize_rows
from tinytorch.core.backends.reference_spatial import Pair, conv2d, output_size
from tinytorch.errors import DTypeError, SettingError, ShapeError

__all__ = [
    "Convolve",
    "Window",
    "convolve_integers",
    "int8_conv2d_dynamic",
    "int8_conv2d_static",
    "int8_conv2d_weight_only",
]

Convolve = Callable[..., Array]


class Window(NamedTuple):
    """How a kernel slides over an image."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    def convolve(self, convolve: Convolve, x: Array, weight: Array, *bias: Array | None) -> Array:
        """Call a function that takes what `conv2d` takes."""
        return convolve(
            x, weight, *bias,
            stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups,
        )  # fmt: skip

    def output_size(self, x: Array) -> Pair:
        return output_size(x.shape[2:], self.kernel, self.stride, self.padding, self.dilation)


def convolve_integers(
    x: Array, weight: Array, *, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Array:
    """Give the exact convolution of whole numbers from -255 to 255 with an int8 weight."""
    window = Window((weight.shape[2], weight.shape[3]), stride, padding, dilation, groups)
    return window.convolve(conv2d, x.astype(np.int64), weight.astype(np.int64))


# ---------------------------------------------------------------- the kernels


def int8_conv2d_weight_only(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int = 1,
    convolve: Convolve = conv2d,
) -> Array:
    """Make the weight floats for this call and convolve them; the sums are not needed."""
    window = Window(kernel_size, stride, padding, dilation, groups)
    _check(x, scales, bias, window)
    weight = _weight(x, values, scales, window) * scales.astype(x.dtype)[:, None, None, None]
    return window.convolve(convolve, x, weight, bias)


def int8_conv2d_dynamic(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int = 1,
    convolve: Convolve = convolve_integers,
) -> Array:
    """Quantize each image by its largest element, convolve whole numbers, and scale the result."""
    window = Window(kernel_size, stride, padding, dilation, groups)
    _check(x, scales, bias, window)
    rows, steps = quantize_rows(_rows(x))
    weight = _weight(x, values, scales, window)
    total = window.convolve(convolve, rows.reshape(x.shape), weight)
    return _scaled(total, steps, scales, bias)


def int8_conv2d_static(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int = 1,
    scale: float,
    zero_point: int = 0,
    convolve: Convolve = convolve_integers,
) -> Array:
    """Do the same with a given scale and zero point; beyond -128..127 numbers saturate.

    The bias is of floats, or of int32 in steps of scale * scales. Here the zero point is taken off
    each number; a backend that leaves it in takes zero_point * sums off the result.
    """
    scale, zero_point = float(scale), int(zero_point)  # NumPy's may be too narrow to add to
    window = Window(kernel_size, stride, padding, dilation, groups)
    _check(x, scales, bias, window)
    if not -128 <= zero_point <= 127:
        raise SettingError(
            f"zero_point={zero_point} is no int8, so zeros around images could not be quantized; "
            "give one in -128..127"
        )
    rows, steps = quantize_by(_rows(x), scale, zero_point)
    centred = rows.reshape(x.shape).astype(np.int16) - np.int16(zero_point)
    total = window.convolve(convolve, centred, _weight(x, values, scales, window))
    if bias is not None and bias.dtype == np.int32:
        total, bias = total + bias[:, None, None], None
    return _scaled(total, steps, scales, bias)


# ---------------------------------------------------------------- their parts


def _rows(x: Array) -> Array:
    """Give each image as a row."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


def _weight(x: Array, values: Array, scales: Array, window: Window) -> Array:
    """Give the int8 weight (out, in / groups, height, width)."""
    channels = x.shape[1] // window.groups
    matrix = unpack_values(values, channels * math.prod(window.kernel), scales.size)
    return matrix.T.reshape(scales.size, channels, *window.kernel)


def _scaled(total: Array, steps: Array, scales: Array, bias: Array | None) -> Array:
    """Scale whole numbers (batch, out, rows, columns) and add a bias of floats."""
    if bias is not None:
        bias = bias[:, None, None]
    return dequantize(total, steps[:, :, None, None], scales[:, None, None], bias, None)


def _check(x: Array, scales: Array, bias: Array | None, window: Window) -> None:
    """Say what does not fit; the length of the packed values is checked where they are unpacked."""
    kernel, stride, padding, dilation, groups = window
    if x.dtype.kind != "f":
        raise DTypeError(f"an INT8 convolution needs floating-point images, got {x.dtype}")
    if x.ndim != 4:
        raise ShapeError(f"images are (batch, channels, height, width), got shape {x.shape}")
    if scales.ndim != 1 or (bias is not None and bias.shape != scales.shape):
        raise ShapeError(
            "an INT8 convolution needs one scale, and one bias or none, for each output channel; "
            f"scales have shape {scales.shape}, the bias {None if bias is None else bias.shape}"
        )
    if min(*kernel, *stride, *dilation) < 1 or min(padding) < 0:
        raise SettingError(
            "kernel_size, stride and dilation must be at least 1 and padding at least 0, got "
            f"{kernel}, {stride}, {dilation} and {padding}"
        )
    if groups < 1 or x.shape[1] % groups or scales.size % groups:
        raise SettingError(
            f"groups={groups} must divide {x.shape[1]} input and {scales.size} output channels"
        )
    if min(window.output_size(x)) < 1:
        raise ShapeError(
            f"a kernel of {kernel} with dilation {dilation} does not fit into images of "
            f"{x.shape[2:]} with padding {padding}; give larger images"
        )
