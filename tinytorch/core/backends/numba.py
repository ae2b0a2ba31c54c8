"""The compiled backend: loops that numba turns into machine code, where that beats NumPy.

Each ``numba_*.py`` beside this file holds the kernels of one subject. They take float32 (INT8
products also int8) and leave everything else to the `numpy` backend.
"""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

from numba.core.errors import NumbaError

from tinytorch.core.backends import (
    numba_attention,
    numba_codebook,
    numba_elements,
    numba_int4,
    numba_int8,
    numba_int8_convolution,
    numba_int8_embedding,
    numba_norms,
    numba_products,
    numba_rows,
    numba_sparse,
    numba_spatial,
    numba_steps,
)
from tinytorch.core.backends.backend import Kernel
from tinytorch.core.backends.numpy import NUMPY

__all__ = ["NUMBA"]


def _or_numpy(kind: str, kernel: Kernel) -> Kernel:
    """Compute with NumPy when a kernel cannot be compiled on this machine, and say so once."""
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
    **numba_rows.KERNELS,
    **numba_norms.KERNELS,
    **numba_attention.KERNELS,
    **numba_steps.KERNELS,
    **numba_spatial.KERNELS,
    **numba_int8.KERNELS,
    **numba_int8_convolution.KERNELS,
    **numba_int8_embedding.KERNELS,
    **numba_int4.KERNELS,
    **numba_sparse.KERNELS,
    **numba_codebook.KERNELS,
}

NUMBA = NUMPY.extended(
    "numba", {kind: _or_numpy(kind, kernel) for kind, kernel in COMPILED.items()}
)
