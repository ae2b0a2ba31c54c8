"""What a backend is: a named table of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Backend:
    """A table from the kind of an operation to the function that computes it on arrays."""

    name: str
    kernels: Mapping[str, Kernel]

    def extended(self, name: str, kernels: Mapping[str, Kernel]) -> Backend:
        """Give a backend that computes `kernels` its own way and inherits the rest."""
        unknown = kernels.keys() - self.kernels.keys()
        assert not unknown, f"{name} has kernels that {self.name} lacks: {sorted(unknown)}"
        return Backend(name, MappingProxyType({**self.kernels, **kernels}))
