"""Static INT8 for a whole PyTorch model that can be traced: numbers stay integers between layers.

torch folds batch norms into convolutions, lets ReLU, pooling and sums run on integers, and turns
numbers into floats only where a layer wants these.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.ao.quantization import (
    ObserverBase,
    QConfig,
    QConfigMapping,
    default_per_channel_weight_observer,
    default_reuse_input_qconfig,
)
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch.nn import functional as F

from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.formats.ranges import RangeObserver, choose_range
from tinytorch.perf.quantization.calibrate_torch import run_batches
from tinytorch.perf.quantization.packed_torch import input_bits, packing, step_between
from tinytorch.workloads.workload import Workload

__all__ = ["BY", "folded_layers", "quantize_graph"]

BY = "torch.ao.quantization.quantize_fx"
KINDS = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
ON_INTEGERS: tuple[Any, ...] = (
    *(nn.ReLU, F.relu, torch.relu, "relu", "relu_"),
    *(nn.MaxPool2d, F.max_pool2d, torch.max_pool2d),
    *(nn.AvgPool2d, F.avg_pool2d, nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d, "mean", torch.mean),
    *(nn.Flatten, torch.flatten, "flatten", nn.Dropout, nn.Identity),
    *(operator.add, torch.add, operator.iadd, torch.cat),
)
"""What runs on the integers that quantized layers give, so that they need not become floats."""


class _Watching(ObserverBase):
    """Watches numbers on their way through a traced model; gives scale and zero point."""

    def __init__(self, ranges: str, bits: int) -> None:
        super().__init__(torch.quint8)
        self._bits = bits
        self.qscheme = torch.per_tensor_affine
        self.quant_min, self.quant_max = 0, 255
        self._ranges = ranges
        self._observer = RangeObserver()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self._observer.update(x.detach().float().cpu().numpy())
        except TinyTorchError as error:
            raise SettingError(f"between two layers: {error}") from error
        return x

    def calculate_qparams(self, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the range of what was seen."""
        low, high = choose_range(self._observer.statistics, self._ranges)
        return step_between(low, high, bits=self._bits).calculate_qparams()


def quantize_graph(
    model: nn.Module, layers: Collection[str], workload: Workload, *, ranges: str
) -> nn.Module:
    """Trace a copy of a model, calibrate it and give it with these layers quantized.

    The copy is used up. Raises whatever tracing raises for a model that decides by its inputs what
    it does; then layers have to be quantized one by one.
    """
    model.eval()
    with packing():
        prepared = prepare_fx(model, _mapping(model, layers, ranges), workload.inputs)
        _check_called_once(prepared, layers)
        run_batches(prepared, workload.calibration, workload.keywords)
        converted = convert_fx(prepared)
    converted.eval()
    return converted


def _mapping(model: nn.Module, layers: Collection[str], ranges: str) -> QConfigMapping:
    bits = input_bits(model.get_submodule(path) for path in layers)
    observed = QConfig(
        activation=partial(_Watching, ranges, bits), weight=default_per_channel_weight_observer
    )
    mapping = QConfigMapping()
    # What is to be folded into one layer must be told the same by class.
    for each in (*KINDS, *ON_INTEGERS):
        mapping.set_object_type(each, observed)
    for each in ("reshape", "view"):
        mapping.set_object_type(each, default_reuse_input_qconfig)
    for path, module in model.named_modules():
        if type(module) in KINDS and path not in layers:
            mapping.set_module_name(path, None)
    return mapping


def _check_called_once(prepared: nn.Module, layers: Collection[str]) -> None:
    targets = [str(node.target) for node in prepared.graph.nodes if node.op == "call_module"]  # type: ignore[union-attr]
    repeated = [path for path in layers if targets.count(path) > 1]
    if repeated:
        raise SettingError(f"{repeated[0]!r} is called several times, with inputs of its own")


def folded_layers(model: nn.Module, converted: nn.Module) -> list[str]:
    """Give the batch norms that were folded into the convolutions before them."""
    left = dict(converted.named_modules())
    return [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d) and not isinstance(left.get(path), nn.BatchNorm2d)
    ]
