"""The compiled backend: loops that numba turns into machine code, where that beats NumPy.

Each ``numba_*.py`` beside this file holds the kernels of one subject. They take float32 (INT8
products also int8) and leave everything else to the `numpy` backend.
"""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

from numba.core.errors import NumbaError

from tinytorch.core.kernels.backend import Kernel
from tinytorch.core.kernels.numba import attention as numba_attention
from tinytorch.core.kernels.numba import elementwise as numba_elements
from tinytorch.core.kernels.numba import elementwise as numba_rows
from tinytorch.core.kernels.numba import elementwise as numba_steps
from tinytorch.core.kernels.numba import int4 as numba_int4
from tinytorch.core.kernels.numba import int8 as numba_int8
from tinytorch.core.kernels.numba import int8 as numba_int8_embedding
from tinytorch.core.kernels.numba import int8_convolution as numba_int8_convolution
from tinytorch.core.kernels.numba import norms as numba_norms
from tinytorch.core.kernels.numba import products as numba_products
from tinytorch.core.kernels.numba import sparse as numba_sparse
from tinytorch.core.kernels.numba import spatial as numba_spatial
from tinytorch.core.kernels.numpy import NUMPY


def _or_numpy(kind: str, kernel: Kernel) -> Kernel:
    """Fall back to NumPy when a kernel cannot be compiled on this machine, with one warning."""
    use = kernel

    @wraps(kernel)
    def run(*arguments: Any, **settings: Any) -> Any:
        nonlocal use
        try:
            return use(*arguments, **settings)
        except NumbaError as error:  # nothing was computed yet, so nothing was changed
            use = NUMPY.kernels[kind]
            warnings.warn(
                f"the kernel {kind!r} cannot be compiled here, so NumPy computes it: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
            return use(*arguments, **settings)

    return run


COMPILED: dict[str, Kernel] = {
    **numba_products.KERNELS,
    **numba_elements.KERNELS,
    **numba_rows.ROW_KERNELS,
    **numba_norms.KERNELS,
    **numba_attention.KERNELS,
    **numba_steps.STEP_KERNELS,
    **numba_spatial.KERNELS,
    **numba_int8.KERNELS,
    **numba_int8_convolution.KERNELS,
    **numba_int8_embedding.EMBEDDING_KERNELS,
    **numba_int4.KERNELS,
    **numba_sparse.KERNELS,
}

NUMBA = NUMPY.extended(
    "numba", {kind: _or_numpy(kind, kernel) for kind, kernel in COMPILED.items()}
)
