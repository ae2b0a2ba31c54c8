"""The quantizers of torch itself: layers that hold packed weights. On a processor, for float32."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from tinytorch.adapters.pytorch_packed import is_held_twice
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
    """Pack weights without what torch says about its future, under the engine of the process.

    Copying a layer and loading it pack its weights again, under the engine that is in force then.
    With another one here, the model that is timed and the one that a user loads would run other
    kernels. torch's own choice is also the faster one: on a processor with VNNI its engine `x86`
    lets oneDNN compute convolutions, 1.0 to 5.8 times as fast as FBGEMM (which `x86` takes for
    everything else), and holds their weights twice for it.

    The warnings are that all of this moves to torchao some day; nobody who runs a model can act on
    that.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*quantized tensor creation", UserWarning)
        warnings.filterwarnings("ignore", "torch.ao.quantization is deprecated", DeprecationWarning)
        yield


@dataclass(frozen=True)
class QuantizedStep:
    """Scale and zero point of numbers from 0 to 255, or to 127 where sums could overflow."""

    scale: float
    zero_point: int
    dtype = torch.quint8

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Give them as torch asks for them."""
        return torch.tensor([self.scale]), torch.tensor([self.zero_point])


def step_between(low: float, high: float, *, bits: int | None = None) -> QuantizedStep:
    """Give the step for a range; zero is in it, and exact."""
    levels = 2 ** (bits or input_bits()) - 1
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / levels or 1.0
    return QuantizedStep(scale, min(levels, max(0, round(-low / scale))))


def input_bits(layers: Iterable[nn.Module] = ()) -> int:
    """Return 7 where products of bytes are added up in 16 bits, which 8 would overflow; else 8.

    Processors without VNNI do so, and on every processor FBGEMM's kernels for depthwise
    convolutions, so that one of these among the `layers` decides for all.
    """
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", None)
    is_wide = has_vnni is not None and has_vnni()
    return 8 if is_wide and not any(map(_is_depthwise_by_fbgemm, layers)) else 7


def _is_depthwise_by_fbgemm(layer: nn.Module) -> bool:
    is_depthwise = isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels > 1
    return is_depthwise and not _is_packed_twice(layer.groups, torch.backends.quantized.engine)


@cache
def _is_packed_twice(groups: int, engine: str) -> bool:
    """Return whether oneDNN computes convolutions of so many groups under the engine in force."""
    with packing():
        weight = torch.quantize_per_tensor(torch.ones(groups, 1, 1, 1), 1.0, 0, torch.qint8)
        pair = [1, 1]
        prepack = torch.ops.quantized.conv2d_prepack
        return is_held_twice(prepack(weight, None, pair, [0, 0], pair, groups))


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
    inputs = step_between(*settings["input_range"], bits=input_bits([layer]))
    scale, zero_point = inputs.calculate_qparams()
    with packing():
        wrapper: Any = ao.QuantWrapper(getattr(layers, type(layer).__name__).from_float(layer))
        wrapper.quant = layers.Quantize(scale, zero_point, torch.quint8)
        wrapper.dequant = layers.DeQuantize()
    return wrapper


def _channel_bytes(layer: nn.Module, settings: Settings, *, beside: int = 0) -> int:
    """Count the values, a scale and a zero point for each output."""
    weights = weights_of(layer).values()
    return sum(each.numel() + BYTES_PER_STEP * len(each) for each in weights) + beside


def _convolution_bytes(layer: nn.Conv2d, settings: Settings) -> int:
    is_twice = _is_packed_twice(layer.groups, torch.backends.quantized.engine)
    unpacked = layer.weight.numel() if is_twice else 0
    return _channel_bytes(layer, settings, beside=BYTES_OF_INPUT_STEP + unpacked)


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
    weight_bytes=_convolution_bytes,
    why_not=_why_no_convolution,
    needs_ranges=True,
)
