"""The quantizers of torch itself: layers that hold packed weights. On a processor, for float32."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from tinytorch.perf.quantization.layers_torch import weights_of
from tinytorch.perf.quantization.quantizer_torch import Quantizer, Settings

__all__ = [
    "DYNAMIC_LINEAR",
    "DYNAMIC_RECURRENT",
    "STATIC_CONVOLUTION",
    "STATIC_LINEAR",
    "QuantizedStep",
    "input_bits",
    "packing",
    "step_between",
]

BYTES_PER_STEP = 8
"""Scale and zero point of a channel, four bytes each, as the kernels hold them."""
BYTES_OF_INPUT_STEP = 12
"""Those of the inputs: the zero point is held in eight."""

LAST_WITH_ALL_BITS = 3
"""The last version of torch's dynamic layer that used all eight bits of its inputs; since then it
uses seven on every processor, for those whose sums would overflow. That doubles the error."""


@contextmanager
def packing() -> Iterator[None]:
    """Pack weights with FBGEMM where it is there, and without what torch says about its future.

    oneDNN, which the default engine takes for convolutions, holds every weight twice. The warnings
    are that all of this moves to torchao some day; nobody who runs a model can act on that.
    """
    engines = torch.backends.quantized
    before = engines.engine
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*quantized tensor creation", UserWarning)
        warnings.filterwarnings("ignore", "torch.ao.quantization is deprecated", DeprecationWarning)
        if "fbgemm" in engines.supported_engines:
            engines.engine = "fbgemm"
        try:
            yield
        finally:
            engines.engine = before


@dataclass(frozen=True)
class QuantizedStep:
    """Scale and zero point of numbers from 0 to 255, or to 127 where sums could overflow."""

    scale: float
    zero_point: int
    dtype = torch.quint8

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Give them as torch asks for them."""
        return torch.tensor([self.scale]), torch.tensor([self.zero_point])


def step_between(low: float, high: float) -> QuantizedStep:
    """Give the step for a range; zero is in it, and exact."""
    levels = 2 ** input_bits() - 1
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / levels or 1.0
    return QuantizedStep(scale, min(levels, max(0, round(-low / scale))))


def input_bits() -> int:
    """Give 7 for processors that add up products of bytes in 16 bits, where 8 would overflow."""
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", None)
    return 8 if has_vnni is not None and has_vnni() else 7


def _dynamic(layer: Any, settings: Settings) -> nn.Module:
    import torch.ao.nn.quantized.dynamic as layers
    from torch.ao.quantization import per_channel_dynamic_qconfig

    layer.qconfig = per_channel_dynamic_qconfig
    with packing():
        made = getattr(layers, type(layer).__name__).from_float(layer)
    if isinstance(made, layers.Linear) and input_bits() == 8:
        made.version = LAST_WITH_ALL_BITS
    return made


def _static(layer: Any, settings: Settings) -> nn.Module:
    """Put a packed layer between one that quantizes its inputs and one that gives floats again."""
    import torch.ao.nn.quantized as layers
    from torch.ao import quantization as ao

    outputs = step_between(*settings["output_range"])
    layer.qconfig = ao.QConfig(
        activation=lambda: outputs, weight=ao.default_per_channel_weight_observer
    )
    layer.activation_post_process = outputs
    scale, zero_point = step_between(*settings["input_range"]).calculate_qparams()
    with packing():
        wrapper: Any = ao.QuantWrapper(getattr(layers, type(layer).__name__).from_float(layer))
        wrapper.quant = layers.Quantize(scale, zero_point, torch.quint8)
        wrapper.dequant = layers.DeQuantize()
    return wrapper


def _channel_bytes(layer: nn.Module, settings: Settings, *, beside: int = 0) -> int:
    """Count the values, a scale and a zero point for each output."""
    weights = weights_of(layer).values()
    return sum(each.numel() + BYTES_PER_STEP * len(each) for each in weights) + beside


def _why_no_convolution(layer: nn.Conv2d, settings: Settings) -> str:
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return ""
    return f"padding={layer.padding!r} in the mode {layer.padding_mode!r} is not offered"


def _why_no_recurrence(layer: nn.LSTM | nn.GRU, settings: Settings) -> str:
    return "projected states are not offered" if layer.proj_size else ""


_packed = partial(Quantizer, devices=("cpu",), dtypes=(torch.float32,))
DYNAMIC_LINEAR = _packed(
    by="torch.ao.nn.quantized.dynamic.Linear",
    mode="dynamic",
    carry_out=_dynamic,
    weight_bytes=_channel_bytes,
)
DYNAMIC_RECURRENT = _packed(
    by="torch.ao.nn.quantized.dynamic",
    mode="dynamic",
    carry_out=_dynamic,
    weight_bytes=_channel_bytes,
    why_not=_why_no_recurrence,
)
STATIC_LINEAR = _packed(
    by="torch.ao.quantization.QuantWrapper",
    mode="static",
    carry_out=_static,
    weight_bytes=partial(_channel_bytes, beside=BYTES_OF_INPUT_STEP),
    needs_ranges=True,
)
STATIC_CONVOLUTION = _packed(
    by="torch.ao.quantization.QuantWrapper",
    mode="static",
    carry_out=_static,
    weight_bytes=partial(_channel_bytes, beside=BYTES_OF_INPUT_STEP),
    why_not=_why_no_convolution,
    needs_ranges=True,
)
