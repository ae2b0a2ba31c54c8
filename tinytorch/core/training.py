"""Training: the loop, schedules, gradient clipping, metrics and early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinytorch.core.autograd import no_grad
from tinytorch.core.files import ProgressLine
from tinytorch.core.kernels import Array
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.module import Module, keeping_modes
from tinytorch.core.optimizers import Adam, Optimizer
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DivergenceError, SettingError, ShapeError

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "EarlyStopping",
    "Epoch",
    "History",
    "StepSchedule",
    "Trainer",
    "accuracy",
    "clip_grad_norm",
]

Metric = Callable[[Array, Array], float]
Schedule = Callable[[int], float]
StepReport = Callable[[int, int, float], None]


def accuracy(outputs: Array, targets: Array) -> float:
    """Return the fraction of rows whose largest output is the target."""
    if outputs.shape[:-1] != targets.shape:
        raise ShapeError(
            f"accuracy of outputs {outputs.shape} needs targets of shape {outputs.shape[:-1]}, "
            f"got {targets.shape}"
        )
    return float((outputs.argmax(axis=-1) == targets).mean()) if targets.size else math.nan


def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale all gradients together so that their norm is at most `max_norm`.

    Returns the norm before, which is infinite or NaN when a gradient is.
    """
    if not max_norm > 0:
        raise SettingError(f"max_norm must be above 0, got {max_norm}")
    known = [(p, p.grad) for p in parameters if p.grad is not None]
    norm = math.sqrt(sum(_sum_of_squares(gradient) for _, gradient in known))
    if norm > max_norm:
        for parameter, gradient in known:
            parameter.grad = gradient * (max_norm / (norm + 1e-6))
    return norm


def _sum_of_squares(array: Array) -> float:
    with np.errstate(over="ignore"):
        total = float(np.vdot(array, array))
    if math.isfinite(total):
        return total
    wide = array.astype(np.float64)  # float32 overflows at gradients of 1e19
    return float(np.vdot(wide, wide))


def checked_pair(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the targets of a batch; raise unless it has these two."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise SettingError(
            f"training needs batches of (inputs, targets), such as a DataLoader yields; "
            f"got {type(batch).__name__}"
        )
    return batch[0], batch[1]


@dataclass(frozen=True)
class ConstantSchedule:
    """The same learning rate at every step."""

    lr: float

    def __call__(self, step: int) -> float:
        return self.lr


@dataclass(frozen=True)
class StepSchedule:
    """Multiply the learning rate by `factor` every `every` steps."""

    lr: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise SettingError(f"every must be at least 1, got {self.every}")

    def __call__(self, step: int) -> float:
        return self.lr * float(self.factor ** (step // self.every))


@dataclass(frozen=True)
class CosineSchedule:
    """Rise linearly over `warmup` steps to `lr`, then fall along a cosine to `floor`.

    >>> schedule = CosineSchedule(lr=1.0, steps=100, warmup=10)
    >>> [round(schedule(step), 2) for step in (0, 9, 10, 55, 100)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """

    lr: float
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SettingError(f"steps must be at least 1, got {self.steps}")
        if not 0 <= self.warmup < self.steps:
            raise SettingError(f"warmup must be in 0..{self.steps - 1}, got {self.warmup}")

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return self.floor + (self.lr - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class EarlyStopping:
    """Stop after `patience` epochs in which `metric` did not improve by more than `min_delta`.

    The model then gets back the weights of its best epoch.
    """

    patience: int = 3
    min_delta: float = 0.0
    metric: str = "validation_loss"
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise SettingError(f"patience must be at least 1, got {self.patience}")

    def improves(self, value: float, best: float | None) -> bool:
        if best is None:
            return not math.isnan(value)
        gain = value - best if self.higher_is_better else best - value
        return gain > self.min_delta


@dataclass(frozen=True)
class Epoch:
    """Results of one pass over the data: mean training loss, and validation values if any."""

    number: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class History:
    """The epochs of one call of `fit`."""

    epochs: tuple[Epoch, ...] = ()
    stopped_early: bool = False
    best_epoch: int | None = None

    def values(self, name: str) -> list[float]:
        """Return one value of every epoch, for example ``history.values("loss")``."""
        return [epoch.values[name] for epoch in self.epochs]


@dataclass
class _BestWeights:
    """The best epoch so far, for early stopping."""

    rule: EarlyStopping
    value: float | None = None
    epoch: int | None = None
    state: dict[str, Array] = field(default_factory=dict)
    failures: int = 0

    def should_stop(self, model: Module, epoch: Epoch) -> bool:
        value = epoch.values[self.rule.metric]
        if self.rule.improves(value, self.value):
            self.value, self.epoch, self.failures = value, epoch.number, 0
            self.state = {name: array.copy() for name, array in model.state_dict().items()}
            return False
        self.failures += 1
        return self.failures >= self.rule.patience


class Trainer:
    """Train a model on batches of (inputs, targets).

    `metrics` maps names to functions of (outputs, targets) arrays. `schedule` maps the number of
    steps that the optimizer has taken to a learning rate, so that it goes on where a loaded one
    stopped. `on_step(done, total, loss)` replaces the progress line, which appears on a terminal
    when training takes longer than two seconds.
    """

    def __init__(
        self,
        model: Module,
        *,
        loss: Callable[..., Tensor] | None = None,
        optimizer: Optimizer | None = None,
        metrics: Mapping[str, Metric] | None = None,
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
        early_stopping: EarlyStopping | None = None,
        on_step: StepReport | None = None,
    ) -> None:
        if isinstance(loss, type) or not (loss is None or callable(loss)):
            raise SettingError(f"loss must be a function such as MSELoss(), got {loss!r}")
        self.model = model
        self.loss = CrossEntropyLoss() if loss is None else loss
        self.optimizer = Adam(model.parameters()) if optimizer is None else optimizer
        own = {id(parameter) for parameter in model.parameters()}
        if not any(id(parameter) in own for parameter in self.optimizer.params):
            raise SettingError("no parameter of the optimizer belongs to the model")
        self.metrics = dict(metrics or {})
        self.schedule = schedule
        self.clip_norm = clip_norm
        self.early_stopping = early_stopping
        self.on_step = on_step

    def fit(self, loader: Any, *, epochs: int = 1, validation: Any = None) -> History:
        """Train for `epochs` passes over the data; the mode of the model is restored."""
        if epochs < 0:
            raise SettingError(f"epochs must be at least 0, got {epochs}")
        if len(loader) == 0:
            raise SettingError("the loader yields no batch: no examples, or drop_last with too few")
        best = None
        if self.early_stopping is not None:
            names = ("loss", *self.metrics) if validation is not None else ()
            self._check_watched(["loss", *(f"validation_{name}" for name in names)])
            best = _BestWeights(self.early_stopping)
        done: list[Epoch] = []
        stopped = False
        line = None if self.on_step else ProgressLine(epochs * len(loader))
        try:
            with keeping_modes(self.model):
                for number in range(epochs):
                    values = {"loss": self._run_epoch(loader, number, epochs, line)}
                    if validation is not None:
                        measured = self.evaluate(validation)
                        values |= {f"validation_{name}": value for name, value in measured.items()}
                    done.append(Epoch(number, values))
                    stopped = best is not None and best.should_stop(self.model, done[-1])
                    if stopped:
                        break
            if best is not None and best.state:
                self.model.load_state_dict(best.state)
        finally:
            if line is not None:
                line.close()
        return History(tuple(done), stopped, best.epoch if best else None)

    def _check_watched(self, values: list[str]) -> None:
        assert self.early_stopping is not None
        if self.early_stopping.metric not in values:
            raise SettingError(
                f"early stopping watches {self.early_stopping.metric!r}, but an epoch has "
                f"{', '.join(values)}; pass validation data or watch another value"
            )

    def _run_epoch(self, loader: Any, number: int, epochs: int, line: ProgressLine | None) -> float:
        self.model.train()
        losses: list[float] = []
        weights: list[int] = []
        for batch in loader:
            losses.append(self.train_step(*checked_pair(batch)))
            weights.append(len(batch[0]))
            if self.on_step is not None:
                self.on_step(number * len(loader) + len(losses), epochs * len(loader), losses[-1])
            elif line is not None:
                line.advance(f"epoch {number + 1}/{epochs}  loss {losses[-1]:.4f}")
        return float(np.average(losses, weights=weights)) if losses else math.nan

    def train_step(self, inputs: Tensor, targets: Tensor) -> float:
        """Take one step on one batch and return its loss.

        A loss that is not finite raises :class:`DivergenceError` before any weight changes.
        """
        if self.schedule is not None:
            self.optimizer.lr = self.schedule(self.optimizer.steps)
        self.optimizer.zero_grad()
        loss = self.loss(self.model(inputs), targets)
        value = float(loss.data)
        if not math.isfinite(value):
            raise DivergenceError(
                f"the loss is {value} at step {self.optimizer.steps} (lr {self.optimizer.lr:.3g}); "
                "check the inputs for NaN, lower the learning rate, or set clip_norm"
            )
        loss.backward()
        if self.clip_norm is not None:
            clip_grad_norm(self.optimizer.params, self.clip_norm)
        self.optimizer.step()
        return value

    def evaluate(self, loader: Any) -> dict[str, float]:
        """Return mean loss and metrics over the data, in evaluation mode and without a graph."""
        totals: dict[str, float] = {}
        count = 0
        for size, values in self._evaluated_batches(loader):
            count += size
            for name, value in values.items():
                totals[name] = totals.get(name, 0.0) + size * value
        names = totals or dict.fromkeys(("loss", *self.metrics), 0.0)
        return {name: total / count if count else math.nan for name, total in names.items()}

    def _evaluated_batches(self, loader: Any) -> Iterator[tuple[int, dict[str, float]]]:
        with keeping_modes(self.model), no_grad():
            self.model.eval()
            for inputs, targets in loader:
                outputs = self.model(inputs)
                values = {"loss": float(self.loss(outputs, targets).data)}
                for name, metric in self.metrics.items():
                    values[name] = metric(outputs.data, targets.data)
                yield len(inputs), values
