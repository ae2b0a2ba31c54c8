import copy
import math

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tiny_transformers import tiny
from torch_workloads import bits_of, is_unchanged, seeded

from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DivergenceError, DTypeError, SettingError, ShapeError
from tinytorch.transforms.distillation import KnowledgeDistillation
from tinytorch.transforms.distillation.torch import distillation_loss, fit, teach


def logits(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(shape, generator=generator, dtype=dtype)


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7)])
@pytest.mark.parametrize(("temperature", "alpha"), [(1.0, 1.0), (3.0, 0.7), (0.5, 0.0)])
def test_the_loss_is_that_of_its_definition(shape, temperature, alpha):
    student, teacher = logits(*shape), logits(*shape, seed=1)
    labels = torch.arange(math.prod(shape[:-1])).reshape(shape[:-1]) % 7
    found = distillation_loss(student, teacher, labels, temperature=temperature, alpha=alpha)
    total = 0.0
    for s, t, label in zip(
        student.reshape(-1, 7).numpy(),
        teacher.reshape(-1, 7).numpy(),
        labels.reshape(-1).tolist(),
        strict=True,
    ):
        p, q = (np.exp(each / temperature) / np.exp(each / temperature).sum() for each in (t, s))
        hard = -np.log(np.exp(s) / np.exp(s).sum())[label]
        total += alpha * temperature**2 * (p * np.log(p / q)).sum() + (1 - alpha) * hard
    assert float(found) == pytest.approx(total / math.prod(shape[:-1]), rel=1e-10)


def test_the_loss_is_that_of_our_own_models():
    student, teacher = logits(6, 4), logits(6, 4, seed=1)
    labels = torch.arange(6) % 4
    student.requires_grad_(True)
    theirs = distillation_loss(student, teacher, labels, temperature=2.5, alpha=0.4)
    theirs.backward()
    own = KnowledgeDistillation(Linear(2, 2), Linear(2, 2), temperature=2.5, alpha=0.4)
    x = Tensor(student.detach().numpy(), requires_grad=True)
    ours = own.distillation_loss(x, Tensor(teacher.numpy()), Tensor(labels.numpy()))
    ours.backward()
    assert float(ours.data) == pytest.approx(float(theirs.detach()), rel=1e-10)
    np.testing.assert_allclose(x.grad, student.grad.numpy(), rtol=1e-8, atol=1e-12)


def test_its_gradient_is_right_and_none_goes_to_the_teacher():
    teacher = logits(3, 4, seed=1).requires_grad_(True)
    labels = torch.tensor([0, 3, 1])
    student = logits(3, 4).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: distillation_loss(x, teacher, labels), (student,))
    distillation_loss(student, teacher, labels).backward()
    assert teacher.grad is None


def test_a_student_like_its_teacher_has_nothing_to_learn():
    same = logits(4, 5).requires_grad_(True)
    loss = distillation_loss(same, same.detach(), None, alpha=1.0)
    loss.backward()
    assert abs(float(loss.detach())) < 1e-12
    assert same.grad.abs().max() < 1e-12


def test_large_logits_stay_finite():
    student = torch.tensor([[1e4, -1e4, 0.0]])
    loss = distillation_loss(student, -student, torch.tensor([1]), temperature=1.0)
    assert torch.isfinite(loss)


def test_half_precision_is_compared_in_float32():
    student, teacher = (logits(4, 5, seed=n, dtype=torch.bfloat16) for n in (0, 1))
    found = distillation_loss(student, teacher, torch.zeros(4), alpha=0.5)
    wide = distillation_loss(student.float(), teacher.float(), torch.zeros(4), alpha=0.5)
    assert found.dtype == torch.float32
    assert torch.equal(found, wide)


def test_padding_counts_in_neither_part():
    student, teacher = logits(2, 3, 5), logits(2, 3, 5, seed=1)
    labels = torch.tensor([[1, 2, -100], [4, -100, -100]])
    rows = labels.reshape(-1) != -100
    found = distillation_loss(student, teacher, labels)
    flat = [each.reshape(-1, 5)[rows] for each in (student, teacher)]
    torch.testing.assert_close(found, distillation_loss(*flat, labels.reshape(-1)[rows]))
    with pytest.raises(SettingError, match="nothing to learn from"):
        distillation_loss(student, teacher, torch.full((2, 3), -100))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((logits(2, 3), logits(2, 4), torch.zeros(2)), ShapeError, "the same classes"),
        ((logits(2, 3), logits(2, 3), torch.zeros(5)), ShapeError, "5 labels and 2 rows"),
        ((logits(2, 3), logits(2, 3), None), SettingError, "give labels, or alpha=1"),
        ((torch.zeros(2, 3, dtype=int), logits(2, 3), None), DTypeError, "the student's logits"),
        ((logits(2, 3), [1.0], None), DTypeError, "the teacher's logits"),
    ],
)
def test_what_does_not_fit_is_an_error(arguments, error, message):
    with pytest.raises(error, match=message):
        distillation_loss(*arguments)


# ---------------------------------------------------------------- training


def network(width):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 10))


def digits():
    images, labels = require_part("sklearn.datasets").load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)
    y = torch.tensor(labels)
    return [(x[n : n + 64], y[n : n + 64]) for n in range(0, 1280, 64)], x[1280:], y[1280:]


def test_a_student_learns_from_its_teacher():
    batches, x, y = digits()
    teacher, student = seeded(network, 64), seeded(network, 12)
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(6):
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(teacher(images), labels).backward()
            optimizer.step()
    before = bits_of(teacher)

    def agreement():
        with torch.no_grad():
            return float(
                (teach(student, x).argmax(1) == teach(teacher, x).argmax(1)).float().mean()
            )

    untrained = agreement()
    distillation = KnowledgeDistillation(teacher, student)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    history = distillation.fit(batches, optimizer, epochs=8, validation=batches[:2])
    assert is_unchanged(teacher, before)
    losses = history.values("loss")
    assert losses[-1] < losses[0] / 2
    assert len(history.values("validation_loss")) == 8
    # ten classes: by chance one in ten agrees
    assert untrained < 0.4
    assert agreement() > 0.7
    assert float((teach(student, x).argmax(1) == y).float().mean()) > 0.7
    assert student.training
    assert all(each.grad is None for each in student.parameters())


def test_a_teacher_speaks_in_evaluation_mode_and_keeps_its_own():
    teacher = network(8).train()
    x = torch.ones(2, 64)
    assert torch.equal(teach(teacher, x), teach(teacher, x))
    assert teacher.training
    assert not teach(teacher, x).requires_grad


def test_language_models_learn_from_language_models():
    teacher, student = tiny("gpt2").model, tiny("gpt2", n_layer=1).model
    ids = tiny("gpt2").inputs[0]
    batches = [({"input_ids": ids[:, :-1]}, ids[:, 1:])] * 8
    history = KnowledgeDistillation(teacher, student).fit(batches, epochs=2)
    losses = history.values("loss")
    assert losses[1] < losses[0]


def test_schedules_clipping_and_steps_are_seen():
    student = network(8)
    optimizer = torch.optim.SGD(student.parameters(), lr=1.0)
    steps = []
    KnowledgeDistillation(network(8), student).fit(
        [((torch.ones(2, 64),), torch.tensor([1, 2]))] * 3,
        optimizer,
        2,
        schedule=lambda step: 0.1 / (step + 1),
        clip_norm=1e-9,
        on_step=lambda done, total, loss: steps.append((done, total)),
    )
    assert steps == [(n, 6) for n in range(1, 7)]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 6)


@pytest.mark.parametrize(
    ("loader", "settings", "message"),
    [
        (iter([]), {}, "which a list_iterator cannot"),
        ([], {}, "gives no batch"),
        ([torch.ones(2, 64)], {}, "batches of"),
        ([(torch.ones(2, 64), torch.zeros(2))], {"epochs": -1}, "at least 0, got -1"),
        ([(torch.ones(2, 64), torch.zeros(2))], {"validation": []}, "validation data gives no"),
    ],
)
def test_data_that_cannot_be_learned_from_is_an_error(loader, settings, message):
    distillation = KnowledgeDistillation(network(8), network(8))
    with pytest.raises(SettingError, match=message):
        distillation.fit(loader, **settings)


def test_models_that_cannot_be_trained_are_errors():
    batches = [(torch.ones(2, 64), torch.tensor([1, 2]))]
    student = network(8)
    teacher = copy.copy(student)
    with pytest.raises(SettingError, match=r"share '0\.weight'"):
        KnowledgeDistillation(teacher, student)
    frozen = network(8).requires_grad_(False)
    with pytest.raises(SettingError, match="nothing to train"):
        fit(KnowledgeDistillation(network(8), frozen), batches)
    broken = [(torch.full((2, 64), math.nan), torch.tensor([1, 2]))]
    with pytest.raises(DivergenceError, match="the loss is nan at step 0"):
        fit(KnowledgeDistillation(network(8), network(8)), broken)
