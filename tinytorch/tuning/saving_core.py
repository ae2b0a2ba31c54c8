"""Weights of TinyTorch models in a compressed weights file that also has the recipe."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import named_tensors
from tinytorch.core.tensor import Parameter
from tinytorch.formats.weights_file import describe_weights, read_weights, write_weights
from tinytorch.perf.compression.compressed_model import compressed_state, load_compressed
from tinytorch.perf.quantization.saving import load_quantized, save_quantized
from tinytorch.tuning.recipe import Recipe, carry_out
from tinytorch.workloads.workload import Workload

__all__ = ["CoreStorage", "recipe_in"]

OWN, RECIPE = "own", "recipe"
SEED = 8


class CoreStorage:
    """Files of TinyTorch models. `is_coded`: in as few bits as they need, which takes longer."""

    def __init__(self, *, is_coded: bool = True) -> None:
        self.is_coded = is_coded
        self.file_format = "compressed weights file" if is_coded else "weights file"

    def shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        """Give names and shapes of everything that a file holds of a model."""
        return {name: tensor.shape for name, tensor in named_tensors(model).items()}

    def digests(self, model: Any) -> dict[str, str]:
        """Give a hash of each tensor, by its name."""
        found = {}
        for name, tensor in named_tensors(model).items():
            array = tensor.data
            digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
            found[name] = digest.hexdigest()
        return found

    def with_other_weights(self, model: Any) -> Any:
        """Give a copy with random parameters, as somebody has who built the architecture anew."""
        twin = adapter_for(model).clone(model)
        rng = np.random.default_rng(SEED)
        for tensor in named_tensors(twin).values():
            if tensor.data.dtype.kind == "f" and isinstance(tensor, Parameter):
                spread = float(np.std(tensor.data)) or 1.0
                numbers = rng.standard_normal(tensor.shape) * spread
                tensor.data = numbers.astype(tensor.data.dtype)
        return twin

    def write(self, path: Path, model: Any, recipe: Recipe) -> None:
        """Write the weights and the recipe."""
        metadata = {RECIPE: recipe.to_dict()}
        if not _is_quantized(recipe):
            contents = {OWN: metadata}
            write_weights(path, compressed_state(model), contents, compact=self.is_coded)
            return
        save_quantized(path, model, metadata)
        if self.is_coded:
            file = read_weights(path)
            write_weights(path, file.arrays, file.metadata, compact=True)

    def rebuild(self, path: Path, workload: Workload, recipe: Recipe) -> Any:
        """Give the model of a file as it is before the last plans; its hash is not checked."""
        plans = recipe.plans[: recipe.weights_after]
        if _is_quantized(recipe):
            return load_quantized(path, carry_out(workload, plans[:-1]))[0]
        return load_compressed(path, carry_out(workload, plans))[0]


def recipe_in(path: Path) -> Any:
    """Give the recipe of a weights file, or None if it has none."""
    own = describe_weights(path).metadata.get(OWN)
    return own.get(RECIPE) if isinstance(own, Mapping) else None


def _is_quantized(recipe: Recipe) -> bool:
    """Tell whether the file has whole numbers under the names of the float model."""
    plans = recipe.plans[: recipe.weights_after]
    return bool(plans) and plans[-1].transform == "Quantize"
