"""Quantization-aware fine-tuning: train a while with the rounding that is to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tinytorch.core import operations as convolution
from tinytorch.core import operations as products
from tinytorch.core.kernels import Array
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module, keeping_modes
from tinytorch.core.optimizers import Adam
from tinytorch.core.spatial import Conv2d, on_batch
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for, replace_layers
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize import Quantize, check_not_quantized
from tinytorch.transforms.quantize.layers import kernel_matrix, quantize_weight
from tinytorch.transforms.support.observing import check_loader, check_optimizer

# ---------------------------------------------------------------- fake quantization: layers that
# compute in floats with the rounding of a quantized layer
#
# Rounding has no useful derivative: it is 0 nearly everywhere. The straight-through estimator
# (Bengio et al., 2013) lets gradients pass as if there were no rounding, but not where values are
# cut off.


def straight_through(x: Tensor, rounded: Array, inside: Array | None = None) -> Tensor:
    """Return the rounded values, with the gradient of x where it lies `inside` of the range."""
    if inside is None:
        return x + Tensor(rounded - x.data)
    kept = x * Tensor(inside.astype(x.dtype))
    return kept + Tensor(rounded - kept.data)


class _FakeQuantized(Module):
    """Holds a float layer, and the settings of the step that will quantize it."""

    def __init__(self, layer: Any, settings: Mapping[str, Any]) -> None:
        self.layer = layer
        self.settings = dict(settings)
        self.training = layer.training

    def _inputs(self, x: Tensor) -> Tensor:
        """Round inputs as the layer will: not at all, by a fixed step, or each row by its own."""
        mode = self.settings["mode"]
        if mode == "weight_only":
            return x
        if mode == "static":
            scale = np.float32(self.settings["input_scale"])
            zero_point = self.settings["input_zero_point"]
            whole = np.rint(x.data / scale)
            inside = (whole >= -128 - zero_point) & (whole <= 127 - zero_point)
            cut = np.clip(whole, -128 - zero_point, 127 - zero_point)
            return straight_through(x, (cut * scale).astype(x.dtype), inside)
        axes = (-1,) if isinstance(self.layer, Linear) else (-3, -2, -1)  # a row, or an image
        largest = np.abs(x.data).max(axis=axes, keepdims=True, initial=0)
        step = np.where(largest > 0, largest / 127, 1).astype(x.dtype)
        return straight_through(x, np.rint(x.data / step) * step)

    def _weight(self, matrix: Array) -> Array:
        bits, group_size = self.settings["bits"], self.settings.get("group_size")
        return quantize_weight(matrix, bits=bits, group_size=group_size).dequantize()


class FakeQuantizedLinear(_FakeQuantized):
    """A linear layer that learns to live with rounding."""

    layer: Linear

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        rounded = straight_through(weight, self._weight(weight.data))
        inputs = (self._inputs(x), rounded)
        bias = () if self.layer.bias is None else (self.layer.bias,)
        return apply(products.Linear(), *inputs, *bias)


class FakeQuantizedConv2d(_FakeQuantized):
    """A convolution that learns to live with rounding."""

    layer: Conv2d

    def forward(self, x: Tensor) -> Tensor:
        return on_batch(self, x, self.layer.in_channels, self._convolve)

    def _convolve(self, x: Tensor) -> Tensor:
        conv = self.layer
        matrix = self._weight(kernel_matrix(conv.weight.data))
        rounded = straight_through(conv.weight, matrix.T.reshape(conv.weight.shape))
        operation = convolution.Conv2d(conv.stride, conv.padding, conv.dilation, conv.groups)
        bias = () if conv.bias is None else (conv.bias,)
        return apply(operation, self._inputs(x), rounded, *bias)


FAKES: dict[type[Module], type[_FakeQuantized]] = {
    Linear: FakeQuantizedLinear,
    Conv2d: FakeQuantizedConv2d,
}
"""The layers whose rounding is trained; tables and tied heads are rounded after it."""


# ---------------------------------------------------------------- quantization-aware fine-tuning:
# train a while with the rounding that is to come

LEARNING_RATE = 1e-4
"""Small, because the weights are good already and only have to move to better steps."""


def fine_tune(
    workload: Workload,
    loader: Any,
    transform: Quantize | None = None,
    *,
    epochs: int = 1,
    loss: Any = None,
    optimizer: Any = None,
    **settings: Any,
) -> Any:
    """Return a quantized copy of a model that was trained with fake quantization before.

    `loader` gives batches of training data. The optimizer is a function of the parameters; Adam at
    1e-4 unless given. Other settings are those of ``Module.fit``. The workload's model stays as it
    is; statically quantized inputs are calibrated before the training, for the rounding in it, and
    once more after it.
    """
    transform = Quantize("static") if transform is None else transform
    if not isinstance(workload.model, Module):
        raise SettingError(
            f"fine-tuning trains modules of tinytorch, {workload.name} is a "
            f"{type(workload.model).__name__}"
        )
    check_optimizer(optimizer)
    check_loader(loader)
    adapter = adapter_for(workload.model, workload.arguments)
    plan = transform.plan(workload)
    twin = adapter.clone(workload.model)
    modules = dict(adapter.modules(twin))
    check_not_quantized(modules)
    originals: dict[int, Any] = {}
    fakes: dict[int, Any] = {}
    for step in plan.steps:
        layer = modules[step.layer]
        if type(layer) in FAKES:
            fakes[id(layer)] = FAKES[type(layer)](layer, step.settings)
            originals[id(fakes[id(layer)])] = layer
    if not fakes:
        raise SettingError(
            f"the plan for {workload.name} quantizes no linear layer and no convolution, so there "
            "is nothing to train for"
        )
    fake_model = replace_layers(twin, fakes)
    with keeping_modes(fake_model):
        parameters = fake_model.parameters()
        chosen = Adam(parameters, lr=LEARNING_RATE) if optimizer is None else optimizer(parameters)
        fake_model.train()
        fake_model.fit(loader, loss, chosen, epochs, **settings)
    trained = replace_layers(fake_model, originals)
    tuned = replace(workload, model=trained)
    return transform.apply(tuned, transform.plan(tuned))
