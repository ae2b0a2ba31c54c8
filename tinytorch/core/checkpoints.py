"""Checkpoints: the state of a model (and its optimizer) in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.files import write_atomically
from tinytorch.core.module import Module
from tinytorch.core.optimizers import Optimizer
from tinytorch.errors import CheckpointError

__all__ = ["load_checkpoint", "read_arrays", "save_checkpoint", "write_arrays"]

OPTIMIZER_PREFIX = "optimizer/"
KEY = "__tinytorch"
"""Marks the files of ``tinytorch.formats``, which hold more than plain arrays."""


def save_checkpoint(
    path: str | Path,
    model: Module,
    optimizer: Optimizer | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a model, and an optimizer if given, atomically. `metadata` must fit into JSON."""
    arrays = dict(model.state_dict())
    if optimizer is not None:
        state = optimizer.state_dict()
        arrays |= {OPTIMIZER_PREFIX + name: array for name, array in state.items()}
    write_arrays(path, arrays, metadata)


def load_checkpoint(
    path: str | Path, model: Module, optimizer: Optimizer | None = None
) -> dict[str, Any]:
    """Load a checkpoint into a model, and into an optimizer if given; returns the metadata.

    Everything is read and checked first: when something does not fit, nothing changes.
    """
    arrays, metadata = read_arrays(path)
    state = {k: v for k, v in arrays.items() if not k.startswith(OPTIMIZER_PREFIX)}
    moments = {
        name.removeprefix(OPTIMIZER_PREFIX): array
        for name, array in arrays.items()
        if name.startswith(OPTIMIZER_PREFIX)
    }
    if optimizer is not None and not moments:
        raise CheckpointError(f"{path} holds no optimizer state")
    before = {name: array.copy() for name, array in model.state_dict().items()}
    try:
        model.load_state_dict(state)
        if optimizer is not None:
            optimizer.load_state_dict(moments)
    except CheckpointError as error:
        model.load_state_dict(before)
        hint = "; it is a file of write_weights() or save_quantized()" if KEY in metadata else ""
        raise CheckpointError(f"{path}: {error}{hint}") from error
    return metadata


def write_arrays(
    path: str | Path, arrays: Mapping[str, Array], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write named arrays as safetensors, atomically."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    texts = {name: json.dumps(value) for name, value in (metadata or {}).items()}
    try:
        with write_atomically(Path(path)) as temporary:
            save_file(contiguous, temporary, metadata=texts)
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def read_arrays(path: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read a safetensors file: arrays by name, and the metadata."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            texts = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read as safetensors (truncated, or another format?): {error}"
        ) from error
    except TypeError as error:  # bfloat16 and other formats of eight and sixteen bits
        raise CheckpointError(
            f"{path} holds numbers that NumPy does not have ({error}); save it as float32"
        ) from error
    return arrays, {name: _from_json(text) for name, text in texts.items()}


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # written by another tool
