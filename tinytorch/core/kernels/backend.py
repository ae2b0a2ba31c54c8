"""What a backend is: a named table of kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Backend:
    """A table from the kind of an operation to the function that computes it on arrays.

    `decode`, where there is one, computes a whole decoding step of a language model; it stands for
    the kernels of this table, and so an extended one has none.
    """

    name: str
    kernels: Mapping[str, Kernel]
    decode: Kernel | None = None

    def extended(self, name: str, kernels: Mapping[str, Kernel]) -> Backend:
        """Return a backend with `kernels` replaced and the others inherited."""
        unknown = kernels.keys() - self.kernels.keys()
        assert not unknown, f"{name} has kernels that {self.name} lacks: {sorted(unknown)}"
        return Backend(name, MappingProxyType({**self.kernels, **kernels}))


# ---------------------------------------------------------------- matrix products by NumPy,
# without its warnings about results that are finite
#
# BLAS sometimes leaves a floating-point flag behind that says nothing about the product: its
# vectorised loops also compute on what they then drop. NumPy reports each flag as a warning.


class _Flags(threading.local):
    """Runs a NumPy function with floating-point flags recorded instead of reported, per thread.

    NumPy keeps its error state in a context variable, so a context that was prepared once takes a
    tenth of a microsecond per call; a block of `numpy.errstate` takes half of one.
    """

    def __init__(self) -> None:
        self.raised = False
        context = Context()
        context.run(np.seterr, divide="call", over="call", invalid="call")
        context.run(np.seterrcall, self._note)
        self.run = context.run

    def _note(self, kind: str, flags: int) -> None:
        self.raised = True


_flags = _Flags()


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """Compute a @ b as `numpy.matmul`; it warns, or raises, only if the result is not finite."""
    flags = _flags
    result: Array = flags.run(np.matmul, a, b, out)
    if flags.raised:
        flags.raised = False
        if not np.isfinite(result).all():
            return np.matmul(a, b, out)  # once more, now with the caller's error state
    return result
