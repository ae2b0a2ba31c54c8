"""Quantization-aware fine-tuning: train a while with the rounding that is to come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.surgery import replace_layers
from tinytorch.core.module import Module, keeping_modes
from tinytorch.core.optimizers import Adam
from tinytorch.errors import SettingError
from tinytorch.perf.quantization.fake_quantization import FAKES
from tinytorch.perf.quantization.planning import check_not_quantized
from tinytorch.perf.quantization.quantize import Quantize
from tinytorch.workloads.training_checks import check_loader, check_optimizer
from tinytorch.workloads.workload import Workload

__all__ = ["fine_tune"]

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
    """Give a quantized copy of a model that was trained with fake quantization before.

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
