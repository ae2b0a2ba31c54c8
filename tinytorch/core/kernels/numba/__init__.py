"""The compiled backend: loops that numba turns into machine code, where that beats NumPy.

Each module of this package holds the kernels of one subject. They take float32 (INT8
products also int8) and leave everything else to the `numpy` backend.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import wraps
from typing import Any

from numba.core.errors import NumbaError

from tinytorch.core.kernels.backend import Kernel
from tinytorch.core.kernels.numba import (
    attention,
    decoding,
    elementwise,
    int4,
    int8,
    int8_convolution,
    norms,
    products,
    sparse,
    spatial,
)
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
    **products.KERNELS,
    **elementwise.KERNELS,
    **elementwise.ROW_KERNELS,
    **norms.KERNELS,
    **attention.KERNELS,
    **elementwise.STEP_KERNELS,
    **spatial.KERNELS,
    **int8.KERNELS,
    **int8_convolution.KERNELS,
    **int8.EMBEDDING_KERNELS,
    **int4.KERNELS,
    **sparse.KERNELS,
}


_is_refused = False
"""Whether the step could not be compiled here."""


def _or_nothing(*arguments: Any, **settings: Any) -> bool:
    """Run the decoding step; False where it cannot be compiled, so that layers compute it."""
    global _is_refused
    if _is_refused:  # trying again would take seconds, for every token
        return False
    try:
        return decoding.decode(*arguments, **settings)
    except NumbaError as error:
        _is_refused = True
        warnings.warn(
            f"the decoding step cannot be compiled here, so layers compute it: {error}",
            RuntimeWarning,
            stacklevel=3,
        )
        return False


_table = NUMPY.extended(
    "numba", {kind: _or_numpy(kind, kernel) for kind, kernel in COMPILED.items()}
)
NUMBA = replace(_table, decode=_or_nothing)
