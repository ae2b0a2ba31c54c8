"""The backends: `reference` is short and obvious, `numpy` is fast.

Each is a table of kernels on plain arrays. `reference` has every kernel and is the oracle in the
tests; another backend replaces the kernels that it computes faster and inherits the others.
"""

from tinytorch.core.backends.backend import Array, Backend, Kernel
from tinytorch.core.backends.numpy import NUMPY
from tinytorch.core.backends.reference import REFERENCE

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (REFERENCE, NUMPY)}
DEFAULT = NUMPY

__all__ = ["BACKENDS", "DEFAULT", "NUMPY", "REFERENCE", "Array", "Backend", "Kernel"]
