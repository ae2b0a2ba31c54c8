"""Training under constraints, for PyTorch models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tinytorch.core.files import ProgressLine
from tinytorch.core.training import CosineSchedule
from tinytorch.errors import DivergenceError, SettingError
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms.distillation import KnowledgeDistillation
from tinytorch.transforms.plan import Plan, Transform
from tinytorch.transforms.prune import Masks, Prune, planned_weight, set_zero
from tinytorch.transforms.support.training import SparsitySchedule

__all__ = ["TorchTraining", "fine_tune_torch"]

Loss = Callable[[Any, Any], torch.Tensor]


def fine_tune_torch(
    workload: Workload,
    loader: Any,
    transform: Transform,
    *,
    learning_rate: float,
    epochs: int = 1,
    loss: Any = None,
    optimizer: Callable[[list[Any]], Any] | None = None,
    schedule: SparsitySchedule | None = None,
    teacher: Any = None,
    lr_schedule: Callable[[int], float] | None = None,
    clip_norm: float | None = None,
    on_step: Callable[[int, int, float], None] | None = None,
) -> nn.Module:
    """Compress a copy of a PyTorch model and train it; zeros are put back after each step."""
    plan = transform.plan(workload)
    if schedule is None:
        model = transform.apply(workload, plan)
    else:
        model = TorchAdapter().clone(workload.model)
    if not isinstance(model, nn.Module):
        raise SettingError(f"fine-tuning trains a Module, got {type(model).__name__}")
    parameters = [each for each in model.parameters() if each.requires_grad]
    if not parameters:
        raise SettingError(f"{plan.transform} leaves no parameter that can be trained")
    if optimizer is None:
        moving: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=learning_rate)
        lr_schedule = lr_schedule or CosineSchedule(learning_rate, max(1, epochs * len(loader)))
    else:
        moving = optimizer(parameters)
    if schedule is None:
        enforce = _staying_zero(model, plan)
    else:
        assert isinstance(transform, Prune)
        enforce = _gradual(model, plan, transform, schedule)
    training = TorchTraining(
        model,
        moving,
        _loss(model, loss, teacher),
        enforce=enforce,
        lr_schedule=lr_schedule,
        clip_norm=clip_norm,
    )
    training.run(loader, epochs, on_step)
    return model


class TorchTraining:
    """The loop: `enforce(steps)` is called before the first step and after each."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Any, Any, Any], torch.Tensor],
        *,
        enforce: Callable[[int], None],
        lr_schedule: Callable[[int], float] | None = None,
        clip_norm: float | None = None,
    ) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.enforce, self.lr_schedule, self.clip_norm = enforce, lr_schedule, clip_norm
        self.steps = 0

    def run(self, loader: Any, epochs: int, on_step: Any = None) -> None:
        """Go over the data; every layer ends in the mode that it started in."""
        modes = [(module, module.training) for module in self.model.modules()]
        total = epochs * len(loader)
        line = ProgressLine(total)
        self.enforce(0)
        self.model.train()
        try:
            for epoch in range(epochs):
                for batch in loader:
                    value = self.step(batch)
                    if on_step is not None:
                        on_step(self.steps, total, value)
                    else:
                        line.advance(f"epoch {epoch + 1}/{epochs}  loss {value:.4f}")
        finally:
            line.close()
            self.optimizer.zero_grad()
            for module, mode in modes:
                module.training = mode

    def step(self, batch: Any) -> float:
        """Take one step on one batch and give its loss."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise SettingError(
                f"training needs batches of (inputs, targets), got {type(batch).__name__}"
            )
        device = next(self.model.parameters()).device
        inputs, targets = (each.to(device) for each in batch)
        if self.lr_schedule is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr_schedule(self.steps)
        self.optimizer.zero_grad()
        loss = self.loss(_logits(self.model(inputs)), inputs, targets)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise DivergenceError(
                f"the loss is {value} at step {self.steps}; check the inputs for NaN, lower the "
                "learning rate, or set clip_norm"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.optimizer.step()
        self.steps += 1
        self.enforce(self.steps)
        return value


def _logits(output: Any) -> Any:
    """Give the logits in an output of transformers; a tensor as it is."""
    return output if isinstance(output, torch.Tensor) else getattr(output, "logits", output)


def _loss(model: nn.Module, loss: Any, teacher: Any) -> Callable[[Any, Any, Any], torch.Tensor]:
    if teacher is None:
        plain: Loss = nn.CrossEntropyLoss() if loss is None else loss
        return lambda outputs, inputs, targets: plain(outputs, targets)
    distillation = KnowledgeDistillation(teacher, model)

    def taught(outputs: Any, inputs: Any, targets: Any) -> torch.Tensor:
        modes = [(module, module.training) for module in teacher.modules()]
        teacher.eval()
        try:
            with torch.no_grad():
                soft = _logits(teacher(inputs))
        finally:
            for module, mode in modes:
                module.training = mode
        result: torch.Tensor = distillation.distillation_loss(outputs, soft, targets)
        return result

    return taught


def _staying_zero(model: nn.Module, plan: Plan) -> Callable[[int], None]:
    weights: Mapping[str, torch.Tensor] = TorchAdapter().named_tensors(model)
    planned = (str(step.settings.get("weight")) for step in plan.steps)
    names = dict.fromkeys([*Masks.of(model).kept, *(name for name in planned if name in weights)])
    gone = [
        (weights[name], torch.as_tensor(~kept, device=weights[name].device))
        for name, kept in Masks.of(model, names).kept.items()
        if kept.any() and not kept.all()
    ]

    def enforce(steps: int) -> None:
        for weight, chosen in gone:
            set_zero(TorchAdapter(), weight, chosen)

    return enforce


def _gradual(
    model: nn.Module, plan: Plan, transform: Prune, schedule: SparsitySchedule
) -> Callable[[int], None]:
    """Give a function that prunes as far as the schedule is; what is pruned stays so."""
    modules, weights = TorchAdapter().modules(model), TorchAdapter().named_tensors(model)
    target = transform.sparsity
    planned = [(step, planned_weight(step, weights)) for step in plan.steps]
    gone = [weight.detach() == 0 for _, weight in planned]
    last: list[float] = []

    def enforce(steps: int) -> None:
        for chosen, (_, weight) in zip(gone, planned, strict=True):
            set_zero(TorchAdapter(), weight, chosen)
        share = schedule(steps, target) / target if target else 1.0
        if last == [share]:
            return
        last[:] = [share]
        for index, (step, weight) in enumerate(planned):
            zeros = max(int(gone[index].sum()), round(share * step.settings["zeros"]))
            part = replace(step, settings={**step.settings, "zeros": zeros})
            gone[index] = transform.least_important(weight.detach(), part, modules)
            set_zero(TorchAdapter(), weight, gone[index])

    return enforce
