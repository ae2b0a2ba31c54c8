"""INT8 convolutions with NumPy: whole numbers by way of floats that have all of them.

The sums over some channels are whole numbers below 2**24, which float32 has all of. So that many
channels at a time are convolved as floats, and the results added up as integers.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tinytorch.core.backends import reference_int8_convolution as reference
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.numpy_int8 import EXACT_DEPTH
from tinytorch.core.backends.numpy_spatial import conv2d
from tinytorch.core.backends.reference_spatial import Pair

__all__ = ["KERNELS"]


def convolve_integers(
    x: Array, weight: Array, *, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Array:
    outputs, channels, *kernel = weight.shape
    window = reference.Window((kernel[0], kernel[1]), stride, padding, dilation, groups)
    at_once = EXACT_DEPTH // (kernel[0] * kernel[1])
    if at_once == 0:  # a huge kernel: float64 has its sums over all channels
        total = window.convolve(conv2d, x.astype(np.float64), weight.astype(np.float64))
        return total.astype(np.int32)
    batch, _, *size = x.shape
    grouped = x.reshape(batch, groups, channels, *size)
    result = np.zeros((batch, outputs, *window.output_size(x)), np.int32)
    for first in range(0, channels, at_once):
        part = slice(first, first + at_once)
        some = grouped[:, :, part].astype(np.float32)
        images = some.reshape(batch, groups * some.shape[2], *size)
        total = window.convolve(conv2d, images, weight[:, part].astype(np.float32))
        result += total.astype(np.int32)
    return result


KERNELS: dict[str, Kernel] = {
    "int8_conv2d_weight_only": partial(reference.int8_conv2d_weight_only, convolve=conv2d),
    "int8_conv2d_dynamic": partial(reference.int8_conv2d_dynamic, convolve=convolve_integers),
    "int8_conv2d_static": partial(reference.int8_conv2d_static, convolve=convolve_integers),
}
