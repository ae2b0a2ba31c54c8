import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import torch
from parts import require_part
from small_models import workload

from tinytorch.core.autograd import check_gradients, no_grad
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.core.optimizers import Adam
from tinytorch.core.spatial import BatchNorm2d, Conv2d, Flatten
from tinytorch.core.tensor import Tensor
from tinytorch.core.training import accuracy
from tinytorch.core.transformers import GPT
from tinytorch.errors import DTypeError, ModelError, SettingError, ShapeError
from tinytorch.transforms.distillation import KnowledgeDistillation


def two_models():
    return Linear(4, 3, rng=0), Linear(4, 3, rng=1)


def distillation(temperature=3.0, alpha=0.7):
    return KnowledgeDistillation(*two_models(), temperature=temperature, alpha=alpha)


def by_torch(student, teacher, labels, temperature, alpha):
    """The loss in PyTorch's own words, and the gradient of the student's logits."""
    F, classes = torch.nn.functional, student.shape[-1]
    logits = torch.tensor(student, requires_grad=True)
    rows, wanted = logits.reshape(-1, classes), torch.tensor(teacher).reshape(-1, classes)
    soft = F.kl_div(
        F.log_softmax(rows / temperature, dim=-1),
        F.log_softmax(wanted / temperature, dim=-1),
        reduction="batchmean",
        log_target=True,
    )
    hard = F.cross_entropy(rows, torch.tensor(labels).reshape(-1))
    loss = alpha * temperature**2 * soft + (1 - alpha) * hard
    loss.backward()
    return float(loss.detach()), logits.grad.numpy()


# ---------------------------------------------------------------- the loss


@pytest.mark.parametrize("shape", [(5, 4), (2, 6, 4)])
@pytest.mark.parametrize(("temperature", "alpha"), [(3.0, 0.7), (1.0, 1.0), (0.5, 0.2), (8, 0.0)])
def test_loss_and_gradient_are_those_of_pytorch(shape, temperature, alpha, rng):
    student, teacher = 3 * rng.normal(size=shape), 3 * rng.normal(size=shape)
    labels = rng.integers(0, 4, shape[:-1])
    logits = Tensor(student, requires_grad=True)
    loss = distillation(temperature, alpha).distillation_loss(logits, Tensor(teacher), labels)
    loss.backward()
    expected, slope = by_torch(student, teacher, labels, temperature, alpha)
    assert loss.shape == ()
    assert float(loss.data) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(logits.grad, slope, rtol=1e-8, atol=1e-11)


def test_the_gradient_is_that_of_finite_differences(rng):
    logits = Tensor(rng.normal(size=(3, 4)), requires_grad=True)
    teacher, labels = rng.normal(size=(3, 4)), np.array([0, 3, 1])
    distill = distillation()
    check_gradients(lambda x: distill.distillation_loss(x, teacher, labels), logits)
    assert logits.grad is not None


def test_the_direction_is_from_the_teacher_to_the_student():
    # a student that spreads where the teacher is sure is far away, the other way round less so
    sure, spread = np.array([[9.0, 0.0, 0.0]]), np.array([[0.0, 0.0, 0.0]])
    distill = distillation(temperature=1.0, alpha=1.0)
    p = np.exp(sure) / np.exp(sure).sum()
    expected = float((p * (np.log(p) - np.log(1 / 3))).sum())
    loss = distill.distillation_loss(Tensor(spread), sure, None)
    assert float(loss.data) == pytest.approx(expected)
    other = float(distill.distillation_loss(Tensor(sure), spread, None).data)
    assert other != pytest.approx(expected, rel=0.1)


def test_equal_logits_have_no_loss_and_no_gradient(rng):
    logits = Tensor(rng.normal(size=(3, 4)), requires_grad=True)
    loss = distillation(alpha=1.0).distillation_loss(logits, logits, None)
    loss.backward()
    assert abs(float(loss.data)) < 1e-15
    np.testing.assert_allclose(logits.grad, 0, atol=1e-15)


def test_no_gradient_reaches_the_teacher(rng):
    student = Tensor(rng.normal(size=(3, 4)), requires_grad=True)
    teacher = Tensor(rng.normal(size=(3, 4)), requires_grad=True)
    distillation().distillation_loss(student, teacher, np.array([0, 1, 2])).backward()
    assert student.grad is not None
    assert teacher.grad is None


@given(st.floats(0.2, 20), st.integers(0, 20))
def test_the_soft_part_is_never_negative(temperature, seed):
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(2, 4, 6)) * 10
    loss = distillation(temperature, 1.0).distillation_loss(Tensor(one), other, None)
    assert float(loss.data) > 0


def test_the_gradient_keeps_its_size_at_high_temperatures(rng):
    student, teacher = 0.01 * rng.normal(size=(2, 4, 6))
    sizes = []
    for temperature in (5, 500):
        logits = Tensor(student, requires_grad=True)
        distillation(temperature, 1.0).distillation_loss(logits, teacher, None).backward()
        sizes.append(np.linalg.norm(logits.grad))
    # without T^2 it would be ten thousand times smaller; logits are small, so both are linear
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)


def test_logits_of_any_size_stay_finite():
    student = Tensor(np.array([[1e4, -1e4, 0.0]], np.float32), requires_grad=True)
    teacher = np.array([[-1e4, 0.0, 1e4]], np.float32)
    loss = distillation(1.0).distillation_loss(student, teacher, np.array([2]))
    loss.backward()
    assert np.isfinite(loss.data)
    assert np.isfinite(student.grad).all()


def test_a_teacher_of_a_wider_dtype_is_softened_in_that(rng):
    teacher = np.array([[1e6, 1e6 - 6, -1e6], [0.0, 3.0, 1.0]])  # float16 ends at 65,504
    student = Tensor(rng.normal(size=(2, 3)).astype(np.float16), requires_grad=True)
    loss = distillation(3.0, 1.0).distillation_loss(student, teacher, None)
    exact = distillation(3.0, 1.0).distillation_loss(
        Tensor(student.data.astype(np.float64)), teacher, None
    )
    loss.backward()
    assert loss.dtype == student.grad.dtype == np.float16
    assert float(loss.data) == pytest.approx(float(exact.data), rel=0.01)  # float16 has 3 digits
    assert np.isfinite(student.grad).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_of_a_teacher_that_say_nothing_are_an_error(bad):
    student = Tensor(np.zeros((2, 3)), requires_grad=True)
    with pytest.raises(ModelError, match="the teacher's logits are NaN, infinite, or impossible"):
        distillation().distillation_loss(student, np.array([[0, bad, 1], [0, 0, 0]]), [0, 1])
    with pytest.raises(ModelError, match="impossible for all classes"):
        distillation().distillation_loss(student, np.full((2, 3), -np.inf), [0, 1])
    with pytest.raises(DTypeError, match="the teacher's logits are numbers, got complex128"):
        distillation().distillation_loss(student, np.zeros((2, 3), complex), [0, 1])


def test_what_is_impossible_for_the_teacher_adds_nothing():
    student = Tensor(np.zeros((1, 3)), requires_grad=True)
    teacher = np.array([[0.0, 0.0, -np.inf]])
    loss = distillation(1.0, 1.0).distillation_loss(student, teacher, None)
    assert float(loss.data) == pytest.approx(np.log(3 / 2))


def test_bad_logits_and_labels_say_what_is_wrong(rng):
    distill = distillation()
    with pytest.raises(ShapeError, match=r"one shape, got \(2, 3\) and \(2, 4\); both models must"):
        distill.distillation_loss(Tensor(np.zeros((2, 3))), np.zeros((2, 4)), np.array([0, 1]))
    with pytest.raises(SettingError, match=r"alpha=0\.7 learns from labels as well"):
        distill.distillation_loss(Tensor(np.zeros((2, 3))), np.zeros((2, 3)), None)
    with pytest.raises(DTypeError, match="tensor of floats, got float64"):
        distill.distillation_loss(np.zeros((2, 3)), np.zeros((2, 3)), np.array([0, 1]))
    with pytest.raises(SettingError, match=r"class numbers must be in 0\.\.2"):
        distill.distillation_loss(Tensor(np.zeros((2, 3))), np.zeros((2, 3)), np.array([0, 9]))


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("temperature", [0, -1, float("nan"), float("inf"), "a", None, True])
def test_a_temperature_that_is_none_is_an_error(temperature):
    with pytest.raises(SettingError, match="temperature must be above 0"):
        distillation(temperature)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan"), None, "a", True])
def test_a_weight_outside_of_0_to_1_is_an_error(alpha):
    with pytest.raises(SettingError, match="alpha is the weight of the teacher"):
        distillation(alpha=alpha)


def test_teacher_and_student_are_two_models():
    model = Linear(4, 3, rng=0)
    with pytest.raises(SettingError, match="the teacher is the student"):
        KnowledgeDistillation(model, model)
    with pytest.raises(SettingError, match=r"share '0\.weight'|share 'layers\.0\.weight'"):
        KnowledgeDistillation(Sequential(model), Sequential(model, ReLU()))
    with pytest.raises(SettingError, match="the student is a int, which is no model"):
        KnowledgeDistillation(model, 3)


def test_numbers_of_numpy_are_settings():
    assert distillation(np.float32(2), np.int64(1)).temperature == 2


def test_a_teacher_of_any_kind_around_the_layers_of_the_student_is_refused():
    class Plain:
        def __init__(self, layer):
            self.parts = {"only": [layer]}

        def forward(self, x):
            return self.parts["only"][0](x)

    student = Sequential(Linear(4, 3, rng=0))
    layer = student.layers[0]
    on_the_same_array = Linear(4, 3, rng=0)
    on_the_same_array.weight.data = layer.weight.data
    for teacher in (Plain(layer), lambda x: layer(x), layer.forward, on_the_same_array):
        with pytest.raises(SettingError, match=r"share '.*weight', so training would change"):
            KnowledgeDistillation(teacher, student)
    assert KnowledgeDistillation(Plain(copy.deepcopy(layer)), student)


def test_both_models_are_of_one_framework():
    require_part("torch")
    with pytest.raises(SettingError, match="of one framework, got Linear and Linear"):
        KnowledgeDistillation(torch.nn.Linear(4, 3), Linear(4, 3))


# ---------------------------------------------------------------- training


@pytest.fixture(scope="module")
def digits():
    """Scanned digits of scikit-learn: training and held-out images with labels."""
    found = require_part("sklearn.datasets").load_digits()
    images = (found.data / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], found.target[order]
    return (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


def loader_of(images, labels):
    return DataLoader(TensorDataset(Tensor(images), labels), batch_size=50, shuffle=True, seed=0)


@pytest.fixture(scope="module")
def teacher(digits):
    model = Sequential(Linear(64, 64, rng=0), ReLU(), Dropout(0.2, rng=0), Linear(64, 10, rng=1))
    model.fit(loader_of(*digits[0]), optimizer=Adam(model.parameters(), lr=3e-3), epochs=8)
    model.zero_grad()
    return model


def predictions(model, images):
    with no_grad():
        return model.eval()(Tensor(images)).data


def test_a_small_student_learns_from_its_teacher_which_stays_as_it_is(digits, teacher):
    (images, labels), (held_out, wanted) = digits
    student = Sequential(Linear(64, 12, rng=2), ReLU(), Linear(12, 10, rng=3))
    teacher.train()
    before = {name: array.tobytes() for name, array in teacher.state_dict().items()}
    random_state = teacher.layers[2].rng.bit_generator.state
    says = predictions(copy.deepcopy(teacher), held_out).argmax(axis=1)
    untrained = np.mean(predictions(student, held_out).argmax(axis=1) == says)
    student.train()
    history = KnowledgeDistillation(teacher, student, temperature=4.0, alpha=0.9).fit(
        loader_of(images, labels), Adam(student.parameters(), lr=5e-3), epochs=6
    )
    losses = history.values("loss")
    assert losses[-1] < losses[0] / 3
    outputs = predictions(student, held_out)
    assert untrained < 0.3
    assert np.mean(outputs.argmax(axis=1) == says) > 0.85
    assert accuracy(outputs, wanted) > 0.85
    assert teacher.training
    assert {name: array.tobytes() for name, array in teacher.state_dict().items()} == before
    assert teacher.layers[2].rng.bit_generator.state == random_state  # no dropout was drawn
    assert all(each.grad is None for each in teacher.parameters())


def test_a_student_learns_without_labels_that_mean_anything(digits, teacher):
    (images, labels), (held_out, wanted) = digits
    student = Sequential(Linear(64, 12, rng=2), ReLU(), Linear(12, 10, rng=3))
    nonsense = np.zeros_like(labels)
    KnowledgeDistillation(teacher, student, alpha=1.0).fit(
        loader_of(images, nonsense), Adam(student.parameters(), lr=5e-3), epochs=4
    )
    assert accuracy(predictions(student, held_out), wanted) > 0.8


def test_validation_metrics_and_progress_are_those_of_the_trainer(digits, teacher):
    (images, labels), (held_out, wanted) = digits
    student, seen = Linear(64, 10, rng=0), []
    history = KnowledgeDistillation(teacher, student).fit(
        loader_of(images, labels),
        Adam(student.parameters(), lr=0.02),
        validation=loader_of(held_out, wanted),
        epochs=2,
        metrics={"accuracy": accuracy},
        on_step=lambda done, total, loss: seen.append((done, total)),
    )
    assert len(history.values("validation_loss")) == 2
    assert history.values("validation_accuracy")[-1] > 0.5
    assert seen[-1] == (56, 56)


def test_the_teacher_is_asked_in_evaluation_mode():
    teacher = Sequential(Conv2d(1, 2, 3, rng=0), BatchNorm2d(2), Flatten(), Linear(8, 3, rng=0))
    student = Sequential(Flatten(), Linear(16, 3, rng=1))
    x = Tensor(np.random.default_rng(0).normal(size=(6, 1, 4, 4)).astype(np.float32))
    expected = copy.deepcopy(teacher).eval()(x).data
    distill = KnowledgeDistillation(teacher, student)
    np.testing.assert_array_equal(distill.teach(x), expected)
    np.testing.assert_array_equal(teacher.layers[1].running_mean.data, 0)
    assert teacher.training


def test_language_models_learn_from_each_other():
    teacher, student = workload("gpt").model, GPT(50, 16, 1, 2, max_seq_len=16, rng=1)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, (64, 9))
    loader = DataLoader(TensorDataset(ids[:, :-1], ids[:, 1:]), batch_size=16)
    distill = KnowledgeDistillation(teacher, student, alpha=1.0)
    losses = distill.fit(loader, Adam(student.parameters(), lr=0.01), epochs=4).values("loss")
    assert losses[-1] < losses[0]


def test_a_teacher_may_be_any_model(digits):
    class Rule:
        def forward(self, x):
            return x.data[:, :10] * 5

    student = Linear(64, 10, rng=0)
    (images, labels), _ = digits
    history = KnowledgeDistillation(Rule(), student).fit(loader_of(images[:100], labels[:100]))
    assert np.isfinite(history.values("loss")).all()


def test_training_that_cannot_work_says_why(digits, teacher):
    (images, labels), _ = digits
    student = Linear(64, 10, rng=0)
    distill = KnowledgeDistillation(teacher, student)
    with pytest.raises(SettingError, match="leave out loss="):
        distill.fit(loader_of(images, labels), loss=lambda x, y: x)
    with pytest.raises(SettingError, match="a generator cannot"):
        distill.fit(batch for batch in [])
    with pytest.raises(SettingError, match=r"batches of \(inputs, targets\)"):
        distill.fit([Tensor(images[:5])])
    with pytest.raises(SettingError, match="student that is trained is a module"):
        KnowledgeDistillation(teacher, lambda x: x).fit(loader_of(images, labels))
    with pytest.raises(ShapeError, match=r"got \(50, 3\) and \(50, 10\)"):
        KnowledgeDistillation(teacher, Linear(64, 3, rng=0)).fit(loader_of(images, labels))
    broken = Linear(64, 10, rng=0)
    broken.weight.data[:] = np.nan
    with pytest.raises(ModelError, match="the teacher's logits are NaN"):
        KnowledgeDistillation(broken, student).fit(loader_of(images, labels))
