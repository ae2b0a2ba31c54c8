"""A quantized layer as it stands in a file: its weight in the shape that the float layer has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.layers import Linear
from tinytorch.core.spatial import Conv2d
from tinytorch.core.transformers import TiedHead
from tinytorch.errors import CheckpointError
from tinytorch.formats.affine import QuantizedArray, Scheme
from tinytorch.perf.quantization.layer_catalog import CATALOG
from tinytorch.perf.quantization.packed_weight import PackedWeight, pack_weight
from tinytorch.perf.quantization.quantized_conv2d import GEOMETRY, QuantizedConv2d, kernel_matrix
from tinytorch.perf.quantization.quantized_embeddings import (
    QuantizedEmbedding,
    QuantizedPositionalEmbedding,
)
from tinytorch.perf.quantization.quantized_layer import QuantizedLayer, QuantizedProduct
from tinytorch.perf.quantization.quantized_linear import QuantizedLinear

__all__ = ["LayerReader", "stored_weight", "within"]

BY_ROW = Scheme(8, symmetric=True, axis=0)
BY_COLUMN = Scheme(8, symmetric=True, axis=1)


def within(layer: str, name: str) -> str:
    """Give the name of a tensor of a layer; the model itself is ""."""
    return f"{layer}.{name}" if layer else name


def stored_weight(layer: Any) -> QuantizedArray:
    """Give the weight of a quantized layer in the shape that the float layer has."""
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
        weight = CATALOG[type(layer)].weight(layer)
        held = weight.data.nbytes + (layer.bias.data.nbytes if has_bias else 0)
        mode = settings["mode"]
        made: QuantizedProduct
        if isinstance(layer, Conv2d):
            geometry = {each: getattr(layer, each) for each in GEOMETRY}
            made = QuantizedConv2d.of(packed, bias, mode, geometry, original_bytes=held)
        else:
            made = QuantizedLinear.of(packed, bias, mode, original_bytes=held)
        if mode == "static":
            self._static[name] = made
        return made
