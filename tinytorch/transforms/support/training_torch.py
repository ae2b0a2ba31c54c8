"""The training loop for PyTorch models. Imported after torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tinytorch.core.files import ProgressLine
from tinytorch.core.module import keeping_modes
from tinytorch.core.training import Epoch, History, checked_pair
from tinytorch.errors import DivergenceError, SettingError

Loss = Callable[[Any, Any], torch.Tensor]
adam = torch.optim.Adam


def train(
    model: nn.Module,
    loader: Any,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int = 1,
    validation: Any = None,
    schedule: Callable[[int], float] | None = None,
    clip_norm: float | None = None,
    on_step: Callable[[int, int, float], None] | None = None,
    after_step: Callable[[int], None] | None = None,
) -> History:
    """Train a model on batches of (inputs, labels), and return the history of its training.

    `loss(inputs, labels)` calls the model. `schedule` maps the number of steps to a learning rate.
    `after_step(steps)` is called before the first step and after each. Every layer ends in the mode
    that it started in.
    """
    total, done = epochs * len(loader), 0
    line = ProgressLine(total)
    history: list[Epoch] = []
    enforce = after_step or (lambda steps: None)
    try:
        with keeping_modes(model):
            enforce(0)
            for number in range(epochs):
                model.train()
                losses = []
                for batch in loader:
                    rate = None if schedule is None else schedule(done)
                    for group in optimizer.param_groups:
                        group["lr"] = group["lr"] if rate is None else rate
                    losses.append(_step(model, loss, batch, optimizer, done, clip_norm))
                    done += 1
                    enforce(done)
                    if on_step is not None:
                        on_step(done, total, losses[-1])
                    else:
                        line.advance(f"epoch {number + 1}/{epochs}  loss {losses[-1]:.4f}")
                values = {"loss": math.fsum(losses) / max(1, len(losses))}
                if validation is not None:
                    values["validation_loss"] = _mean_loss(model, loss, validation)
                history.append(Epoch(number, values))
    finally:
        line.close()
        optimizer.zero_grad()
    return History(tuple(history))


def _step(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    optimizer: torch.optim.Optimizer,
    number: int,
    clip_norm: float | None,
) -> float:
    """Take one step on one batch and return its loss."""
    optimizer.zero_grad()
    found = loss(*checked_pair(batch))
    value = float(found.detach())
    if not math.isfinite(value):
        raise DivergenceError(
            f"the loss is {value} at step {number}; check the inputs for NaN, lower the learning "
            "rate, or set clip_norm"
        )
    found.backward()  # type: ignore[no-untyped-call]
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return value


def _mean_loss(model: nn.Module, loss: Loss, batches: Any) -> float:
    """Return the mean over batches, in evaluation mode and without a graph."""
    model.eval()
    with torch.no_grad():
        losses = [float(loss(*checked_pair(batch))) for batch in batches]
    if not losses:
        raise SettingError("the validation data gives no batch")
    return math.fsum(losses) / len(losses)


def fine_tune_torch(
    model: nn.Module,
    loader: Any,
    optimizer: torch.optim.Optimizer,
    loss: Any,
    teacher: Any,
    **settings: Any,
) -> History:
    """Train on the labels, with cross entropy unless a loss is given, or on a teacher as well."""
    if teacher is not None:
        from tinytorch.transforms.distillation import KnowledgeDistillation

        return KnowledgeDistillation(teacher, model).fit(loader, optimizer, **settings)
    compared = nn.CrossEntropyLoss() if loss is None else loss

    def plain(inputs: Any, targets: Any) -> torch.Tensor:
        outputs = logits_in(call_with(model, inputs))
        found: torch.Tensor = compared(outputs, targets.to(outputs.device))
        return found

    return train(model, loader, plain, optimizer, **settings)


def call_with(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor, a tuple of arguments or a dictionary, on its own device."""
    first = next(model.parameters(), None)

    def here(value: Any) -> Any:
        return value.to(first.device) if first is not None and hasattr(value, "to") else value

    if isinstance(inputs, Mapping):
        return model(**{name: here(value) for name, value in inputs.items()})
    if isinstance(inputs, (tuple, list)):
        return model(*map(here, inputs))
    return model(here(inputs))


def logits_in(output: Any) -> Any:
    """Return the logits in an output of transformers; a tensor unchanged."""
    return output if isinstance(output, torch.Tensor) else getattr(output, "logits", output)
