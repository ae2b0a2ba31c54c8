"""Calibration data, in the many forms in which people hold it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError

__all__ = ["Batches", "as_batches"]

Batches = tuple[tuple[Any, ...], ...]
"""The arguments of several calls of a model."""

WRONG = "calibration data is a tensor or batches of them, got {}"


def as_batches(samples: Any) -> Batches:
    """Give calibration data as the arguments of several calls.

    Taken are one tensor or array (a batch), or batches in a list, a tuple or a data loader: each a
    tensor, or a tuple of which the first item is the input, as with labels beside it.
    """
    if samples is None:
        return ()
    if isinstance(samples, (str, bytes, dict)):
        raise SettingError(WRONG.format(type(samples).__name__))
    if isinstance(samples, (Tensor, np.ndarray)) or hasattr(samples, "detach"):
        samples = [samples]
    tensors = getattr(samples, "tensors", None)  # a data set, whose first one holds the inputs
    if isinstance(tensors, (tuple, list)) and tensors:
        samples = [tensors[0]]
    try:
        batches = list(samples)
    except TypeError:
        raise SettingError(WRONG.format(type(samples).__name__)) from None
    return tuple((_input_of(batch),) for batch in batches)


def _input_of(batch: Any) -> Any:
    """Give the tensor in a batch, which may stand first in a tuple, with labels behind it."""
    first = batch[0] if isinstance(batch, (tuple, list)) and len(batch) else batch
    if isinstance(first, np.ndarray):
        first = Tensor(first)
    if not hasattr(first, "shape"):
        raise SettingError(WRONG.format(f"a batch with {type(first).__name__} in it"))
    return first
