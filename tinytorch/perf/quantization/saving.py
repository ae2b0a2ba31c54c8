"""Quantized models as files: whole numbers and scales, in the order in which anybody expects them.

The file is the one of :mod:`tinytorch.formats.weights_file`, with the names and shapes that the
float model has. Its metadata says how the quantized layers compute; sums and the layout of the
kernels are made again when it is loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.adapters.surgery import replace_layers
from tinytorch.core.backends import Array
from tinytorch.core.module import Module
from tinytorch.errors import CheckpointError, SettingError, TinyTorchError
from tinytorch.formats.affine import QuantizedArray
from tinytorch.formats.weights_file import read_weights, write_weights
from tinytorch.perf.quantization.layer_catalog import CATALOG
from tinytorch.perf.quantization.planning import check_not_quantized
from tinytorch.perf.quantization.quantized_layer import MODES, QuantizedLayer, QuantizedProduct
from tinytorch.perf.quantization.quantized_linear import QuantizedLinear
from tinytorch.perf.quantization.stored_layers import LayerReader, stored_weight, within

__all__ = ["load_quantized", "save_quantized"]

OWN = "own"
"""Where the metadata holds what the caller wants to keep, beside how quantized layers compute."""

STEPS = "/steps"
"""Scale and zero point of the inputs, a row for each static layer in the order of their names."""


def save_quantized(
    path: str | Path, model: Module, metadata: Mapping[str, Any] | None = None
) -> int:
    """Write a quantized model to one file, atomically, and give its size in bytes."""
    if not isinstance(model, Module):
        raise SettingError(
            f"this writes modules of tinytorch, got {type(model).__name__}; a model of PyTorch "
            "writes itself: torch.save(model.state_dict(), path)"
        )
    arrays: dict[str, Array | QuantizedArray] = {}
    layers: dict[str, QuantizedLayer] = {}
    shared: dict[str, str] = {}  # layer -> the first one with the same weight
    owners: dict[int, str] = {}
    written: set[int] = set()
    for name, layer in model.named_modules():
        if not isinstance(layer, QuantizedLayer):
            continue
        if isinstance(layer, QuantizedLinear) and layer.activation:
            raise SettingError(
                f"layer {name!r} computes the {layer.activation} after it, too, for which a file "
                "has no place; save the model before its layers are fused"
            )
        layers[name] = layer
        written |= {id(tensor) for tensor in vars(layer).values()}
        owner = owners.setdefault(id(layer.values), name)
        if owner == name:
            arrays[within(name, "weight")] = stored_weight(layer)
        else:
            shared[name] = owner
        if isinstance(layer, QuantizedProduct) and layer.bias is not None:
            arrays[within(name, "bias")] = layer.bias.data
    if not layers:
        raise SettingError(
            f"{type(model).__name__} has no quantized layer; save_checkpoint() writes float models"
        )
    for name, tensor in model._named_tensors():
        if id(tensor) not in written:
            arrays[name] = tensor.data
    described, steps = _described(layers, shared)
    if steps:
        arrays[STEPS] = np.stack(steps)
    own = {OWN: dict(metadata)} if metadata else {}
    return write_weights(path, arrays, {**described, **own})


def load_quantized(path: str | Path, model: Module) -> tuple[Module, dict[str, Any]]:
    """Give a quantized copy of a float model with the weights of a file, and the file's metadata.

    The float model says what the structure is, for example one that was just built; its own weights
    do not matter, and it stays as it is.
    """
    file = read_weights(path)
    described = file.metadata
    if described.get("mode") not in MODES:
        raise CheckpointError(f"{path} holds no quantized model, only arrays")
    twin = copy.deepcopy(model)
    arrays = dict(file.arrays)
    try:
        quantized = _quantized_layers(twin, described, arrays)
        result: Module = replace_layers(twin, quantized)
        _fill_floats(result, arrays)
    except (CheckpointError, SettingError) as error:
        raise CheckpointError(f"{path} does not fit {type(model).__name__}: {error}") from error
    own = file.metadata.get(OWN, {})
    return result, dict(own) if isinstance(own, dict) else {}


# ---------------------------------------------------------------- what the metadata says


def _described(
    layers: Mapping[str, QuantizedLayer], shared: Mapping[str, str]
) -> tuple[dict[str, Any], list[Array]]:
    """Say how layers compute: the usual mode once, and each layer that differs. Give their steps.

    The metadata of a small model would otherwise be as large as one of its layers.
    """
    products = {name: each for name, each in layers.items() if isinstance(each, QuantizedProduct)}
    modes = [each.mode for each in products.values()]
    usual = max(modes, key=modes.count, default="weight_only")
    others: dict[str, dict[str, Any]] = {name: {"of": owner} for name, owner in shared.items()}
    steps = []
    for name, layer in sorted(products.items()):
        own: dict[str, Any] = {} if layer.mode == usual else {"mode": layer.mode}
        if own:
            others[name] = others.get(name, {}) | own
        if layer.input_step is not None:
            steps.append(layer.input_step.data)
    return {"mode": usual, **({"layers": others} if others else {})}, steps


def _quantized_layers(
    twin: Module, described: Mapping[str, Any], arrays: dict[str, Any]
) -> dict[int, QuantizedLayer]:
    """Make the layers of a file, and take what they need out of the arrays."""
    modules = dict(twin.named_modules())
    check_not_quantized(modules)
    others = described.get("layers", {})
    if not isinstance(others, dict) or not all(isinstance(e, dict) for e in others.values()):
        raise CheckpointError("its metadata is not the one of a quantized model")
    named = (name for name, array in arrays.items() if isinstance(array, QuantizedArray))
    names = {name.removesuffix("weight").removesuffix(".") for name in named} | set(others)
    reader = LayerReader(arrays, steps=_steps(arrays))
    quantized: dict[int, QuantizedLayer] = {}
    for name in sorted(names, key=lambda each: ("of" in others.get(each, {}), each)):
        layer = modules.get(name)
        if layer is None or type(layer) not in CATALOG:
            kind = "nothing" if layer is None else f"a {type(layer).__name__}"
            raise CheckpointError(f"it has a quantized layer {name!r}, the model {kind} there")
        settings = {"mode": described.get("mode"), **others.get(name, {})}
        try:
            quantized[id(layer)] = reader.read(name, layer, settings)
        except (TinyTorchError, TypeError) as error:  # also what a foreign file may hold
            raise CheckpointError(f"layer {name!r}: {error}") from error
    reader.give_steps()
    return quantized


def _steps(arrays: dict[str, Any]) -> Array:
    steps = arrays.pop(STEPS, None)
    if steps is None:
        return np.empty((0, 2), np.float32)
    if not isinstance(steps, np.ndarray) or steps.dtype != np.float32:
        raise CheckpointError("the steps of its inputs are no float32 numbers")
    return steps


def _fill_floats(model: Module, arrays: Mapping[str, Any]) -> None:
    """Copy what was not quantized into a model whose quantized layers are complete."""
    done = {
        id(tensor)
        for layer in model.modules()
        if isinstance(layer, QuantizedLayer)
        for tensor in vars(layer).values()
    }
    own = {name: tensor for name, tensor in model._named_tensors() if id(tensor) not in done}
    problems = [f"unknown array {name!r}" for name in arrays if name not in own]
    for name, tensor in own.items():
        array = arrays.get(name)
        if not isinstance(array, np.ndarray):
            problems.append(f"no array {name!r}")
        elif array.shape != tensor.shape:
            problems.append(f"{name!r} has shape {array.shape}, the model needs {tensor.shape}")
    if problems:
        raise CheckpointError("; ".join(problems[:5]))
    for name, tensor in own.items():
        tensor.data = arrays[name].astype(tensor.dtype)
        tensor.requires_grad = False
