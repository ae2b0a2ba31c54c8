"""Products with INT4 weights of the reference backend, in short, obvious NumPy."""

from __future__ import annotations

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.core.backends.int4_packing import unpack_nibbles
from tinytorch.core.backends.products import matmul
from tinytorch.core.backends.reference_int8 import activate

__all__ = ["int4_linear_weight_only"]


def int4_linear_weight_only(
    x: Array,
    values: Array,
    scales: Array,
    bias: Array | None = None,
    *,
    group_size: int,
    activation: str | None = None,
) -> Array:
    """Multiply floats with a packed weight that has a scale for each group of inputs and output."""
    inputs, outputs = x.shape[-1], scales.shape[1]
    each = np.repeat(scales, group_size, axis=0)[:inputs]  # (inputs, outputs)
    weight = unpack_nibbles(values, inputs, outputs) * each
    product = matmul(x, weight.astype(x.dtype))
    return activate(product if bias is None else product + bias, activation)
