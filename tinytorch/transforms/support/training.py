"""Training under constraints: weights that stay zero, that lie on a grid, or anything alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, Protocol

import numpy as np

from tinytorch.core.kernels import Array
from tinytorch.core.module import Module
from tinytorch.core.optimizers import Adam, Optimizer
from tinytorch.core.tensor import Tensor
from tinytorch.core.training import CosineSchedule
from tinytorch.errors import CheckpointError, SettingError, ShapeError
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.distillation import KnowledgeDistillation
from tinytorch.transforms.plan import Plan, Step, Transform
from tinytorch.transforms.prune import Masks, Prune, planned_weight, set_zero
from tinytorch.transforms.support.observing import check_loader, check_optimizer

# ---------------------------------------------------------------- training under constraints:
# weights that stay zero, that lie on a grid, or anything alike

Project = Callable[[Array], Array]
"""Returns the values that a parameter holds, from a free copy that it does not change."""
Prepare = Callable[[int, Sequence[Array]], None]
PREFIX = "free."


def keeping_zeros(kept: Array) -> Project:
    """Return the projection that holds the weights outside of a mask at zero."""

    def project(free: Array) -> Array:
        # no product: a hidden copy may have grown beyond all numbers
        return np.where(kept, free, free.dtype.type(0))

    return project


class ConstrainedOptimizer(Optimizer):
    """An optimizer whose parameters keep to constraints: at once, and after each step.

    It moves free copies; the model holds what a projection makes of them. The gradient is that at
    the projected values and goes straight through to the free ones. So a mask, a mask that changes
    and rounding are one concept.

    `constraints` are pairs of a parameter and its projection. `prepare(steps, free_copies)` is
    called before the parameters are projected, for projections that change in time or depend on
    several parameters. A parameter whose ``data`` is replaced from outside, as by
    ``load_state_dict``, starts anew from there.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        constraints: Iterable[tuple[Tensor, Project]],
        *,
        prepare: Prepare | None = None,
    ) -> None:
        pairs = list(constraints)
        own = {id(parameter) for parameter in optimizer.params}
        for number, (parameter, _) in enumerate(pairs):
            if id(parameter) not in own:
                raise SettingError(
                    f"constraint {number} is for a tensor that the optimizer does not move; give "
                    "it to the optimizer as well"
                )
        self._constrained = [parameter for parameter, _ in pairs]
        if len({id(parameter) for parameter in self._constrained}) < len(pairs):
            raise SettingError("a parameter has two constraints; make one projection of them")
        self.optimizer = optimizer
        self._projections = [project for _, project in pairs]
        self._prepare = prepare
        self._free = [parameter.data.copy() for parameter in self._constrained]
        self._held = [parameter.data for parameter in self._constrained]
        self._project()

    # ------------------------------------------------------------ as the optimizer inside

    @property
    def params(self) -> list[Tensor]:  # type: ignore[override]
        return self.optimizer.params

    @property
    def lr(self) -> float:
        return self.optimizer.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.optimizer.lr = value

    @property
    def weight_decay(self) -> float:  # type: ignore[override]
        return self.optimizer.weight_decay

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.optimizer.steps

    @property
    def slots(self) -> list[dict[str, Array]]:  # type: ignore[override]
        """The arrays of each parameter, the free copy among them."""
        free = {id(p): array for p, array in zip(self._constrained, self._free, strict=True)}
        return [
            slots | ({"free": free[id(parameter)]} if id(parameter) in free else {})
            for parameter, slots in zip(self.params, self.optimizer.slots, strict=True)
        ]

    # ------------------------------------------------------------ steps

    def step(self) -> None:
        """Move the free copies, and give the model what the projections make of them."""
        self._take_over()
        for parameter, free in zip(self._constrained, self._free, strict=True):
            parameter.data = free
        try:
            self.optimizer.step()
        finally:
            for parameter, held in zip(self._constrained, self._held, strict=True):
                parameter.data = held
        self._project()

    def _take_over(self) -> None:
        """Start anew from parameters that were set from outside."""
        for index, parameter in enumerate(self._constrained):
            if parameter.data is not self._held[index]:
                self._free[index], self._held[index] = parameter.data.copy(), parameter.data

    def _project(self) -> None:
        if self._prepare is not None:
            self._prepare(self.steps, self._free)
        projected = []
        for parameter, free, project in zip(
            self._constrained, self._free, self._projections, strict=True
        ):
            values = project(free)
            if values.shape != parameter.shape:
                raise ShapeError(
                    f"a projection gave shape {values.shape} for a parameter {parameter.shape}"
                )
            is_same = values is free or np.shares_memory(values, free)
            projected.append(values.copy() if is_same else values.astype(free.dtype, copy=False))
        for parameter, values in zip(self._constrained, projected, strict=True):
            parameter.data = values
        self._held = projected

    # ------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Array]:
        """Return the state of the inner optimizer, and the free copies."""
        free = {f"{PREFIX}{index}": array for index, array in enumerate(self._free)}
        return self.optimizer.state_dict() | free

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Load the result of :meth:`state_dict`; nothing changes unless everything fits.

        The parameters are projected from the free copies.
        """
        free: list[Any] = []
        for index, parameter in enumerate(self._constrained):
            array = arrays.get(f"{PREFIX}{index}")
            if array is None:
                raise CheckpointError(
                    f"missing key {f'{PREFIX}{index}'!r}: the state is that of an optimizer "
                    "without these constraints"
                )
            if array.shape != parameter.shape:
                raise CheckpointError(
                    f"optimizer key {f'{PREFIX}{index}'!r} has shape {array.shape}, the parameter "
                    f"needs {parameter.shape}"
                )
            free.append(array.astype(parameter.dtype))
        known = {f"{PREFIX}{index}" for index in range(len(free))}
        self.optimizer.load_state_dict({k: v for k, v in arrays.items() if k not in known})
        self._free = free
        self._project()


# ---------------------------------------------------------------- how sparse a model is at each
# step of its training, on the way to a target


class SparsitySchedule(Protocol):
    """A function of the number of steps taken and the target, that gives a sparsity."""

    def __call__(self, step: int, target: float) -> float: ...


@dataclass(frozen=True)
class CubicSchedule:
    """Prune fast while there is much to prune, then ever more slowly (Zhu and Gupta, 2017).

    The sparsity stays at `start` for `warmup` steps, then rises to the target, which `steps` steps
    reach. It changes every `every` steps, so that the model can recover in between.

    >>> schedule = CubicSchedule(steps=100)
    >>> [round(schedule(step, 0.8), 3) for step in (0, 10, 50, 90, 100)]
    [0.0, 0.217, 0.7, 0.799, 0.8]
    """

    steps: int
    start: float = 0.0
    warmup: int = 0
    every: int = 10

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SettingError(f"steps must be at least 1, got {self.steps}")
        if not 0 <= self.warmup < self.steps:
            raise SettingError(f"warmup must be in 0..{self.steps - 1}, got {self.warmup}")
        if not 0 <= self.start < 1:
            raise SettingError(f"start must be at least 0 and below 1, got {self.start}")
        if self.every < 1:
            raise SettingError(f"every must be at least 1, got {self.every}")

    def __call__(self, step: int, target: float) -> float:
        if step >= self.steps or self.start >= target:
            return target
        since = max(0, step - self.warmup)
        done = (since - since % self.every) / (self.steps - self.warmup)
        return self.start + (target - self.start) * (1 - (1 - done) ** 3)


# ---------------------------------------------------------------- fine-tuning: compress a copy of
# a model and train it, with what must stay zero staying zero

LEARNING_RATE = 2e-3
"""Of Adam. It is a rate for training, not a small one: the weights that stay have to take over from
those that are gone (Renda et al., 2020)."""
SETTINGS = ("validation", "metrics", "clip_norm", "early_stopping", "on_step")
"""Those of ``Module.fit`` that are passed on."""
TORCH_SETTINGS = ("clip_norm", "on_step")


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
    """Return a compressed copy of a model after fine-tuning.

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
    plan = transform.plan(workload)
    adapter = adapter_for(workload.model, workload.arguments)
    model = adapter.clone(workload.model) if schedule else transform.apply(workload, plan)
    parameters = [each for each in model.parameters() if each.requires_grad]
    if not parameters:
        raise SettingError(f"{type(transform).__name__} leaves no parameter that can be trained")
    if optimizer is None:
        optimizer = _default_optimizer(adapter)
        lr_schedule = lr_schedule or CosineSchedule(LEARNING_RATE, max(1, epochs * len(loader)))
    moving = optimizer(parameters)
    zeros = _StayingZero(model, plan, transform, schedule, _moved_by(moving))
    settings |= {"schedule": lr_schedule, "epochs": epochs}
    if adapter.name == "pytorch":
        from tinytorch.transforms.support.training_torch import fine_tune_torch

        fine_tune_torch(model, loader, moving, loss, teacher, after_step=zeros.enforce, **settings)
        return model
    settings["optimizer"] = ConstrainedOptimizer(moving, zeros.constraints, prepare=zeros.prepare)
    if teacher is None:
        model.fit(loader, loss, **settings)
    else:
        KnowledgeDistillation(teacher, model).fit(loader, **settings)
    model.zero_grad()
    return model


def _default_optimizer(adapter: Adapter) -> Callable[[list[Any]], Any]:
    if adapter.name == "pytorch":
        from tinytorch.transforms.support.training_torch import adam

        return partial(adam, lr=LEARNING_RATE)
    return partial(Adam, lr=LEARNING_RATE)


def _moved_by(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer of either framework."""
    if isinstance(optimizer, Optimizer):
        return optimizer.params
    return [each for group in optimizer.param_groups for each in group["params"]]


def _check(workload: Any, loader: Any, transform: Any, optimizer: Any) -> None:
    if not isinstance(workload, Workload):
        raise SettingError(f"fine-tuning is for a Workload, got {type(workload).__name__}")
    if isinstance(transform, type) or not hasattr(transform, "plan"):
        raise SettingError(
            f"fine-tuning needs a transform such as Prune(sparsity=0.9), got {transform!r}"
        )
    adapter = adapter_for(workload.model, workload.arguments)
    is_module = adapter.name == "pytorch" or isinstance(workload.model, Module)
    if not is_module or adapter.why_no_module(workload.model):
        raise SettingError(
            f"fine-tuning trains modules of tinytorch and PyTorch, {workload.name} is a "
            f"{type(workload.model).__name__}"
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


# ---------------------------------------------------------------- zeros


class _StayingZero:
    """The masks of a training: zeros that stay, and those that a schedule adds to.

    Weights of a plan with a schedule come first; those that are not trained are pruned at once.
    """

    def __init__(
        self,
        model: Any,
        plan: Plan,
        transform: Any,
        schedule: SparsitySchedule | None,
        parameters: Iterable[Any],
    ) -> None:
        self._adapter = adapter_for(model)
        self._modules = self._adapter.modules(model)
        self._transform, self._schedule = transform, schedule
        self._share: float | None = None
        tensors = self._adapter.named_tensors(model)
        trained = {id(each) for each in parameters}
        self._steps: list[Step] = []
        self._weights: list[Any] = []
        for step in plan.steps if schedule else ():
            weight = planned_weight(step, tensors)
            if id(weight) in trained:
                self._steps.append(step)
                self._weights.append(weight)
            else:
                values = self._adapter.values(weight)
                chosen = transform.least_important(values, step, self._modules)
                set_zero(self._adapter, weight, chosen)
        own = {id(weight) for weight in self._weights}
        planned = (str(step.settings.get("weight")) for step in plan.steps)
        names = [*Masks.of(model).kept, *(name for name in planned if name in tensors)]
        for weight in (tensors[name] for name in dict.fromkeys(names)):
            values = self._adapter.values(weight)
            if id(weight) in trained - own and (values == 0).any() and (values != 0).any():
                self._weights.append(weight)
        self._kept = [self._adapter.values(each) != 0 for each in self._weights]
        self._zeros_before = [int((~kept).sum()) for kept in self._kept]

    @property
    def constraints(self) -> list[tuple[Tensor, Project]]:
        """The weights, each with the projection that keeps its zeros."""

        def projecting(index: int) -> Project:
            return lambda free: keeping_zeros(self._kept[index])(free)

        return [(weight, projecting(index)) for index, weight in enumerate(self._weights)]

    def prepare(self, steps: int, free: Sequence[Any]) -> None:
        """Choose the masks of the schedule anew when it has gone on."""
        if self._schedule is None:
            return
        target = self._transform.sparsity
        share = self._schedule(steps, target) / target if target else 1.0
        if share == self._share:
            return
        self._share = share
        # behind the pruned ones stand others, which only keep their zeros
        for index, (step, values) in enumerate(zip(self._steps, free, strict=False)):
            zeros = max(self._zeros_before[index], round(share * step.settings["zeros"]))
            part = replace(step, settings={**step.settings, "zeros": zeros})
            self._kept[index] = ~self._transform.least_important(values, part, self._modules)

    def enforce(self, steps: int) -> None:
        """Set what is not kept to zero in the weights themselves."""
        self._set_zeros()
        before = self._share
        self.prepare(steps, [self._adapter.values(each) for each in self._weights])
        if self._share != before:
            self._set_zeros()

    def _set_zeros(self) -> None:
        for weight, kept in zip(self._weights, self._kept, strict=True):
            set_zero(self._adapter, weight, ~kept)
