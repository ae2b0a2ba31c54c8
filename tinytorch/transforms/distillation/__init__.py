"""Knowledge distillation: a student learns from labels and from what a teacher makes of the inputs.

The outputs of a teacher say more than a label: how likely it finds each of the other classes. At a
temperature T above 1 that becomes visible (Hinton, Vinyals and Dean, 2015). The gradients of the
softened part shrink by T^2, which the loss makes good, so that alpha means the same at every T.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any, Self

import numpy as np

from tinytorch.core.activations import LogSoftmax
from tinytorch.core.dispatch import run
from tinytorch.core.kernels import Array
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.module import Module, keeping_modes
from tinytorch.core.tensor import Tensor
from tinytorch.core.training import History
from tinytorch.errors import DTypeError, ModelError, SettingError, ShapeError
from tinytorch.models.adapter import adapter_for, owner_of
from tinytorch.models.workload import call_model
from tinytorch.transforms.support.observing import check_loader


class Lesson(Tensor):
    """The labels of a batch, and beside them what the teacher says about it."""

    teacher_logits: Array

    @classmethod
    def of(cls, labels: Any, teacher_logits: Array) -> Self:
        lesson = cls(labels)
        lesson.teacher_logits = teacher_logits
        return lesson


class KnowledgeDistillation:
    """Train a student on labels and on the softened outputs of a teacher, which is not changed.

    `alpha` weighs what the teacher says, 1 - `alpha` the labels; at a higher `temperature` the
    classes that the teacher finds unlikely count for more. Models of TinyTorch or of PyTorch, both
    of the same.
    """

    def __init__(
        self, teacher: Any, student: Any, temperature: float = 3.0, alpha: float = 0.7
    ) -> None:
        if not _is_number(temperature) or not 0 < temperature < float("inf"):
            raise SettingError(
                f"the temperature must be above 0, a finite number, got {temperature!r}"
            )
        if not _is_number(alpha) or not 0 <= alpha <= 1:
            raise SettingError(f"alpha is the weight of the teacher, from 0 to 1, got {alpha!r}")
        self.teacher = teacher
        self.student = student
        self.temperature = float(temperature)
        self.alpha = float(alpha)
        self._check_models()

    def _check_models(self) -> None:
        if self.teacher is self.student:
            raise SettingError(
                "the teacher is the student, so it has nothing to teach; give two models"
            )
        for name, model in (("teacher", self.teacher), ("student", self.student)):
            if not callable(model) and not hasattr(model, "forward"):
                raise SettingError(f"the {name} is a {type(model).__name__}, which is no model")
        if _is_torch_module(self.teacher) is not _is_torch_module(self.student):
            kinds = f"{type(self.teacher).__name__} and {type(self.student).__name__}"
            raise SettingError(
                f"teacher and student are of one framework, got {kinds}: one of them is PyTorch's"
            )
        adapter = adapter_for(owner_of(self.teacher))
        learned: Iterable[Any] = getattr(self.student, "parameters", tuple)()
        own = {key for each in learned for key in (id(each), adapter.memory_of(each))}
        for name, each in adapter.named_tensors(owner_of(self.teacher)).items():
            if id(each) in own or adapter.memory_of(each) in own:
                raise SettingError(
                    f"teacher and student share {name!r}, so training would change the teacher; "
                    "give the student a copy (copy.deepcopy)"
                )

    # ------------------------------------------------------------ the loss

    def distillation_loss(self, student_logits: Any, teacher_logits: Any, labels: Any) -> Any:
        """Compute alpha * T^2 * KL(teacher || student) + (1 - alpha) * cross entropy, with a graph.

        Logits are (..., classes) and labels (...,): both parts are means over all rows, so over the
        positions of a language model, too. No gradient goes to the teacher. With alpha=1 labels may
        be None.

        >>> distillation = KnowledgeDistillation(Module(), Module(), temperature=2.0, alpha=1.0)
        >>> logits = Tensor([[1.0, 2.0], [0.0, -1.0]], requires_grad=True)
        >>> float(distillation.distillation_loss(logits, logits, None).data)
        0.0
        """
        if _is_torch_tensor(student_logits) or _is_torch_tensor(teacher_logits):
            from tinytorch.transforms.distillation.torch import distillation_loss

            return distillation_loss(
                student_logits,
                teacher_logits,
                labels,
                temperature=self.temperature,
                alpha=self.alpha,
            )
        if not isinstance(student_logits, Tensor) or student_logits.data.dtype.kind != "f":
            kind = getattr(student_logits, "dtype", type(student_logits).__name__)
            raise DTypeError(f"the student's logits are a tensor of floats, got {kind}")
        wanted = _array(teacher_logits)
        if wanted.dtype.kind not in "fiu":
            raise DTypeError(f"the teacher's logits are numbers, got {wanted.dtype}")
        _check_shapes(student_logits.shape, wanted.shape)
        if labels is None and self.alpha < 1:
            raise SettingError(
                f"alpha={self.alpha} learns from labels as well, and there are none; give labels, "
                "or alpha=1"
            )
        loss = None
        if self.alpha > 0:
            loss = self._soft_part(student_logits, wanted) * (self.alpha * self.temperature**2)
        if self.alpha < 1:
            hard = CrossEntropyLoss()(student_logits, labels) * (1 - self.alpha)
            loss = hard if loss is None else loss + hard
        return loss

    def _soft_part(self, student_logits: Tensor, teacher_logits: Array) -> Tensor:
        """Compute KL(teacher || student) of the softened outputs, the mean over rows.

        What the teacher says is softened in the wider of both dtypes: logits may not fit the
        narrower one, probabilities do.
        """
        dtype = student_logits.dtype
        wide = np.promote_types(dtype, teacher_logits.dtype)
        with np.errstate(invalid="ignore"):  # the error below says more
            softened = teacher_logits.astype(wide) / wide.type(self.temperature)
            wanted_log = run("log_softmax", softened, axis=-1)
        if np.isnan(wanted_log).any():
            raise ModelError(
                "the teacher's logits are NaN, infinite, or impossible for all classes, in some "
                "row: check the teacher and its inputs"
            )
        wanted = np.exp(wanted_log).astype(dtype)
        # what is impossible for the teacher adds nothing: 0 log 0 is 0
        known = np.where(wanted > 0, wanted_log, 0).astype(dtype)
        found_log = LogSoftmax()(student_logits / self.temperature)
        rows = max(1, wanted.size // wanted.shape[-1])
        return (Tensor(wanted) * (Tensor(known) - found_log)).sum() / rows

    # ------------------------------------------------------------ training

    def teach(self, inputs: Any) -> Array:
        """Return the teacher's logits, in evaluation mode and without a graph."""
        if not isinstance(self.teacher, Module):
            with adapter_for(self.teacher).plain_calls(self.teacher):
                return _array(call_model(self.teacher, inputs))
        with keeping_modes(self.teacher), adapter_for(self.teacher).plain_calls(self.teacher):
            self.teacher.eval()
            return _array(self.teacher(inputs))

    def lesson_loss(self, outputs: Tensor, lesson: Any) -> Tensor:
        """Return the loss of a batch whose targets are a :class:`Lesson`, for `Module.fit`."""
        loss: Tensor = self.distillation_loss(outputs, lesson.teacher_logits, lesson)
        return loss

    def fit(
        self,
        loader: Any,
        optimizer: Any = None,
        epochs: int = 1,
        *,
        validation: Any = None,
        **settings: Any,
    ) -> Any:
        """Train the student on batches of (inputs, labels), and give the history of its training.

        The optimizer, of the student's parameters, is Adam unless given. Other settings are those
        of :class:`~tinytorch.core.training.Trainer`, but for the loss. For PyTorch they are those
        of ``distillation_torch.fit``.
        """
        if "loss" in settings:
            raise SettingError("the loss is that of the distillation; leave out loss=")
        if not isinstance(self.student, Module) and not _is_torch_module(self.student):
            raise SettingError(
                f"the student that is trained is a module, got {type(self.student).__name__}"
            )
        check_loader(loader)
        if _is_torch_module(self.student):
            from tinytorch.transforms.distillation.torch import fit

            return fit(self, loader, optimizer, epochs, validation=validation, **settings)
        history: History = self.student.fit(
            _Lessons(loader, self),
            self.lesson_loss,
            optimizer,
            epochs,
            validation=None if validation is None else _Lessons(validation, self),
            **settings,
        )
        return history


class _Lessons:
    """Batches whose labels have the teacher's logits beside them, computed when they are needed."""

    def __init__(self, loader: Any, distillation: KnowledgeDistillation) -> None:
        self._loader = loader
        self._distillation = distillation

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                yield batch  # the trainer says what is wrong with it
                continue
            inputs, labels = batch
            yield inputs, Lesson.of(_array(labels), self._distillation.teach(inputs))


def _check_shapes(student: tuple[int, ...], teacher: tuple[int, ...]) -> None:
    if student == teacher and len(student) >= 1 and student[-1] > 0:
        return
    raise ShapeError(
        f"logits (..., classes) of student and teacher need one shape, got {student} and "
        f"{teacher}; both models must tell the same classes apart"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _array(values: Any) -> Array:
    return values.data if isinstance(values, Tensor) else np.asarray(values)


def _is_torch_module(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _is_torch_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
