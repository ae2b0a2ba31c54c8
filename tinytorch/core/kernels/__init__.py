"""The backends: `reference` is short and obvious, `numpy` is fast, `numba` is compiled and faster.

Each is a table of kernels on plain arrays. `reference` has every kernel and is the oracle in the
tests; another backend replaces the kernels that it computes faster and inherits the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from tinytorch.core.kernels.backend import Array, Backend, Kernel
from tinytorch.core.kernels.numpy import NUMPY
from tinytorch.core.kernels.reference import REFERENCE

__all__ = ["BACKENDS", "NUMPY", "REFERENCE", "Array", "Backend", "Kernel", "default_backend"]


class _Backends(Mapping[str, Backend]):
    """The backends of this machine by name; a compiled one is imported when it is looked up."""

    def __init__(self) -> None:
        self._loaded = {backend.name: backend for backend in (REFERENCE, NUMPY)}
        self._names = [*self._loaded, *(["numba"] if find_spec("numba") else [])]

    def __getitem__(self, name: str) -> Backend:
        if name not in self._loaded and name in self._names:
            from tinytorch.core.kernels.numba import NUMBA

            self._loaded[name] = NUMBA
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


BACKENDS: Mapping[str, Backend] = _Backends()


def default_backend() -> Backend:
    """Return the compiled backend where numba is installed and works, else `numpy`."""
    if "numba" not in BACKENDS:
        return NUMPY
    try:
        return BACKENDS["numba"]
    except Exception as error:  # a compiler has many ways to be broken; NumPy works anyway
        warnings.warn(
            f"numba is installed but cannot be used ({error}); computing with NumPy. "
            "TINYTORCH_BACKEND=numpy silences this",
            RuntimeWarning,
            stacklevel=2,
        )
        return NUMPY
