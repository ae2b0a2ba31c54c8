"""The classic names: quantization in one call. Thin layers over the parts beside this page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np

from tinytorch.comparison.outputs import compare_outputs
from tinytorch.core.kernels import Array
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError, SettingError
from tinytorch.formats.affine import QuantizedArray, Scheme, quantize_array
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload, as_batches, call_model
from tinytorch.transforms.plan import Plan
from tinytorch.transforms.quantize import Quantize

# ---------------------------------------------------------------- INT8Quantizer: calibrate, then
# quantize a model


class INT8Quantizer:
    """Quantizes models to INT8: ``INT8Quantizer().calibrate(batches).quantize(model)``.

    With calibration data inputs are quantized by fixed ranges (`static`), without by what they are
    (`dynamic`), unless `mode` says otherwise. Other settings are those of :class:`Quantize`. After
    :meth:`quantize`, `plan` says what was done to which layer and why.
    """

    def __init__(self, mode: str | None = None, **settings: Any) -> None:
        if settings.get("bits", 8) != 8:
            raise SettingError("INT8 has eight bits; Quantize('weight_only', bits=4) has four")
        Quantize(mode or "dynamic", **settings)  # wrong settings are told here
        self.mode = mode
        self.settings = settings
        self.batches: tuple[tuple[Any, ...], ...] = ()
        self.plan: Plan | None = None

    def calibrate(self, samples: Any) -> Self:
        """Remember typical inputs: a tensor, an array, batches of them, or a data loader."""
        self.batches = as_batches(samples)
        if not self.batches:
            raise SettingError(
                "the calibration data is empty; give some typical inputs from the training data"
            )
        return self

    @property
    def transform(self) -> Quantize:
        """The transform that does it."""
        mode = self.mode or ("static" if self.batches else "dynamic")
        return Quantize(mode, **self.settings)

    def quantize(self, model: Any) -> Any:
        """Return a quantized copy of a model."""
        workload = workload_of(model, self.batches)
        self.plan = self.transform.plan(workload)
        return self.transform.apply(workload, self.plan)


def workload_of(model: Any, batches: Sequence[Any]) -> Workload:
    """Return a model with its calibration data as a workload; the first batch is its input."""
    inputs = batches[0] if batches else ()
    return Workload(type(model).__name__, model, inputs, calibration=batches)


# ---------------------------------------------------------------- the classic names: quantization
# in one call. Thin layers over the parts beside this page

MB = 2**20
LEAST_SQNR_DB = 10.0
"""Below this the error is a third of the outputs: whatever the model did, it does no longer."""


def quantize_int8(t: Any) -> tuple[Tensor, float, int]:
    """Return a tensor as int8, with the scale and the zero point: x = scale * (q - zero_point).

    Zero is exact, and a round trip is off by at most half a step.

    >>> q, scale, zero_point = quantize_int8(Tensor([-1.0, 0.0, 2.0]))
    >>> q.dtype, dequantize_int8(q, scale, zero_point).data.round(2).tolist()
    (dtype('int8'), [-1.0, 0.0, 2.0])
    """
    array = t.data if isinstance(t, Tensor) else np.asarray(t)
    quantized = quantize_array(array)
    return Tensor(quantized.values), float(quantized.scale), int(quantized.zero_point)


def dequantize_int8(q: Any, scale: float, zero_point: int) -> Tensor:
    """Return the floats that int8 values represent."""
    values = q.data if isinstance(q, Tensor) else np.asarray(q)
    step, zero = np.array(scale, np.float32), np.array(zero_point, np.int32)
    return Tensor(QuantizedArray(values, step, zero, Scheme()).dequantize())


def quantize_model(model: Any, calibration_data: Any = None) -> Any:
    """Return an INT8 copy of a model: static with calibration data, dynamic without."""
    quantizer = INT8Quantizer()
    if calibration_data is not None:
        quantizer.calibrate(calibration_data)
    return quantizer.quantize(model)


def analyze_model_sizes(original: Any, quantized: Any) -> dict[str, Any]:
    """Compare the bytes that two models really hold: parameters and buffers, shared ones once."""
    before, after = (adapter_for(each).held_bytes(each) for each in (original, quantized))
    return {
        "original_bytes": before,
        "quantized_bytes": after,
        "original_mb": before / MB,
        "quantized_mb": after / MB,
        "compression_ratio": before / after if after else float("nan"),
        "memory_saved_mb": (before - after) / MB,
        "memory_saved_percent": 100 * (before - after) / before if before else 0.0,
    }


def verify_quantization_works(original: Any, quantized: Any, inputs: Any = None) -> dict[str, Any]:
    """Check that a quantized model is smaller and, on inputs if given, still gives its outputs.

    Inputs are a tensor, or batches of them, as for calibration.

    Raises a ModelError that says what is wrong; else gives what was seen: the sizes, and for inputs
    the signal-to-noise ratio in decibels and the share of rows with the same largest output.
    """
    seen = analyze_model_sizes(original, quantized)
    if seen["quantized_bytes"] >= seen["original_bytes"]:
        raise ModelError(
            f"the quantized model holds {seen['quantized_bytes']:,} bytes, the original "
            f"{seen['original_bytes']:,}: nothing was saved"
        )
    if inputs is None:
        return seen
    batches = as_batches(inputs)
    if not batches:
        raise SettingError("there are no inputs to verify on; give a tensor, or batches of them")
    difference = compare_outputs(_outputs(original, batches), _outputs(quantized, batches))
    if difference.broken:
        raise ModelError(f"the quantized model is broken: {difference.broken}")
    if difference.sqnr_db is None or difference.notes:
        reason = "; ".join(difference.notes) or "there are no numbers with a fraction"
        raise ModelError(f"the outputs cannot be compared: {reason}")
    if difference.sqnr_db < LEAST_SQNR_DB:
        raise ModelError(
            f"the outputs of the quantized model are {difference.sqnr_db:.1f} dB above their "
            f"error, less than {LEAST_SQNR_DB:.0f}: it does something else than the original"
        )
    return seen | {
        "sqnr_db": difference.sqnr_db,
        "top1_agreement": difference.top1_agreement,
        "max_error": difference.max_error,
    }


class Quantizer:
    """The same functions under one name."""

    quantize_tensor = staticmethod(quantize_int8)
    dequantize_tensor = staticmethod(dequantize_int8)
    quantize_model = staticmethod(quantize_model)
    compare_models = staticmethod(analyze_model_sizes)


def _outputs(model: Any, batches: Iterable[tuple[Any, ...]]) -> list[Array]:
    adapter = adapter_for(model)
    with adapter.without_gradients():
        outputs = [adapter.arrays(call_model(model, *arguments)) for arguments in batches]
    return [array for arrays in outputs for array in arrays]
