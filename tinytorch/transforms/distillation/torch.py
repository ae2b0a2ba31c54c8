"""Knowledge distillation of PyTorch models: the loss, and training with it. After torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from tinytorch.core.module import keeping_modes
from tinytorch.core.training import History
from tinytorch.errors import DTypeError, SettingError, ShapeError
from tinytorch.transforms.support.training_torch import call_with, logits_in, train

if TYPE_CHECKING:
    from tinytorch.transforms.distillation import KnowledgeDistillation


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
    """Compute alpha * T^2 * KL(teacher || student) + (1 - alpha) * cross entropy, differentiable.

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
    """Return the student's logits ready for the loss; raise unless they fit."""
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
    """Return a teacher's logits: in evaluation mode and without a graph."""
    with keeping_modes(teacher), torch.no_grad():
        teacher.eval()
        return logits_in(call_with(teacher, inputs))


def fit(
    distillation: KnowledgeDistillation,
    loader: Any,
    optimizer: Any = None,
    epochs: int = 1,
    **settings: Any,
) -> History:
    """Train a student on batches of (inputs, labels), and return the history of its training.

    Inputs are a tensor, a tuple of arguments or a dictionary of them; a model may give its logits
    or an output that has them. Batches are moved to the device of each model. Settings are those of
    :func:`~tinytorch.transforms.support.training_torch.train`. The teacher is not changed.
    """
    student, teacher = distillation.student, distillation.teacher
    if not len(loader):
        raise SettingError("the loader gives no batch: no examples, or drop_last with too few")
    if epochs < 0:
        raise SettingError(f"epochs must be at least 0, got {epochs}")
    learned = [each for each in student.parameters() if each.requires_grad]
    if not learned:
        raise SettingError("the student has no parameter with requires_grad: nothing to train")

    def loss(inputs: Any, labels: Any) -> torch.Tensor:
        soft = teach(teacher, inputs)
        outputs = logits_in(call_with(student, inputs))
        found: torch.Tensor = distillation.distillation_loss(outputs, soft, labels)
        return found

    moving = torch.optim.Adam(learned, lr=1e-3) if optimizer is None else optimizer
    return train(student, loader, loss, moving, epochs=epochs, **settings)
