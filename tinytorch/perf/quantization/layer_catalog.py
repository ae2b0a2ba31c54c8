"""What each kind of layer becomes when it is quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tinytorch.core.backends import Array
from tinytorch.core.backends.int4_packing import packed_length_int4
from tinytorch.core.backends.int8_packing import MOST_INPUTS, packed_length
from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import TiedHead
from tinytorch.errors import SettingError
from tinytorch.perf.quantization.packed_weight import (
    PackedWeight,
    check_group_size,
    pack_weight,
    quantize_weight,
)
from tinytorch.perf.quantization.quantized_conv2d import GEOMETRY, QuantizedConv2d, kernel_matrix
from tinytorch.perf.quantization.quantized_embeddings import (
    QuantizedEmbedding,
    QuantizedPositionalEmbedding,
)
from tinytorch.perf.quantization.quantized_layer import QuantizedLayer
from tinytorch.perf.quantization.quantized_linear import QuantizedLinear

__all__ = ["CATALOG", "Entry", "PackedWeights", "extra_bytes", "held_bytes", "why_not_packed"]

BYTES_PER_SCALE = BYTES_PER_SUM = BYTES_PER_BIAS = 4
BYTES_PER_STEP = 8  # scale and zero point of the inputs


class PackedWeights:
    """The weights that were packed so far: layers that share one share its packed form, too."""

    def __init__(self) -> None:
        self._packed: dict[tuple[int, bool, int], tuple[Tensor, PackedWeight]] = {}

    def of(self, weight: Tensor, entry: Entry, settings: Mapping[str, Any]) -> PackedWeight:
        """Quantize and pack a weight as the settings of a step say."""
        bits, group_size = settings["bits"], settings.get("group_size")
        key = (id(weight), entry.is_transposed, bits)
        if key not in self._packed:
            matrix = entry.matrix(weight.data)
            quantized = quantize_weight(matrix, bits=bits, group_size=group_size)
            self._packed[key] = weight, pack_weight(quantized)  # its id stays taken
        return self._packed[key][1]


@dataclass(frozen=True)
class Entry:
    """How one kind of layer is quantized.

    `matrix` gives its weight as (inputs, outputs); `multiplies` tells whether inputs of floats meet
    the weight, so that they can be quantized, too.
    """

    weight: Callable[[Any], Tensor]
    matrix: Callable[[Array], Array]
    build: Callable[[Any, Mapping[str, Any], PackedWeights], QuantizedLayer]
    multiplies: bool = True
    takes_int4: bool = False
    is_transposed: bool = False


def _bias(layer: Any) -> Array | None:
    return None if layer.bias is None else layer.bias.data


def _with_inputs(layer: Any, settings: Mapping[str, Any]) -> Any:
    """Fix the range of the inputs where the step has one."""
    if "input_scale" in settings:
        layer.set_input_step(settings["input_scale"], settings["input_zero_point"])
    return layer


def _original_bytes(layer: Any) -> int:
    return layer.weight.data.nbytes + (0 if layer.bias is None else layer.bias.data.nbytes)


def _linear(layer: Linear, settings: Mapping[str, Any], packed: PackedWeights) -> QuantizedLayer:
    weight = packed.of(layer.weight, CATALOG[Linear], settings)
    quantized = QuantizedLinear.of(
        weight, _bias(layer), settings["mode"], original_bytes=_original_bytes(layer)
    )
    return _with_inputs(quantized, settings)


def _conv2d(layer: Conv2d, settings: Mapping[str, Any], packed: PackedWeights) -> QuantizedLayer:
    weight = packed.of(layer.weight, CATALOG[Conv2d], settings)
    geometry = {name: getattr(layer, name) for name in GEOMETRY}
    quantized = QuantizedConv2d.of(
        weight, _bias(layer), settings["mode"], geometry, original_bytes=_original_bytes(layer)
    )
    return _with_inputs(quantized, settings)


def _embedding(
    layer: Embedding, settings: Mapping[str, Any], packed: PackedWeights
) -> QuantizedLayer:
    weight = packed.of(layer.weight, CATALOG[Embedding], settings)
    return QuantizedEmbedding.of(weight, original_bytes=layer.weight.data.nbytes)


def _head(layer: TiedHead, settings: Mapping[str, Any], packed: PackedWeights) -> QuantizedLayer:
    table = layer.embedding.weight
    weight = packed.of(table, CATALOG[Embedding], settings)
    head = QuantizedLinear.of(weight, None, settings["mode"], original_bytes=table.data.nbytes)
    return _with_inputs(head, settings)


def _positions(
    layer: PositionalEmbedding, settings: Mapping[str, Any], packed: PackedWeights
) -> QuantizedLayer:
    return QuantizedPositionalEmbedding(layer)


def _own_weight(layer: Any) -> Tensor:
    return layer.weight


CATALOG: dict[type[Module], Entry] = {
    Linear: Entry(_own_weight, lambda weight: weight, _linear, takes_int4=True),
    Conv2d: Entry(_own_weight, kernel_matrix, _conv2d),
    Embedding: Entry(
        _own_weight, lambda table: table.T, _embedding, multiplies=False, is_transposed=True
    ),
    PositionalEmbedding: Entry(
        _own_weight, lambda table: table.T, _positions, multiplies=False, is_transposed=True
    ),
    TiedHead: Entry(
        lambda head: head.embedding.weight, lambda table: table.T, _head, is_transposed=True
    ),
}
"""Layers by their exact class: a subclass may compute something else."""


def why_not_packed(entry: Entry, layer: Any, settings: Mapping[str, Any]) -> str:
    """Say why the weight of a layer cannot be packed so, or nothing."""
    weight = entry.weight(layer).data
    if weight.dtype.kind != "f":
        return f"its weight holds {weight.dtype}, no floats"
    inputs, _ = entry.matrix(weight).shape
    if inputs > MOST_INPUTS:
        return f"sums over {inputs:,} inputs may not fit into 32 bits (at most {MOST_INPUTS:,})"
    if settings["bits"] == 4:
        try:
            check_group_size(inputs, settings["group_size"])
        except SettingError as error:
            return str(error)
    return ""


def held_bytes(entry: Entry, layer: Any, settings: Mapping[str, Any]) -> int:
    """Count from the shapes what the weight of a layer takes when it is quantized so."""
    inputs, outputs = entry.matrix(entry.weight(layer).data).shape
    if isinstance(layer, PositionalEmbedding):
        return outputs * (inputs + BYTES_PER_SCALE)  # plain rows: they are never multiplied
    if settings["bits"] == 4:
        groups = inputs // settings["group_size"]
        return packed_length_int4(inputs, outputs) + groups * outputs * BYTES_PER_SCALE
    return packed_length(inputs, outputs) + outputs * BYTES_PER_SCALE


def extra_bytes(layer: Any, settings: Mapping[str, Any], outputs: int) -> int:
    """Count what a layer holds beside its packed weight: bias, sums, the step of its inputs."""
    bias = outputs * BYTES_PER_BIAS if getattr(layer, "bias", None) is not None else 0
    sums = outputs * BYTES_PER_SUM if settings["mode"] != "weight_only" else 0
    # a static layer gets its step when it is calibrated, which is part of the plan
    return bias + sums + (BYTES_PER_STEP if settings["mode"] == "static" else 0)
