"""Knowledge distillation of PyTorch models: the loss, and training with it. After torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from tinytorch.core.files import ProgressLine
from tinytorch.core.training import Epoch, History
from tinytorch.errors import DivergenceError, DTypeError, SettingError, ShapeError

if TYPE_CHECKING:
    from tinytorch.transforms.distillation import KnowledgeDistillation

__all__ = ["distillation_loss", "fit", "teach"]

IGNORED = -100
"""The label of rows that do not count, as in PyTorch's cross entropy."""


def distillation_loss(
    student_logits: Any,
    teacher_logits: Any,
    labels: Any,
    *,
    temperature: float = 3.0,
    alpha: float = 0.7,
) -> torch.Tensor:
    """Give alpha * T^2 * KL(teacher || student) + (1 - alpha) * cross entropy, differentiable.

    Logits are (..., classes) and labels (...,): both parts are means over rows. Rows with the label
    -100, such as padding, count in neither. No gradient goes to the teacher. Logits of half
    precision are compared in float32.
    """
    student = _checked(student_logits, teacher_logits)
    teacher = teacher_logits.detach().to(student.device, student.dtype)
    classes = student.shape[-1]
    student, teacher = student.reshape(-1, classes), teacher.reshape(-1, classes)
    if labels is None and alpha < 1:
        raise SettingError(
            f"alpha={alpha} learns from labels as well, and there are none; give labels, or alpha=1"
        )
    if labels is not None:
        labels = torch.as_tensor(labels, device=student.device).reshape(-1).long()
        if len(labels) != len(student):
            raise ShapeError(
                f"there is a label for each row of logits, got {len(labels)} labels and "
                f"{len(student)} rows"
            )
        counted = labels != IGNORED
        student, teacher, labels = student[counted], teacher[counted], labels[counted]
        if not len(student):
            raise SettingError(f"all labels are {IGNORED}, so there is nothing to learn from")
    loss = student.new_zeros(())
    if alpha > 0:
        found = functional.log_softmax(student / temperature, dim=-1)
        wanted = functional.log_softmax(teacher / temperature, dim=-1)
        soft = functional.kl_div(found, wanted, reduction="batchmean", log_target=True)
        loss = loss + alpha * temperature**2 * soft
    if alpha < 1:
        loss = loss + (1 - alpha) * functional.cross_entropy(student, labels)
    return loss


def _checked(student: Any, teacher: Any) -> torch.Tensor:
    """Give the student's logits ready for the loss, or raise."""
    for name, logits in (("student", student), ("teacher", teacher)):
        if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
            kind = getattr(logits, "dtype", type(logits).__name__)
            raise DTypeError(f"the {name}'s logits are a tensor of floats, got {kind}")
    if student.shape != teacher.shape or not student.dim() or not student.shape[-1]:
        raise ShapeError(
            f"logits (..., classes) of student and teacher need one shape, got "
            f"{tuple(student.shape)} and {tuple(teacher.shape)}; both models must tell the same "
            "classes apart"
        )
    wide = torch.float64 if student.dtype == torch.float64 else torch.float32
    ready: torch.Tensor = student.to(wide)
    return ready


def teach(teacher: nn.Module, inputs: Any) -> torch.Tensor:
    """Give a teacher's logits: in evaluation mode and without a graph."""
    with _keeping_modes(teacher), torch.no_grad():
        teacher.eval()
        return _logits(_call(teacher, inputs))


# ---------------------------------------------------------------- training


def fit(
    distillation: KnowledgeDistillation,
    loader: Any,
    optimizer: Any = None,
    epochs: int = 1,
    *,
    validation: Any = None,
    schedule: Callable[[int], float] | None = None,
    clip_norm: float | None = None,
    on_step: Callable[[int, int, float], None] | None = None,
) -> History:
    """Train a student on batches of (inputs, labels), and give the history of its training.

    Inputs are a tensor, a tuple of arguments or a dictionary of them; a model may give its logits
    or an output that has them. Batches are moved to the device of each model. `schedule` maps the
    number of steps to a learning rate. The teacher stays as it is.
    """
    student, teacher = distillation.student, distillation.teacher
    own = {id(each) for each in student.parameters()}
    if any(id(each) in own for each in teacher.parameters()):
        raise SettingError(
            "teacher and student share parameters, so training would change the teacher; give the "
            "student a copy (copy.deepcopy)"
        )
    _check_loader(loader, epochs)
    learned = [each for each in student.parameters() if each.requires_grad]
    if not learned:
        raise SettingError("the student has no parameter with requires_grad: nothing to train")
    moving = torch.optim.Adam(learned, lr=1e-3) if optimizer is None else optimizer
    lessons = _Lessons(distillation)
    total, done = epochs * len(loader), 0
    line = ProgressLine(total)
    history: list[Epoch] = []
    try:
        with _keeping_modes(student):
            for number in range(epochs):
                student.train()
                losses = []
                for batch in loader:
                    rate = None if schedule is None else schedule(done)
                    losses.append(_step(lessons, batch, moving, done, rate, clip_norm))
                    done += 1
                    if on_step is not None:
                        on_step(done, total, losses[-1])
                    else:
                        line.advance(f"epoch {number + 1}/{epochs}  loss {losses[-1]:.4f}")
                values = {"loss": math.fsum(losses) / max(1, len(losses))}
                if validation is not None:
                    values["validation_loss"] = lessons.mean_loss(validation)
                history.append(Epoch(number, values))
    finally:
        line.close()
        moving.zero_grad()
    return History(tuple(history))


class _Lessons:
    """The loss of a batch, with what the teacher says about it."""

    def __init__(self, distillation: KnowledgeDistillation) -> None:
        self.student: nn.Module = distillation.student
        self.teacher: nn.Module = distillation.teacher
        self._distillation = distillation

    def loss(self, batch: Any) -> torch.Tensor:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise SettingError(
                f"training needs batches of (inputs, labels), got {type(batch).__name__}"
            )
        inputs, labels = batch
        soft = teach(self.teacher, inputs)
        found = _logits(_call(self.student, inputs))
        loss: torch.Tensor = self._distillation.distillation_loss(found, soft, labels)
        return loss

    def mean_loss(self, batches: Any) -> float:
        """Give the mean over batches, in evaluation mode and without a graph."""
        self.student.eval()
        with torch.no_grad():
            losses = [float(self.loss(batch)) for batch in batches]
        if not losses:
            raise SettingError("the validation data gives no batch")
        return math.fsum(losses) / len(losses)


def _step(
    lessons: _Lessons,
    batch: Any,
    optimizer: torch.optim.Optimizer,
    number: int,
    rate: float | None,
    clip_norm: float | None,
) -> float:
    """Take one step on one batch and give its loss."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] if rate is None else rate
    optimizer.zero_grad()
    loss = lessons.loss(batch)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise DivergenceError(
            f"the loss is {value} at step {number}; check the inputs for NaN, lower the learning "
            "rate, or set clip_norm"
        )
    loss.backward()  # type: ignore[no-untyped-call]
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(lessons.student.parameters(), clip_norm)
    optimizer.step()
    return value


def _check_loader(loader: Any, epochs: int) -> None:
    if not hasattr(loader, "__len__"):
        raise SettingError(
            f"training goes over the data several times, which a {type(loader).__name__} cannot; "
            "give a DataLoader or a list of batches"
        )
    if not len(loader):
        raise SettingError("the loader gives no batch: no examples, or drop_last with too few")
    if epochs < 0:
        raise SettingError(f"epochs must be at least 0, got {epochs}")


def _call(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor, a tuple of arguments or a dictionary, on its own device."""
    first = next(model.parameters(), None)

    def here(value: Any) -> Any:
        return value.to(first.device) if first is not None and hasattr(value, "to") else value

    if isinstance(inputs, Mapping):
        return model(**{name: here(value) for name, value in inputs.items()})
    if isinstance(inputs, (tuple, list)):
        return model(*map(here, inputs))
    return model(here(inputs))


def _logits(output: Any) -> Any:
    """Give the logits in an output of transformers; a tensor as it is."""
    return output if isinstance(output, torch.Tensor) else getattr(output, "logits", output)


@contextmanager
def _keeping_modes(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
