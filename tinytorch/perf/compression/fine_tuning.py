"""Fine-tuning: compress a copy of a model and train it, with what must stay zero staying zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import named_tensors
from tinytorch.core.backends import Array
from tinytorch.core.module import Module
from tinytorch.core.optimizers import Adam, Optimizer
from tinytorch.core.tensor import Tensor
from tinytorch.core.training import CosineSchedule
from tinytorch.errors import SettingError
from tinytorch.perf.compression.constrained_training import (
    ConstrainedOptimizer,
    Project,
    keeping_zeros,
)
from tinytorch.perf.compression.distillation import KnowledgeDistillation
from tinytorch.perf.compression.masks import Masks, set_zero
from tinytorch.perf.compression.prune import Prune, planned_weight
from tinytorch.perf.compression.sparsity_schedules import SparsitySchedule
from tinytorch.workloads.plan import Plan, Step, Transform
from tinytorch.workloads.training_checks import check_loader, check_optimizer
from tinytorch.workloads.workload import Workload

__all__ = ["fine_tune"]

LEARNING_RATE = 2e-3
"""Of Adam. It is a rate for training, not a small one: the weights that stay have to take over from
those that are gone (Renda et al., 2020)."""
SETTINGS = ("validation", "metrics", "clip_norm", "early_stopping", "on_step")
"""Those of ``Module.fit`` that are passed on."""
TORCH_SETTINGS = ("clip_norm", "on_step")
Constraint = tuple[Tensor, Project]


def fine_tune(
    workload: Workload,
    loader: Any,
    transform: Transform,
    *,
    epochs: int = 1,
    loss: Any = None,
    optimizer: Callable[[list[Any]], Any] | None = None,
    schedule: SparsitySchedule | None = None,
    teacher: Any = None,
    lr_schedule: Callable[[int], float] | None = None,
    **settings: Any,
) -> Any:
    """Give a compressed copy of a model that was trained to live with it.

    The transform is planned and applied to a copy, which is then trained on `loader`, batches of
    (inputs, targets). Weights that are zero then stay zero, also those that were pruned before; a
    weight that is zero throughout was not pruned and learns. With a `schedule`, pruning starts
    dense and happens during the training: each layer ends with as many zeros as planned, chosen
    from the weights as they are by then.

    The optimizer is a function of the parameters; unless given, Adam at 2e-3, falling to 0 along a
    cosine. `lr_schedule` gives the learning rate of each step. A `teacher` is a model whose outputs
    are learned beside the labels, such as the workload's own. Other settings are those of
    ``Module.fit``; for PyTorch models `clip_norm` and `on_step`. The workload's model stays as it
    is.
    """
    _check(workload, loader, transform, optimizer)
    is_torch = adapter_for(workload.model, workload.arguments).name == "pytorch"
    _check_settings(settings, TORCH_SETTINGS if is_torch else SETTINGS)
    if isinstance(epochs, bool) or not isinstance(epochs, Integral):
        raise SettingError(f"epochs is a number of passes over the data, got {epochs!r}")
    if epochs < 0 or not len(loader):
        raise SettingError(f"training needs batches, got {len(loader)}, and epochs, got {epochs}")
    if teacher is not None and loss is not None:
        raise SettingError("a teacher brings its own loss; leave out `loss`, or the teacher")
    if schedule is not None:
        _check_schedule(schedule, transform, epochs * len(loader), settings)
    if is_torch:
        from tinytorch.perf.compression.fine_tuning_torch import fine_tune_torch

        return fine_tune_torch(
            workload, loader, transform, epochs=epochs, loss=loss, optimizer=optimizer,
            schedule=schedule, teacher=teacher, lr_schedule=lr_schedule,
            learning_rate=LEARNING_RATE, **settings,
        )  # fmt: skip
    model, constrain = _compressed(workload, transform, schedule)
    parameters = [each for each in model.parameters() if each.requires_grad]
    if not parameters:
        raise SettingError(f"{type(transform).__name__} leaves no parameter that can be trained")
    if optimizer is None:
        optimizer = partial(Adam, lr=LEARNING_RATE)
        lr_schedule = lr_schedule or CosineSchedule(LEARNING_RATE, max(1, epochs * len(loader)))
    settings |= {"schedule": lr_schedule, "optimizer": constrain(optimizer(parameters))}
    if teacher is None:
        model.fit(loader, loss, epochs=epochs, **settings)
    else:
        KnowledgeDistillation(teacher, model).fit(loader, epochs=epochs, **settings)
    model.zero_grad()
    return model


def _check(workload: Any, loader: Any, transform: Any, optimizer: Any) -> None:
    if not isinstance(workload, Workload):
        raise SettingError(f"fine-tuning is for a Workload, got {type(workload).__name__}")
    if isinstance(transform, type) or not isinstance(transform, Transform):
        raise SettingError(
            f"fine-tuning needs a transform such as Prune(sparsity=0.9), got {transform!r}"
        )
    check_optimizer(optimizer)
    check_loader(loader)


def _check_settings(settings: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise for settings that no training has, instead of leaving that to the trainer's own."""
    rates = [name for name in settings if name in ("lr", "learning_rate")]
    if rates:
        rate = settings[rates[0]]
        raise SettingError(
            f"{rates[0]} is a setting of the optimizer: give optimizer=lambda parameters: "
            f"Adam(parameters, lr={rate!r}), or lr_schedule, a function that gives the rate of "
            "each step"
        )
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise SettingError(
            f"unknown setting {unknown[0]!r} of this training; there are {', '.join(known)}"
        )


def _check_schedule(schedule: Any, transform: Any, steps: int, settings: Mapping[str, Any]) -> None:
    """Raise unless the plan is met when the training ends."""
    if not isinstance(transform, Prune):
        raise SettingError(
            f"a schedule is for Prune, which can go step by step; {type(transform).__name__} "
            "cannot (the learning rate follows lr_schedule)"
        )
    if not callable(schedule):
        raise SettingError(
            f"a schedule is a function such as CubicSchedule(steps=500), got {schedule!r}"
        )
    last = schedule(steps, transform.sparsity)
    if last != transform.sparsity:
        raise SettingError(
            f"the schedule is at a sparsity of {last:.3g} after the {steps} steps of this "
            f"training, not at {transform.sparsity}: train longer, or give it fewer steps"
        )
    if settings.get("early_stopping") is not None:
        raise SettingError(
            "early stopping could give back weights from before the pruning was done; leave it "
            "out, or leave out the schedule"
        )


def _compressed(
    workload: Workload, transform: Transform, schedule: SparsitySchedule | None
) -> tuple[Any, Callable[[Optimizer], Optimizer]]:
    """Give the copy that is trained, and what makes its optimizer keep to the plan."""
    if not isinstance(workload.model, Module):
        raise SettingError(
            f"fine-tuning trains modules of tinytorch and PyTorch, {workload.name} is a "
            f"{type(workload.model).__name__}"
        )
    plan = transform.plan(workload)
    if schedule is None:
        model = transform.apply(workload, plan)
        zeros = _staying_zero(model, plan)
        return model, lambda optimizer: ConstrainedOptimizer(optimizer, _moved(zeros, optimizer))
    assert isinstance(transform, Prune)
    model = adapter_for(workload.model).clone(workload.model)
    return model, partial(_prune_gradually, model, plan, transform, schedule)


def _prune_gradually(
    model: Any, plan: Plan, transform: Prune, schedule: SparsitySchedule, optimizer: Optimizer
) -> Optimizer:
    """Prune what the optimizer does not move at once, and the rest by the schedule."""
    zeros = _staying_zero(model, plan)
    tensors, modules = named_tensors(model), adapter_for(model).modules(model)
    moved = {id(parameter) for parameter in optimizer.params}
    gradual_steps = []
    for step in plan.steps:
        weight = planned_weight(step, tensors)
        if id(weight) in moved:
            gradual_steps.append(step)
        else:
            set_zero(weight, transform.least_important(weight.data, step, modules))
    gradual = _Gradual(model, gradual_steps, transform, schedule)
    pruned = gradual.constraints()
    own = {id(weight) for weight, _ in pruned}
    zeros = [each for each in _moved(zeros, optimizer) if id(each[0]) not in own]
    return ConstrainedOptimizer(optimizer, [*pruned, *zeros], prepare=gradual.prepare)


# ---------------------------------------------------------------- zeros


def _staying_zero(model: Any, plan: Plan) -> list[Constraint]:
    """Give a constraint for each weight that has zeros and is trained."""
    tensors = named_tensors(model)
    planned = (str(step.settings.get("weight")) for step in plan.steps)
    names = dict.fromkeys([*Masks.of(model).kept, *(name for name in planned if name in tensors)])
    return [
        (tensors[name], keeping_zeros(kept))
        for name, kept in Masks.of(model, names).kept.items()
        if kept.any() and not kept.all()
    ]


def _moved(constraints: list[Constraint], optimizer: Optimizer) -> list[Constraint]:
    """Leave out the weights that stay as they are."""
    moved = {id(parameter) for parameter in optimizer.params}
    return [each for each in constraints if id(each[0]) in moved]


class _Gradual:
    """Masks of the weights in a plan that lose more and more, by a schedule."""

    def __init__(
        self, model: Any, steps: Sequence[Step], transform: Prune, schedule: SparsitySchedule
    ) -> None:
        tensors = named_tensors(model)
        self._modules = adapter_for(model).modules(model)
        self._transform, self._schedule = transform, schedule
        self._steps = steps
        self._weights = [planned_weight(step, tensors) for step in steps]
        self._zeros_before = [int((each.data == 0).sum()) for each in self._weights]
        self._kept: list[Array] = [each.data != 0 for each in self._weights]
        self._share: float | None = None

    def constraints(self) -> list[Constraint]:
        def projecting(index: int) -> Project:
            return lambda free: keeping_zeros(self._kept[index])(free)

        return [(weight, projecting(index)) for index, weight in enumerate(self._weights)]

    def prepare(self, steps: int, free: Sequence[Array]) -> None:
        """Choose the masks anew when the schedule has gone on."""
        target = self._transform.sparsity
        share = self._schedule(steps, target) / target if target else 1.0
        if share == self._share:
            return
        self._share = share
        # behind the pruned ones may stand others, which only keep their zeros
        for index, (step, values) in enumerate(zip(self._steps, free, strict=False)):
            zeros = max(self._zeros_before[index], round(share * step.settings["zeros"]))
            part = replace(step, settings={**step.settings, "zeros": zeros})
            self._kept[index] = ~self._transform.least_important(values, part, self._modules)
