"""Calling PyTorch models in inference mode. Imported after torch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from tinytorch.models.pytorch import tensors_in
from tinytorch.models.pytorch_tensors import WrappedModel
from tinytorch.models.workload import Workload
from tinytorch.transforms.inference_mode import InferenceMode
from tinytorch.transforms.plan import Plan, Step
from tinytorch.transforms.support import torch as support

NOT_PREDICTED = {
    "speedup": "it saves a little in each operation, which matters where operations are small; "
    "compare() measures it",
    "shrinkage": "the same parameters are held",
}
INFERENCE_TENSORS = (
    "the outputs are inference tensors: they cannot take part in a graph, nor be written to "
    "outside of inference mode; clone() gives ordinary ones"
)


class InferenceModel(WrappedModel):
    """A model in evaluation mode whose calls record nothing for a backward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.eval()
        self.requires_grad_(False)

    def around_call(self) -> AbstractContextManager[None]:
        """Record nothing inside of a block."""
        return torch.inference_mode()


def apply_torch(model: nn.Module, workload: Workload, plan: Plan, settings: InferenceMode) -> Any:
    """Return the copy of the model, called in this way."""
    return InferenceModel(model)


def plan_torch(workload: Workload, settings: InferenceMode) -> Plan:
    """Try it on a copy, unless an input requires a gradient."""
    reason = support.why_unchangeable(workload.model)
    if not reason and isinstance(workload.model, InferenceModel):
        reason = "it is called in inference mode already"
    if not reason and any(each.requires_grad for each in tensors_in(workload.arguments)):
        reason = "one of its inputs asks for a gradient (requires_grad), so outputs need a graph"
    if reason:
        return settings.skipping(reason)
    trial = support.try_change(
        workload, InferenceModel, tolerance=support.rounding_of(workload.model)
    )
    if not trial.works:
        return settings.skipping(support.refusal(workload.model, trial))
    step = Step("", "called in inference mode", "nothing is recorded for a backward pass")
    notes = [INFERENCE_TENSORS, support.trial_note(trial)]
    if any(module.training for module in workload.model.modules()):
        notes.append("the copy is in evaluation mode")
    return settings.planned((step,), not_predicted=NOT_PREDICTED, notes=tuple(notes))
