"""Products with sparse weights with NumPy, which has nothing for them: two ways around that.

For a few rows the inputs that matter are picked and their products added up by segments. That is
done again for each row, so that for more of them it is faster to fill in the zeros, some columns at
a time, and leave the product to BLAS.
"""

from __future__ import annotations

import numpy as np

from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.products import matmul
from tinytorch.core.backends.reference_int8 import activate
from tinytorch.core.backends.reference_sparse import check_sparse

__all__ = ["KERNELS", "sparse_linear"]

FEW_ROWS = 3
FILLED = 1 << 20
"""Numbers of a weight that are filled in at once, so that the whole never is."""


def sparse_linear(
    x: Array,
    values: Array,
    indices: Array,
    pointers: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    inputs, outputs = x.shape[-1], pointers.size - 1
    check_sparse(values, indices, pointers, inputs=inputs)
    rows = x.reshape(-1, inputs)
    # filled-in zeros would turn what is not finite into NaN
    if len(rows) <= FEW_ROWS or not np.isfinite(rows).all():
        result = _by_segments(rows, values, indices, pointers)
    else:
        result = _by_columns(rows, values, indices, pointers)
    if bias is not None:
        result = result + bias
    return activate(result, activation).reshape(*x.shape[:-1], outputs)


def _by_segments(rows: Array, values: Array, indices: Array, pointers: Array) -> Array:
    """Add up the products of each output, row by row, so that little memory is needed."""
    result = np.zeros((len(rows), pointers.size - 1), np.result_type(rows, values))
    is_used = pointers[1:] > pointers[:-1]  # an empty segment would be taken for its first element
    starts = pointers[:-1][is_used]
    if starts.size:
        for row, totals in zip(rows, result, strict=True):
            totals[is_used] = np.add.reduceat(row[indices] * values, starts)
    return result


def _by_columns(rows: Array, values: Array, indices: Array, pointers: Array) -> Array:
    """Multiply with some columns at a time, in which the zeros are filled in."""
    inputs, outputs = rows.shape[1], pointers.size - 1
    result = np.empty((len(rows), outputs), np.result_type(rows, values))
    width = max(1, FILLED // max(1, inputs))
    for first in range(0, outputs, width):
        ends = pointers[first : first + width + 1]
        block = slice(ends[0], ends[-1])
        lines = np.zeros((ends.size - 1, inputs), values.dtype)
        lines[np.repeat(np.arange(ends.size - 1), np.diff(ends)), indices[block]] = values[block]
        matmul(rows, lines.T, out=result[:, first : first + width])
    return result


KERNELS: dict[str, Kernel] = {"sparse_linear": sparse_linear}
