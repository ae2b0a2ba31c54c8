"""Calling PyTorch models with products in TF32. Imported after torch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from tinytorch.errors import TinyTorchError
from tinytorch.measure.ceilings_torch import multiplies_in_tf32, multiplying_in_tf32
from tinytorch.models.pytorch_tensors import WrappedModel, wrappers_of
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import Plan, Step
from tinytorch.transforms.support import torch as support
from tinytorch.transforms.tensor_float32 import TensorFloat32

CAPABILITY = 8
"""The first generation of CUDA devices that multiplies TF32 (Ampere)."""
NOT_PREDICTED = {
    "speedup": "how much faster products are in TF32 depends on the device and the sizes; "
    "compare() measures it",
    "shrinkage": "the weights are not converted",
}
IDLE = "nothing of it is rounded to TF32: no output changes by a bit"
CHANGES_PROCESS = "sets TF32 for the whole process while it is called"
WHOLE_PROCESS = "while a call runs, the products of other threads are TF32 as well"


class TensorFloat32Model(WrappedModel):
    """A model whose products of float32 matrices are TF32."""

    def around_call(self) -> AbstractContextManager[None]:
        """Return a context in which products use TF32."""
        return multiplying_in_tf32


def apply_torch(model: nn.Module, workload: Workload, plan: Plan, settings: TensorFloat32) -> Any:
    """Return the copy of the model, called in this way."""
    return TensorFloat32Model(model)


def plan_torch(workload: Workload, settings: TensorFloat32) -> Plan:
    """Try it on a copy, where a device computes in TF32."""
    reason = support.why_unchangeable(workload.model) or _why_not(workload)
    if reason:
        return settings.skipping(reason)
    trial = support.try_change(workload, TensorFloat32Model, tolerance=settings.allowed_error)
    if trial.works and trial.is_idle:
        trial = support.Trial(reason=IDLE)
    if not trial.works:
        return settings.skipping(support.refusal(workload.model, trial))
    why = "tensor cores multiply TF32 several times as fast as float32"
    step = Step("", "multiplies float32 numbers as TF32", why)
    notes = (support.trial_note(trial), WHOLE_PROCESS)
    return settings.planned(
        (step,),
        not_predicted=NOT_PREDICTED,
        changes_process=CHANGES_PROCESS,
        notes=notes,
    )


def _why_not(workload: Workload) -> str:
    if any(isinstance(each, TensorFloat32Model) for each in wrappers_of(workload.model)):
        return "its products are TF32 already"
    if all(each.dtype != torch.float32 for each in workload.model.parameters()):
        return "it holds no float32 numbers"
    try:
        place = torch.device(workload.device)
    except TinyTorchError as error:
        return str(error)
    if place.type != "cuda":
        return f"TF32 is for CUDA devices, and it is on {place.type}"
    if torch.cuda.get_device_capability(place)[0] < CAPABILITY:
        return f"{torch.cuda.get_device_name(place)} is too old to multiply TF32"
    if multiplies_in_tf32():
        return "products are TF32 already: torch.backends says so, for the whole process"
    return ""
