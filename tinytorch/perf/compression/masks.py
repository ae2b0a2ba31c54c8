"""Masks: which weights of a model stay, and which are zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import named_tensors
from tinytorch.core.backends import Array
from tinytorch.core.checkpoints import read_arrays, write_arrays
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CheckpointError, SettingError
from tinytorch.perf.compression.prunable_layers import find_prunables

__all__ = ["Masks", "set_zero"]

KEY = "tinytorch_masks"
"""Marks the files that hold masks."""


@dataclass(frozen=True, eq=False)
class Masks:
    """Which weights of a model stay, as arrays of bool by the name of the parameter.

    A weight that several layers share has one mask, under the first of its names.
    """

    kept: Mapping[str, Array]

    def __post_init__(self) -> None:
        for name, mask in self.kept.items():
            kind = getattr(mask, "dtype", type(mask).__name__)
            if kind != np.bool_:
                raise SettingError(f"the mask of {name!r} must be an array of bool, got {kind}")

    @classmethod
    def of(cls, model: Any, names: Iterable[str] | None = None) -> Self:
        """Take the zeros that are in the weights of linear layers and convolutions now.

        `names` are those of other parameters to look at instead.
        """
        weights = _weights(model)
        if names is None:
            chosen = _prunable_names(model)
        else:
            chosen = list(names)
            _check_known(chosen, weights)
        return cls({name: _is_kept(weights[name]) for name in chosen})

    def apply(self, model: Any) -> None:
        """Set all weights that do not stay to zero, in place; nothing changes unless all fit."""
        weights = _weights(model)
        _check_known(self.kept, weights)
        for name, mask in self.kept.items():
            shape = tuple(weights[name].shape)
            if shape != mask.shape:
                raise SettingError(
                    f"the mask of {name!r} has shape {mask.shape}, the parameter has {shape}; "
                    "the masks are those of another model"
                )
        for name, mask in self.kept.items():
            if isinstance(weights[name], Tensor):
                set_zero(weights[name], ~mask)
            else:
                from tinytorch.perf.compression.masks_torch import set_zero_torch

                set_zero_torch(weights[name], ~mask)

    @property
    def size(self) -> int:
        """How many weights the masks cover."""
        return sum(mask.size for mask in self.kept.values())

    @property
    def zeros(self) -> int:
        """How many of them are zero."""
        return self.size - sum(int(np.count_nonzero(mask)) for mask in self.kept.values())

    @property
    def sparsity(self) -> float:
        """The share of the weights that are zero; 0 for no weights."""
        return self.zeros / self.size if self.size else 0.0

    def save(self, path: str | Path) -> None:
        """Write the masks to a safetensors file, atomically."""
        write_arrays(path, self.kept, {KEY: 1})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote."""
        arrays, metadata = read_arrays(path)
        if KEY not in metadata:
            raise CheckpointError(f"{path} holds no masks; Masks.save() writes such a file")
        return cls(arrays)


def set_zero(weight: Tensor, chosen: Array) -> None:
    """Set the chosen weights to zero, in the array that the tensor has if that can be written."""
    if not weight.data.flags.writeable:
        weight.data = weight.data.copy()
    weight.data[chosen] = 0


def _weights(model: Any) -> Mapping[str, Any]:
    if adapter_for(model).name == "pytorch":
        from tinytorch.perf.compression.masks_torch import named_weights

        return named_weights(model)
    return named_tensors(model)


def _prunable_names(model: Any) -> list[str]:
    if adapter_for(model).name == "pytorch":
        from tinytorch.perf.compression.masks_torch import maskable_names

        return maskable_names(model)
    prunables, _ = find_prunables(model)
    return [each.name for each in prunables if not each.is_left]


def _is_kept(weight: Any) -> Array:
    if isinstance(weight, Tensor):
        return weight.data != 0
    kept: Array = (weight.detach() != 0).cpu().numpy()
    return kept


def _check_known(names: Iterable[str], weights: Mapping[str, Any]) -> None:
    unknown = [name for name in names if name not in weights]
    if unknown:
        raise SettingError(
            f"the model has no parameter {unknown[0]!r}; it has {', '.join(list(weights)[:5])}"
        )
