"""Laying out convolutions of PyTorch with the channels last. Imported after torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from tinytorch.errors import SettingError
from tinytorch.models.pytorch_tensors import WrappedModel
from tinytorch.models.workload import Workload
from tinytorch.transforms.channels_last import ChannelsLast
from tinytorch.transforms.plan import Plan, Skipped, Step
from tinytorch.transforms.support import torch as support

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The layout by the number of axes; there is none for fewer."""
NOT_PREDICTED = {
    "speedup": "which layout is faster depends on the device, the dtype and the sizes, and on a "
    "processor it is often the usual one; compare() measures it",
    "shrinkage": "the same numbers are held in another order",
}
NO_CONVOLUTION = "it has no convolution in two or three dimensions, and others gain nothing"
WHY = "a product of matrices reads the channels of a pixel at once"


class ChannelsLastModel(WrappedModel):
    """A model whose images go in with the channels last, and come out in the usual layout."""

    def __init__(self, model: nn.Module, axes: Collection[int]) -> None:
        super().__init__(model)
        self.axes = frozenset(axes)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Lay out the inputs, call the model, and lay the outputs back."""
        inputs, keywords = support.changed_tensors((inputs, keywords), self._lay_out)
        return support.changed_tensors(self.model(*inputs, **keywords), self._lay_back)

    def _lay_out(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() in self.axes and tensor.layout == torch.strided and not tensor.is_nested:
            return tensor.contiguous(memory_format=FORMATS[tensor.dim()])
        return tensor

    def _lay_back(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() in self.axes and tensor.layout == torch.strided and not tensor.is_nested:
            return tensor.contiguous()
        return tensor


def laid_out(model: nn.Module, layers: Collection[str]) -> ChannelsLastModel:
    """Lay out these convolutions of a model in place, and wrap it."""
    modules = dict(model.named_modules())
    wrong = [path for path in layers if not isinstance(modules.get(path), _ConvNd)]
    if wrong:
        raise SettingError(
            f"the model has no convolution {wrong[0]!r}, which the plan knows; make a "
            "plan for this model"
        )
    axes = set()
    for path in layers:
        weight: torch.Tensor = modules[path].get_parameter("weight")
        axes.add(weight.dim())
        weight.data = weight.data.contiguous(memory_format=FORMATS[weight.dim()])
    return ChannelsLastModel(model, axes)


def apply_torch(model: nn.Module, workload: Workload, plan: Plan, settings: ChannelsLast) -> Any:
    """Return the copy of the model with this layout."""
    return laid_out(model, plan.layers)


def plan_torch(workload: Workload, settings: ChannelsLast) -> Plan:
    """Find the convolutions, and try the layout on a copy."""
    reason = support.why_unchangeable(workload.model) or _why_not_at_boundary(workload)
    if reason:
        return settings.skipping(reason)
    reasons = dict(_convolutions(workload.model))
    skipped = [Skipped(path, why) for path, why in reasons.items() if why]
    layers = [path for path, why in reasons.items() if not why]
    if not layers:
        return settings.skipping(NO_CONVOLUTION, *skipped)
    trial = support.try_change(
        workload,
        lambda model: laid_out(model, layers),
        tolerance=support.rounding_of(workload.model),
    )
    if not trial.works:
        reason = support.refusal(workload.model, trial)
        if trial.difference is None:  # the model itself raised
            reason += " (code that uses view() needs the usual layout; reshape() does not)"
        return settings.skipping(reason, *skipped)
    steps = [Step(path, "kernels and images with the channels last", WHY) for path in layers]
    return settings.planned(
        tuple(steps),
        tuple(skipped),
        not_predicted=NOT_PREDICTED,
        notes=(support.trial_note(trial), *_notes(workload)),
    )


def _why_not_at_boundary(workload: Workload) -> str:
    if isinstance(workload.model, ChannelsLastModel):
        return "its images have the channels last already"
    seen = support.observe_call(workload)
    if seen.writes_inputs:
        return "it writes into its inputs, and would write into copies with another layout"
    return seen.error


def _convolutions(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield each convolution, with the reason why it is left alone, if so."""
    for path, module in model.named_modules():
        if not isinstance(module, _ConvNd):
            continue
        weight = module._parameters.get("weight")
        if weight is None:
            yield path, "its weight is computed anew before each call"
        elif type(weight.detach()) is not torch.Tensor:
            yield path, f"its weight is a {type(weight.detach()).__name__} with its own layout"
        elif weight.dim() not in FORMATS:
            yield path, f"its weight has {weight.dim()} axes, for which there is no such layout"
        else:
            yield path, ""


def _notes(workload: Workload) -> tuple[str, ...]:
    weight = next(workload.model.parameters())
    if weight.device.type == "cpu":
        return ("on a processor this layout may as well be slower",)
    if weight.dtype == torch.float32:
        return ("GPUs gain by this layout in half precision above all; these are float32",)
    return ()
