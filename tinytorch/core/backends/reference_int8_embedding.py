"""Looking up rows of an INT8 table, in short, obvious NumPy.

The table comes packed (:mod:`int8_packing`) as the matrix (width, tokens), so that an output layer
can multiply with the same bytes: a row of the table is a column of the matrix.
"""

from __future__ import annotations

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.core.backends.int8_packing import unpack_values
from tinytorch.errors import DTypeError, ShapeError

__all__ = ["int8_embedding"]


def int8_embedding(ids: Array, values: Array, scales: Array, *, width: int) -> Array:
    """Give the rows (*ids.shape, width) of some tokens as floats: values times the token's scale.

    As with any index of NumPy, negative ids count from the end.
    """
    if ids.dtype.kind not in "iu":
        raise DTypeError(f"token ids must be integers, got {ids.dtype}")
    if scales.ndim != 1:
        raise ShapeError(f"a table needs one scale for each token, got shape {scales.shape}")
    table = unpack_values(values, width, scales.size).T  # (tokens, width)
    return table[ids].astype(np.float32) * scales[ids][..., None]
