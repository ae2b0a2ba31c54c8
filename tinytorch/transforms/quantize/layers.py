"""Quantized layers, and what each kind of layer becomes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from tinytorch.core.dispatch import run, state
from tinytorch.core.embeddings import Embedding, PositionalEmbedding, position_rows, token_ids
from tinytorch.core.kernels import Array
from tinytorch.core.kernels.packing import (
    MOST_INPUTS,
    STEP_INT4,
    aligned,
    pack_int4,
    pack_int8,
    packed_length,
    packed_length_int4,
    unpack_nibbles,
    unpack_values,
)
from tinytorch.core.kernels.reference_spatial import Pair, output_size
from tinytorch.core.layers import Linear, Product
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.spatial import Conv2d, check_window, on_batch
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import TiedHead
from tinytorch.errors import DTypeError, GraphError, SettingError, ShapeError
from tinytorch.formats.affine import QuantizedArray, Scheme, affine_parameters, quantize_array
from tinytorch.formats.ranges import RangeObserver, choose_range
from tinytorch.models.workload import as_batches

# ---------------------------------------------------------------- PackedWeight: a quantized matrix
# as the kernels take it, in tensors that layers can share

DEFAULT_GROUPS = (32, 16, 8)
"""Neighbouring inputs that share a scale in INT4, unless asked otherwise: the first that divides.
With 32 a weight takes five bits, its share of the scale included."""


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A matrix (inputs, outputs) of INT8 with a scale per output, or of INT4 with one per group.

    values: int8, in the layout of the kernels; scales: float32 (outputs,) or (groups, outputs).
    """

    values: Tensor
    scales: Tensor
    shape: tuple[int, int]
    bits: int
    group_size: int | None

    def unpacked(self) -> QuantizedArray:
        """Return values (inputs, outputs) and scales in the usual order."""
        unpack = unpack_values if self.bits == 8 else unpack_nibbles
        scale = self.scales.data
        return QuantizedArray(
            values=unpack(self.values.data, *self.shape),
            scale=scale,
            zero_point=np.zeros(scale.shape, np.int32),
            scheme=_scheme(self.bits, self.group_size),
        )

    def sums(self) -> Array:
        """Add up the values of each output (outputs,), to correct for inputs off the centre."""
        return unpack_values(self.values.data, *self.shape).sum(axis=0, dtype=np.int32)


def quantize_weight(
    matrix: Array, *, bits: int = 8, group_size: int | None = None
) -> QuantizedArray:
    """Quantize a matrix (inputs, outputs): each output by its extremes, INT4 groups by their error.

    Eight bits have steps to spare, so nothing is cut off; with four it pays to cut off the largest
    values where that makes the others more exact.
    """
    if bits == 4:
        group_size = default_group(len(matrix)) if group_size is None else group_size
        if group_size is None:
            raise SettingError(f"no group of 8 divides {len(matrix)} inputs; INT8 needs no groups")
        check_group_size(len(matrix), group_size)
    return quantize_array(matrix, _scheme(bits, group_size), fit="mse" if bits == 4 else "range")


def pack_weight(quantized: QuantizedArray) -> PackedWeight:
    """Lay out what :func:`quantize_weight` gave, or what a file holds."""
    values, scale, scheme = quantized.values, quantized.scale, quantized.scheme
    inputs, outputs = values.shape
    if scheme.bits == 8:
        packed_values, packed_scales, _ = pack_int8(values, scale).arrays
    else:
        assert scheme.group_size is not None
        packed_values, packed_scales = pack_int4(values, scale, group_size=scheme.group_size).arrays
    return PackedWeight(
        Tensor(packed_values),
        Tensor(packed_scales),
        (inputs, outputs),
        scheme.bits,
        scheme.group_size,
    )


def default_group(inputs: int) -> int | None:
    """Return the size of the groups that divide the inputs, or None where none does."""
    return next((size for size in DEFAULT_GROUPS if inputs % size == 0), None)


def check_group_size(inputs: int, group_size: int) -> None:
    """Raise unless groups of this size divide the inputs."""
    if group_size < 1 or group_size % STEP_INT4:
        raise SettingError(
            f"group_size must be a multiple of {STEP_INT4}, as the kernels read as many inputs at "
            f"once, got {group_size}"
        )
    if inputs % group_size:
        possible = [g for g in (16, 32, 64, 128) if inputs % g == 0]
        hint = f"{', '.join(map(str, possible))} would" if possible else "INT8 needs no groups"
        raise SettingError(f"group_size={group_size} does not divide {inputs} inputs; {hint}")


def _scheme(bits: int, group_size: int | None) -> Scheme:
    return Scheme(bits, symmetric=True, axis=1, group_size=group_size)


# ---------------------------------------------------------------- QuantizedLayer: what quantized
# layers have in common

MODES = ("weight_only", "dynamic", "static")
"""What happens to inputs: they stay floats, are quantized by what they are, or as calibrated."""

NO_SUMS = np.empty(0, np.int32)
"""In the place of the sums of a weight, for the kernels that do not need them."""

LARGEST_INT32 = 2**31 - 1
LARGEST_PRODUCT = 255 * 128


class QuantizedLayer(Module):
    """A layer that holds whole numbers instead of a float weight. It computes no gradients."""

    original_bytes: int
    """What the weight and the bias took as floats."""

    values: Tensor
    weight_size: int
    """How many weights the values stand for: packed ones are fewer or more."""

    @classmethod
    def of(cls, *held: Any, **about: Any) -> Self:
        """Make one of what `_fill` takes: packed weights, which other layers may hold as well."""
        layer = cls.__new__(cls)
        layer._fill(*held, **about)
        return layer

    def _fill(self, *held: Any, **about: Any) -> None:
        raise NotImplementedError

    def memory_usage(self) -> dict[str, Any]:
        """Return the bytes of the float layer and those that are really held, and their ratio."""
        held = sum(tensor.data.nbytes for _, tensor in self._named_tensors())
        return {
            "original_bytes": self.original_bytes,
            "quantized_bytes": held,
            "compression_ratio": self.original_bytes / held,
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = super().__deepcopy__(memo)
        if twin.values.ndim == 1:  # packed; a copy may lie anywhere
            twin.values.data = aligned(twin.values.data)
        return twin


class QuantizedProduct(QuantizedLayer):
    """A quantized layer that is a product of its inputs and a packed weight.

    Without calibration inputs are quantized as they come (`dynamic`), or stay floats
    (`weight_only`); :meth:`calibrate` fixes their range (`static`).
    """

    operation: ClassVar[str]
    """What the names of the kernels have in common: ``int8_{operation}_{mode}``."""

    def _hold(
        self, packed: PackedWeight, bias: Array | None, mode: str, *, original_bytes: int
    ) -> None:
        if mode not in MODES:
            raise SettingError(f"unknown mode {mode!r}; there are {', '.join(MODES)}")
        if packed.bits == 4 and mode != "weight_only":
            raise SettingError(f"INT4 weights meet float inputs: mode='weight_only', not {mode!r}")
        self.values = packed.values
        self.scales = packed.scales
        self.weight_shape = packed.shape
        self.weight_size = packed.shape[0] * packed.shape[1]
        self.bits = packed.bits
        self.group_size = packed.group_size
        self.bias = None if bias is None else Tensor(_held_bias(bias))
        self.original_bytes = original_bytes
        # a layer that waits for its calibration works in the meantime
        self.mode = "dynamic" if mode == "static" else mode
        self.sums = None if mode == "weight_only" else Tensor(packed.sums())
        self.input_step: Tensor | None = None

    @property
    def packed(self) -> PackedWeight:
        """The weight, in tensors that another layer can share."""
        return PackedWeight(self.values, self.scales, self.weight_shape, self.bits, self.group_size)

    # ------------------------------------------------------------ calibrating

    def calibrate(self, samples: Any, ranges: str = "mse") -> Self:
        """Fix the range of the inputs by samples: a tensor, or several; then mode is `static`.

        `ranges` says how: see :func:`tinytorch.formats.ranges.choose_range`.
        """
        observer = RangeObserver()
        for (sample,) in as_batches(samples):
            self.check_input(sample)
            observer.update(sample.data)
        if not observer.statistics.count:
            raise SettingError(f"{self!r} cannot be calibrated without samples; give some inputs")
        return self.set_input_range(*choose_range(observer.statistics, ranges))

    def set_input_range(self, low: float, high: float) -> Self:
        """Quantize inputs between these from now on; what lies outside is cut off."""
        scale, zero_point = affine_parameters(low, high)
        return self.set_input_step(float(scale), int(zero_point))

    def set_input_step(self, scale: float, zero_point: int) -> Self:
        """Quantize an input x to round(x / scale) + zero_point, and the bias to int32."""
        if self.bits != 8:
            raise SettingError(f"{self!r} has INT4 weights, which meet float inputs")
        if self.mode == "static":
            raise SettingError(
                f"{self!r} is calibrated, and its bias rounded by that; make a new one from the "
                "float layer"
            )
        if self.sums is None:
            self.sums = Tensor(self.packed.sums())
        bias = None if self.bias is None else self.bias.data
        self.restore_input_step(scale, zero_point)
        if bias is not None:
            whole = np.rint(bias / (np.float64(scale) * self.scales.data))
            room = LARGEST_INT32 - self.weight_shape[0] * LARGEST_PRODUCT
            fits = bool((np.abs(whole) <= room).all())  # else sums could run over: it stays
            self.bias = Tensor(whole.astype(np.int32) if fits else bias)
        return self

    def restore_input_step(self, scale: float, zero_point: int) -> None:
        """Do the same with a bias that is quantized by this step already, as in a file."""
        self.input_step = Tensor(np.array([scale, zero_point], np.float32))
        self.mode = "static"

    # ------------------------------------------------------------ computing

    def check_input(self, x: Any) -> None:
        """Raise unless this layer can compute with x."""
        raise NotImplementedError

    def _compute(self, x: Tensor) -> Tensor:
        """Run the kernel; the result has the dtype of x."""
        if x.requires_grad and state.grad_enabled:
            raise GraphError(
                f"{self!r} lets no gradient through; call it inside of no_grad(), or train the "
                "float layer"
            )
        kind, arrays, settings = self.product()
        result = run(kind, x.data, *arrays, **settings)
        return Tensor(result if result.dtype == x.data.dtype else result.astype(x.data.dtype))

    def product(self) -> Product:
        """Return the kernel that computes this layer, what it takes after x, and its settings."""
        bias = None if self.bias is None else self.bias.data
        if self.bits == 4:
            settings: dict[str, Any] = {"group_size": self.group_size}
            arrays: tuple[Any, ...] = (self.values.data, self.scales.data, bias)
            return "int4_linear_weight_only", arrays, settings
        sums = NO_SUMS if self.sums is None else self.sums.data
        settings = {}
        if self.input_step is not None:
            scale, zero_point = self.input_step.data.tolist()
            settings = {"scale": scale, "zero_point": int(zero_point)}
        kind = f"int8_{self.operation}_{self.mode}"
        return kind, (self.values.data, self.scales.data, sums, bias), settings

    def _mode_repr(self) -> str:
        text = f"bits={self.bits}, mode={self.mode!r}"
        return text if self.group_size is None else f"{text}, group_size={self.group_size}"


def check_kind(layer: QuantizedLayer, original: Any, kind: type[Module]) -> None:
    """Raise unless a layer is made from one of its kind."""
    if not isinstance(original, kind):
        raise DTypeError(
            f"{type(layer).__name__} is made from a {kind.__name__}, not from {original!r}"
        )


def _held_bias(bias: Array) -> Array:
    """Return a copy of a bias in the dtype that kernels take."""
    return np.array(bias, np.int32 if bias.dtype == np.int32 else np.float32)


# ---------------------------------------------------------------- QuantizedLinear: a linear layer
# with an INT8 or INT4 weight


class QuantizedLinear(QuantizedProduct):
    """x @ weight + bias with a weight of integers, made from a `Linear`.

    Inputs of INT8 are quantized too, and the product is one of integers, unless the mode is
    `weight_only`. See :class:`QuantizedProduct` for the modes.
    """

    operation = "linear"

    def __init__(
        self,
        linear: Linear,
        mode: str = "dynamic",
        *,
        bits: int = 8,
        group_size: int | None = None,
    ) -> None:
        check_kind(self, linear, Linear)
        weight, bias = linear.weight.data, None if linear.bias is None else linear.bias.data
        packed = pack_weight(quantize_weight(weight, bits=bits, group_size=group_size))
        held = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._fill(packed, bias, mode, original_bytes=held)
        self.training = linear.training

    def _fill(
        self, packed: PackedWeight, bias: Array | None, mode: str, *, original_bytes: int
    ) -> None:
        self.in_features, self.out_features = packed.shape
        self.activation: str | None = None
        self._hold(packed, bias, mode, original_bytes=original_bytes)

    def forward(self, x: Tensor) -> Tensor:
        self.check_input(x)
        return self._compute(x)

    def check_input(self, x: Any) -> None:
        check_floating_point(self, x)
        if x.data.ndim == 0 or x.data.shape[-1] != self.in_features:
            raise ShapeError(f"{self!r} needs input (..., {self.in_features}), got {x.shape}")

    def product(self) -> Product:
        kind, arrays, settings = super().product()
        if self.activation is not None:
            settings["activation"] = self.activation
        return kind, arrays, settings

    def with_activation(self, word: str) -> Self:
        """Return the same layer, which applies an activation to its result in the same kernel."""
        twin = copy.copy(self)
        twin.activation = word
        return twin

    @property
    def weight(self) -> Tensor:
        """The weight (in, out) as floats, computed at each access, never held."""
        return Tensor(self.packed.unpacked().dequantize())

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
        activation: Any = f", activation={self.activation!r}" if self.activation else ""
        return f"{sizes}, {self._mode_repr()}{activation}"


# ---------------------------------------------------------------- QuantizedConv2d: a convolution
# with an INT8 weight

GEOMETRY = ("kernel_size", "stride", "padding", "dilation", "groups")
"""The settings of a convolution that its kernels take."""


def kernel_matrix(weight: Array) -> Array:
    """Return the kernels (out, in / groups, height, width) as a matrix (inputs of a patch, out)."""
    return weight.reshape(len(weight), -1).T


class QuantizedConv2d(QuantizedProduct):
    """A convolution with a weight of integers, made from a `Conv2d`.

    With the modes `dynamic` and `static` patches are whole numbers too, and their products are
    added up in integers. See :class:`QuantizedProduct` for the modes.
    """

    operation = "conv2d"
    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    def __init__(self, conv: Conv2d, mode: str = "dynamic") -> None:
        check_kind(self, conv, Conv2d)
        weight, bias = conv.weight.data, None if conv.bias is None else conv.bias.data
        packed = pack_weight(quantize_weight(kernel_matrix(weight)))
        held = weight.nbytes + (0 if bias is None else bias.nbytes)
        geometry = {name: getattr(conv, name) for name in GEOMETRY}
        self._fill(packed, bias, mode, geometry, original_bytes=held)
        self.training = conv.training

    def _fill(
        self,
        packed: PackedWeight,
        bias: Array | None,
        mode: str,
        geometry: dict[str, Any],
        *,
        original_bytes: int,
    ) -> None:
        vars(self).update(geometry)
        depth, self.out_channels = packed.shape
        height, width = self.kernel_size
        self.in_channels = depth // (height * width) * self.groups
        self._hold(packed, bias, mode, original_bytes=original_bytes)

    def forward(self, x: Tensor) -> Tensor:
        return on_batch(self, x, self.in_channels, self._convolve)

    def _convolve(self, x: Tensor) -> Tensor:
        size = output_size(x.shape[2:], self.kernel_size, self.stride, self.padding, self.dilation)
        check_window(self, x, size)
        return self._compute(x)

    def check_input(self, x: Any) -> None:
        on_batch(self, x, self.in_channels, lambda batch: batch)

    def product(self) -> Product:
        kind, arrays, settings = super().product()
        return kind, arrays, settings | {name: getattr(self, name) for name in GEOMETRY}

    @property
    def weight(self) -> Tensor:
        """The kernels (out, in / groups, height, width) as floats, made anew each time."""
        matrix = self.packed.unpacked().dequantize()
        inputs = self.in_channels // self.groups
        return Tensor(matrix.T.reshape(self.out_channels, inputs, *self.kernel_size))

    def extra_repr(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{sizes}, {self._mode_repr()}"


# ---------------------------------------------------------------- quantized tables of tokens and
# positions: a byte for each number, and a scale for each row


class QuantizedEmbedding(QuantizedLayer):
    """A table of INT8 vectors, looked up by token id.

    The table is held as the matrix (embedding_dim, tokens), so that the output layer of a language
    model can multiply with the same bytes.
    """

    def __init__(self, embedding: Embedding) -> None:
        check_kind(self, embedding, Embedding)
        table = embedding.weight.data
        self._fill(pack_weight(quantize_weight(table.T)), original_bytes=table.nbytes)
        self.training = embedding.training

    def _fill(self, packed: PackedWeight, *, original_bytes: int) -> None:
        self.embedding_dim, self.num_embeddings = packed.shape
        self.values, self.scales = packed.values, packed.scales
        self.weight_size = self.embedding_dim * self.num_embeddings
        self.original_bytes = original_bytes

    @property
    def packed(self) -> PackedWeight:
        """The table, in tensors that another layer can share."""
        shape = (self.embedding_dim, self.num_embeddings)
        return PackedWeight(self.values, self.scales, shape, bits=8, group_size=None)

    def forward(self, tokens: Any) -> Tensor:
        ids = token_ids(tokens, self.num_embeddings)
        rows = run(
            "int8_embedding", ids, self.values.data, self.scales.data, width=self.embedding_dim
        )
        return Tensor(rows)

    @property
    def weight(self) -> Tensor:
        """The table (tokens, embedding_dim) as floats, computed at each access, never held."""
        return Tensor(self.packed.unpacked().dequantize().T)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, bits=8"


class QuantizedPositionalEmbedding(QuantizedLayer):
    """An INT8 vector per position, added to x (..., time, embed_dim)."""

    def __init__(self, embedding: PositionalEmbedding) -> None:
        check_kind(self, embedding, PositionalEmbedding)
        table = embedding.weight.data
        self._fill(quantize_array(table, POSITION_SCHEME), original_bytes=table.nbytes)
        self.training = embedding.training

    def _fill(self, quantized: QuantizedArray, *, original_bytes: int) -> None:
        self.values, self.scales = Tensor(quantized.values), Tensor(quantized.scale)
        self.weight_size = quantized.values.size
        self.original_bytes = original_bytes

    def forward(self, x: Tensor, start: int = 0, padding: Array | None = None) -> Tensor:
        """Add the vectors of the positions from `start` on; `padding` as for float positions."""
        rows = position_rows(self, self.values, x, start, padding)
        return x + Tensor(self.values.data[rows] * self.scales.data[rows][..., None])

    def unpacked(self) -> QuantizedArray:
        """Return the table in the form of a file."""
        zero_point = np.zeros(self.scales.shape, np.int32)
        return QuantizedArray(self.values.data, self.scales.data, zero_point, POSITION_SCHEME)

    @property
    def weight(self) -> Tensor:
        """The table (positions, embed_dim) as floats, computed at each access, never held."""
        return Tensor(self.unpacked().dequantize())

    def extra_repr(self) -> str:
        return "{}, {}, bits=8".format(*self.values.shape)


POSITION_SCHEME = Scheme(bits=8, symmetric=True, axis=0)


# ---------------------------------------------------------------- what each kind of layer becomes
# when it is quantized

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


def product_of(layer: Any, packed: PackedWeight, bias: Array | None, mode: str) -> QuantizedProduct:
    """Return what a layer that multiplies becomes, with a packed weight and a bias for it."""
    weight, own = CATALOG[type(layer)].weight(layer), getattr(layer, "bias", None)
    held = weight.data.nbytes + (0 if own is None else own.data.nbytes)
    if not isinstance(layer, Conv2d):
        return QuantizedLinear.of(packed, bias, mode, original_bytes=held)
    geometry = {name: getattr(layer, name) for name in GEOMETRY}
    return QuantizedConv2d.of(packed, bias, mode, geometry, original_bytes=held)


def _product(layer: Any, settings: Mapping[str, Any], packed: PackedWeights) -> QuantizedLayer:
    entry, bias = CATALOG[type(layer)], getattr(layer, "bias", None)
    weight = packed.of(entry.weight(layer), entry, settings)
    made = product_of(layer, weight, None if bias is None else bias.data, settings["mode"])
    if "input_scale" in settings:  # the step has a range of the inputs
        made.set_input_step(settings["input_scale"], settings["input_zero_point"])
    return made


def _embedding(
    layer: Embedding, settings: Mapping[str, Any], packed: PackedWeights
) -> QuantizedLayer:
    weight = packed.of(layer.weight, CATALOG[Embedding], settings)
    return QuantizedEmbedding.of(weight, original_bytes=layer.weight.data.nbytes)


def _positions(
    layer: PositionalEmbedding, settings: Mapping[str, Any], packed: PackedWeights
) -> QuantizedLayer:
    return QuantizedPositionalEmbedding(layer)


def _own_weight(layer: Any) -> Tensor:
    return layer.weight


CATALOG: dict[type[Module], Entry] = {
    Linear: Entry(_own_weight, lambda weight: weight, _product, takes_int4=True),
    Conv2d: Entry(_own_weight, kernel_matrix, _product),
    Embedding: Entry(
        _own_weight, lambda table: table.T, _embedding, multiplies=False, is_transposed=True
    ),
    PositionalEmbedding: Entry(
        _own_weight, lambda table: table.T, _positions, multiplies=False, is_transposed=True
    ),
    TiedHead: Entry(
        lambda head: head.embedding.weight, lambda table: table.T, _product, is_transposed=True
    ),
}
"""Layers by their exact class: a subclass may compute something else."""


def why_not_packed(entry: Entry, layer: Any, settings: Mapping[str, Any]) -> str:
    """Return why the weight of a layer cannot be packed so, or ""."""
    inputs, _ = entry.matrix(entry.weight(layer).data).shape
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
