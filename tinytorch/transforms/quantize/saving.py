"""Quantized models as files: whole numbers and scales, in the usual order.

The file is the one of :mod:`tinytorch.formats.weights_file`, with the names and shapes that the
float model has. Its metadata says how the quantized layers compute; sums and the layout of the
kernels are made again when it is loaded."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.kernels import Array
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.transformers import TiedHead
from tinytorch.errors import CheckpointError, SettingError, TinyTorchError
from tinytorch.formats.affine import QuantizedArray, Scheme
from tinytorch.formats.weights_file import read_weights, write_weights
from tinytorch.models.adapter import replace_layers
from tinytorch.transforms.compressed_file import check_fits
from tinytorch.transforms.quantize import check_not_quantized
from tinytorch.transforms.quantize.layers import (
    CATALOG,
    MODES,
    PackedWeight,
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedLayer,
    QuantizedLinear,
    QuantizedPositionalEmbedding,
    QuantizedProduct,
    kernel_matrix,
    pack_weight,
    product_of,
)

# ---------------------------------------------------------------- a quantized layer as it stands
# in a file: its weight in the shape that the float layer has

BY_ROW = Scheme(8, symmetric=True, axis=0)
BY_COLUMN = Scheme(8, symmetric=True, axis=1)


def within(layer: str, name: str) -> str:
    """Return the name of a tensor of a layer; the model itself is ""."""
    return f"{layer}.{name}" if layer else name


def stored_weight(layer: Any) -> QuantizedArray:
    """Return the weight of a quantized layer in the shape that the float layer has."""
    if isinstance(layer, QuantizedPositionalEmbedding):
        return layer.unpacked()
    matrix: QuantizedArray = layer.packed.unpacked()
    if isinstance(layer, QuantizedLinear):
        return matrix
    rows = np.ascontiguousarray(matrix.values.T)  # outputs first
    if isinstance(layer, QuantizedConv2d):
        inputs = layer.in_channels // layer.groups
        rows = rows.reshape(layer.out_channels, inputs, *layer.kernel_size)
    return replace(matrix, values=rows, scheme=BY_ROW)


class LayerReader:
    """Makes quantized layers of what is in a file, and takes it out of the arrays."""

    def __init__(self, arrays: dict[str, Any], *, steps: Array) -> None:
        self._arrays, self._steps = arrays, steps
        self._packed: dict[str, PackedWeight] = {}
        self._static: dict[str, QuantizedProduct] = {}

    def read(self, name: str, layer: Any, settings: Mapping[str, Any]) -> QuantizedLayer:
        """Make the quantized form of a layer; of those that share a weight, the owner first."""
        weight = CATALOG[type(layer)].weight(layer)
        owner = settings.get("of", name)
        if isinstance(layer, PositionalEmbedding):
            table = self._weight(name, weight.shape, BY_ROW)
            return QuantizedPositionalEmbedding.of(table, original_bytes=weight.data.nbytes)
        if owner == name:
            self._packed[name] = self._pack(name, layer, weight.shape)
        elif owner not in self._packed:
            raise CheckpointError(f"it shares the weight of {owner!r}, which is not there")
        packed = self._packed[owner]
        wanted = CATALOG[type(layer)].matrix(weight.data).shape
        if packed.shape != wanted:
            raise CheckpointError(f"a weight {packed.shape} of {owner!r} does not fit {wanted}")
        if isinstance(layer, Embedding):
            return QuantizedEmbedding.of(packed, original_bytes=weight.data.nbytes)
        return self._product(name, layer, settings, packed)

    def give_steps(self) -> None:
        """Fix the ranges of the inputs, once all layers are there."""
        if self._steps.shape != (len(self._static), 2):
            raise CheckpointError(
                f"steps of shape {self._steps.shape} do not fit {len(self._static)} static layers"
            )
        for (name, layer), step in zip(sorted(self._static.items()), self._steps, strict=True):
            scale, zero_point = step.tolist()
            if not (0 < scale < math.inf and zero_point in range(-128, 128)):
                raise CheckpointError(
                    f"layer {name!r}: no inputs have steps of {scale} and zero at {zero_point}"
                )
            layer.restore_input_step(scale, int(zero_point))

    def _weight(self, name: str, shape: tuple[int, ...], *schemes: Scheme) -> QuantizedArray:
        stored = self._arrays.pop(within(name, "weight"), None)
        if not isinstance(stored, QuantizedArray):
            raise CheckpointError("there is no quantized weight for it")
        if stored.values.shape != shape:
            raise CheckpointError(
                f"its weight has shape {stored.values.shape}, the model needs {shape}"
            )
        if schemes and stored.scheme not in schemes:
            raise CheckpointError(
                f"its weight is quantized as {stored.scheme}, which it cannot use"
            )
        return stored

    def _pack(self, name: str, layer: Any, shape: tuple[int, ...]) -> PackedWeight:
        if isinstance(layer, Linear):
            stored = self._weight(name, shape)
            is_int4 = stored.scheme == replace(
                BY_COLUMN, bits=4, group_size=stored.scheme.group_size
            )
            if stored.scheme != BY_COLUMN and not (is_int4 and stored.scheme.group_size):
                raise CheckpointError(f"its weight is quantized as {stored.scheme}")
            return pack_weight(stored)
        stored = self._weight(name, shape, BY_ROW)
        matrix = kernel_matrix(stored.values)  # also right for a table (tokens, width)
        return pack_weight(replace(stored, values=matrix, scheme=BY_COLUMN))

    def _product(
        self, name: str, layer: Any, settings: Mapping[str, Any], packed: PackedWeight
    ) -> QuantizedLayer:
        """Make a layer that multiplies; the bias of a static one is in whole numbers already."""
        bias = self._arrays.pop(within(name, "bias"), None)
        has_bias = not isinstance(layer, TiedHead) and layer.bias is not None
        if (bias is not None) is not has_bias or (
            has_bias and not (isinstance(bias, np.ndarray) and bias.shape == layer.bias.shape)
        ):
            raise CheckpointError("its bias is not the one that the model needs")
        wanted = ("float32", "int32") if settings["mode"] == "static" else ("float32",)
        if has_bias and bias.dtype not in wanted:
            raise CheckpointError(f"its bias holds {bias.dtype}, not {' or '.join(wanted)}")
        mode = settings["mode"]
        made = product_of(layer, packed, bias, mode)
        if mode == "static":
            self._static[name] = made
        return made


# ---------------------------------------------------------------- quantized models as files: whole
# numbers and scales, in the usual order

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
    """Return a quantized copy of a float model with the weights of a file, and the file's metadata.

    The float model says what the structure is, for example one that was just built; its own weights
    do not matter, and it is not changed.
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
    """Return how layers compute: the usual mode once, and the steps of each layer that differs.

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
    check_fits(arrays, own)
    for name, tensor in own.items():
        tensor.data = arrays[name].astype(tensor.dtype)
        tensor.requires_grad = False
