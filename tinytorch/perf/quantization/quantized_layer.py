"""QuantizedLayer: what quantized layers have in common."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.backends.int8_packing import aligned
from tinytorch.core.dispatch import run, state
from tinytorch.core.layers import Product
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DTypeError, GraphError, SettingError
from tinytorch.formats.affine import affine_parameters
from tinytorch.formats.ranges import RangeObserver, choose_range
from tinytorch.perf.quantization.packed_weight import PackedWeight
from tinytorch.workloads.samples import as_batches

__all__ = ["MODES", "NO_SUMS", "QuantizedLayer", "QuantizedProduct", "check_kind"]

MODES = ("weight_only", "dynamic", "static")
"""What happens to inputs: they stay floats, are quantized by what they are, or as calibrated."""

NO_SUMS = np.empty(0, np.int32)
"""In the place of the sums of a weight, for the kernels that do not need them."""

LARGEST_INT32 = 2**31 - 1
LARGEST_PRODUCT = 255 * 128


class QuantizedLayer(Module):
    """A layer that holds whole numbers in the place of a float weight. It computes no gradients."""

    original_bytes: int
    """What the weight and the bias took as floats."""

    values: Tensor
    weight_size: int
    """How many weights the values stand for: packed ones are fewer or more."""

    def memory_usage(self) -> dict[str, Any]:
        """Give the bytes of the float layer and those that are really held, and their ratio."""
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
        """Give the kernel that computes this layer, what it takes after x, and its settings."""
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
    """Give a bias as kernels take it, in memory of its own."""
    return np.array(bias, np.int32 if bias.dtype == np.int32 else np.float32)
