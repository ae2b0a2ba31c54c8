"""Quantization-aware fine-tuning: train a while with the rounding that is to come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tinytorch.core.kernels import Array
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module, keeping_modes
from tinytorch.core.optimizers import Adam
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize import Quantize, check_not_quantized
from tinytorch.transforms.quantize.layers import kernel_matrix, quantize_weight
from tinytorch.transforms.support.observing import check_loader, check_optimizer
from tinytorch.transforms.support.training import ConstrainedOptimizer, Project

# ---------------------------------------------------------------- fake quantization: layers that
# compute in floats with the rounding of a quantized layer
#
# Rounding has no useful derivative: it is 0 nearly everywhere. The straight-through estimator
# (Bengio et al., 2013) lets gradients pass as if there were no rounding, but not where values are
# cut off. For weights a constraint of the training does that.


def straight_through(x: Tensor, rounded: Array, inside: Array | None = None) -> Tensor:
    """Return the rounded values, with the gradient of x where it lies `inside` of the range."""
    if inside is None:
        return x + Tensor(rounded - x.data)
    kept = x * Tensor(inside.astype(x.dtype))
    return kept + Tensor(rounded - kept.data)


def round_inputs(layer: Any, settings: Mapping[str, Any], x: Tensor) -> Tensor:
    """Round inputs as a step says: not at all, by a fixed step, or each row by its own."""
    if settings["mode"] == "weight_only":
        return x
    if settings["mode"] == "static":
        scale, zero_point = np.float32(settings["input_scale"]), settings["input_zero_point"]
        whole = np.rint(x.data / scale)
        inside = (whole >= -128 - zero_point) & (whole <= 127 - zero_point)
        cut = np.clip(whole, -128 - zero_point, 127 - zero_point)
        return straight_through(x, (cut * scale).astype(x.dtype), inside)
    axes = (-1,) if isinstance(layer, Linear) else (-3, -2, -1)  # a row, or an image
    largest = np.abs(x.data).max(axis=axes, keepdims=True, initial=0)
    step = np.where(largest > 0, largest / 127, 1).astype(x.dtype)
    return straight_through(x, np.rint(x.data / step) * step)


def rounding_weights(layer: Any, settings: Mapping[str, Any]) -> Project:
    """Return the projection of a weight to what its quantized form stands for."""
    bits, group_size = settings["bits"], settings.get("group_size")

    def project(free: Array) -> Array:
        matrix = kernel_matrix(free) if isinstance(layer, Conv2d) else free
        rounded = quantize_weight(matrix, bits=bits, group_size=group_size).dequantize()
        return rounded.T.reshape(free.shape) if isinstance(layer, Conv2d) else rounded

    return project


TRAINED = (Linear, Conv2d)
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
    constraints: dict[int, tuple[Tensor, Project]] = {}
    hooks = []
    for step in plan.steps:
        layer = modules[step.layer]
        if type(layer) in TRAINED:
            weight, project = layer.weight, rounding_weights(layer, step.settings)
            constraints.setdefault(id(weight), (weight, project))
            hooks.append(layer.register_forward_pre_hook(_rounding_inputs(step.settings)))
    if not constraints:
        raise SettingError(
            f"the plan for {workload.name} quantizes no linear layer and no convolution, so there "
            "is nothing to train for"
        )
    with keeping_modes(twin):
        parameters = twin.parameters()
        chosen = Adam(parameters, lr=LEARNING_RATE) if optimizer is None else optimizer(parameters)
        moved = {id(each) for each in chosen.params}
        rounded = [pair for key, pair in constraints.items() if key in moved]
        twin.train()
        twin.fit(loader, loss, ConstrainedOptimizer(chosen, rounded), epochs, **settings)
    for hook in hooks:
        hook.remove()
    tuned = replace(workload, model=twin)
    return transform.apply(tuned, transform.plan(tuned))


def _rounding_inputs(settings: Mapping[str, Any]) -> Callable[..., Tensor]:
    return lambda layer, inputs: round_inputs(layer, settings, *inputs)
