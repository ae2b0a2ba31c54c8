from dataclasses import replace

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.core.losses import MSELoss
from tinytorch.core.optimizers import SGD, Adam, AdamW
from tinytorch.core.tensor import Tensor
from tinytorch.core.training import EarlyStopping
from tinytorch.errors import DivergenceError, SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.low_rank import LowRank
from tinytorch.transforms.prune import Masks, Prune
from tinytorch.transforms.support.training import CubicSchedule, fine_tune


def spirals(seed):
    """Three classes that wind around each other."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 600)
    radius = rng.uniform(0.1, 1, 600)
    angle = 4 * radius + labels * 2 * np.pi / 3
    points = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1)
    wide = np.concatenate([points, points[:, :1] * points[:, 1:], points**2, radius[:, None]], 1)
    return wide.astype(np.float32), labels


@pytest.fixture(scope="module")
def trained():
    x, y = spirals(0)
    model = Sequential(Linear(6, 32, rng=0), ReLU(), Dropout(0.0), Linear(32, 3, rng=1))
    loader = DataLoader(TensorDataset(Tensor(x), y), batch_size=50, shuffle=True, seed=0)
    model.fit(loader, optimizer=Adam(model.parameters(), lr=0.02), epochs=20)
    model.eval()
    model.layers[2].training = True  # a mode that is not that of the others
    batches = tuple((Tensor(part),) for part in np.split(x[:120], 4))
    return Workload("spirals", model, (Tensor(x[:1]),), calibration=batches), loader


def accuracy(model, seed=1):
    x, y = spirals(seed)
    return np.mean(model(Tensor(x)).data.argmax(axis=1) == y)


def zeros_of(model):
    return {name: int((~kept).sum()) for name, kept in Masks.of(model).kept.items()}


def planned_zeros(transform, work):
    return {s.settings["weight"]: s.settings["zeros"] for s in transform.plan(work).steps}


def after_ten_steps(step, target):
    return target if step >= 10 else 0.0


@pytest.mark.parametrize("score", ["magnitude", "activation"])
@pytest.mark.parametrize("scope", ["model", "layer"])
@pytest.mark.parametrize("schedule", [None, CubicSchedule(25, every=3), after_ten_steps])
def test_the_plan_is_met_and_the_model_stays_as_it_was(trained, schedule, scope, score):
    work, loader = trained
    before = {name: array.tobytes() for name, array in work.model.state_dict().items()}
    transform = Prune(0.85, scope=scope, score=score)
    tuned = fine_tune(work, loader, transform, epochs=3, schedule=schedule)
    assert zeros_of(tuned) == planned_zeros(transform, work)
    assert {name: array.tobytes() for name, array in work.model.state_dict().items()} == before
    assert [module.training for module in tuned.modules()] == [
        module.training for module in work.model.modules()
    ]
    assert all(each.grad is None for each in tuned.parameters())


def test_training_wins_back_what_pruning_lost(trained):
    work, loader = trained
    transform = Prune(0.8)
    plain = transform.apply(work, transform.plan(work))
    tuned = fine_tune(work, loader, transform, epochs=6)
    assert accuracy(work.model) > 0.95
    assert accuracy(plain) < 0.8
    assert accuracy(tuned) > 0.9


def test_gradual_pruning_starts_dense(trained):
    work, loader = trained
    seen = []

    def make(parameters):
        optimizer = SGD(parameters, lr=0.01)
        step = optimizer.step

        def counted():
            step()
            seen.append(sum(int((each.data == 0).sum()) for each in parameters if each.ndim == 2))

        optimizer.step = counted
        return optimizer

    # while the optimizer moves, the parameters are free copies; none of them is zero
    tuned = fine_tune(
        work, loader, Prune(0.5), epochs=3, schedule=CubicSchedule(30), optimizer=make
    )
    assert len(seen) == 36
    assert seen[0] == 0
    assert sum(zeros_of(tuned).values()) == round(0.5 * (6 * 32 + 32 * 3))


def test_what_was_pruned_before_stays_pruned(trained):
    work, loader = trained
    first = Prune(0.5, keep=("layers.3",))
    pruned = replace(work, model=first.apply(work, first.plan(work)))
    low_rank = fine_tune(pruned, loader, LowRank(keep=("*",)), epochs=1)
    kept = Masks.of(pruned.model).kept["layers.0.weight"]
    assert not low_rank.layers[0].weight.data[~kept].any()
    # gradually, in another layer
    second = Prune(0.6, keep=("layers.0",))
    tuned = fine_tune(pruned, loader, second, epochs=2, schedule=CubicSchedule(12))
    assert not tuned.layers[0].weight.data[~kept].any()
    assert (tuned.layers[3].weight.data == 0).sum() == round(0.6 * 96)


def test_a_weight_that_is_zero_throughout_learns(trained):
    work, loader = trained
    model = Sequential(Linear(6, 8, rng=0), ReLU(), Linear(8, 3, rng=1))
    model.layers[2].weight.data[...] = 0
    fresh = replace(work, model=model)
    tuned = fine_tune(fresh, loader, Prune(0.5, keep=("layers.2",)), epochs=1)
    assert np.count_nonzero(tuned.layers[2].weight.data) > 12  # dead inputs teach nothing


def test_another_transform_is_applied_and_then_trained(trained):
    work, loader = trained
    transform = LowRank(0.5)
    plan = transform.plan(work)
    plain = transform.apply(work, plan)
    tuned = fine_tune(work, loader, transform, epochs=3)
    assert len(plan.steps) > 0
    assert [array.shape for array in tuned.state_dict().values()] == [
        array.shape for array in plain.state_dict().values()
    ]
    assert accuracy(tuned) >= accuracy(plain)


def test_a_teacher_is_learned_from_and_stays_as_it_is(trained):
    work, _ = trained
    before = {name: array.tobytes() for name, array in work.model.state_dict().items()}
    # labels that say nothing: whatever is learned comes from the teacher
    x, y = spirals(0)
    shuffled = np.random.default_rng(0).permutation(y)
    useless = DataLoader(TensorDataset(Tensor(x), shuffled), batch_size=50, shuffle=True, seed=0)
    transform = Prune(0.85)
    taught = fine_tune(work, useless, transform, epochs=20, teacher=work.model)
    untaught = fine_tune(work, useless, transform, epochs=20)
    assert accuracy(taught) > accuracy(untaught) + 0.1
    assert zeros_of(taught) == planned_zeros(transform, work)
    assert {name: array.tobytes() for name, array in work.model.state_dict().items()} == before


def test_settings_reach_the_trainer(trained):
    work, loader = trained
    seen = []
    fine_tune(
        work, loader, Prune(0.5), epochs=2, loss=None,
        optimizer=lambda each: AdamW(each, lr=1.0), lr_schedule=lambda step: 1e-3,
        on_step=lambda done, total, loss: seen.append((done, total)), clip_norm=1.0,
    )  # fmt: skip
    assert seen == [(number, 24) for number in range(1, 25)]


def test_only_the_parameters_that_the_optimizer_has_move(trained):
    work, loader = trained
    tuned = fine_tune(work, loader, Prune(0.5), optimizer=lambda each: SGD(each[2:], lr=0.1))
    pruned = Prune(0.5).apply(work, Prune(0.5).plan(work))
    np.testing.assert_array_equal(tuned.layers[0].weight.data, pruned.layers[0].weight.data)
    assert (tuned.layers[3].weight.data != pruned.layers[3].weight.data).any()


def test_no_epochs_give_the_pruned_model(trained):
    work, loader = trained
    tuned = fine_tune(work, loader, Prune(0.5), epochs=0)
    pruned = Prune(0.5).apply(work, Prune(0.5).plan(work))
    for name, array in tuned.state_dict().items():
        np.testing.assert_array_equal(array, pruned.state_dict()[name])


def test_a_loss_that_diverges_says_so(trained):
    work, loader = trained
    with (
        np.errstate(all="ignore"),
        pytest.raises(DivergenceError, match="lower the learning rate"),
    ):
        fine_tune(
            work, loader, Prune(0.5), epochs=30, loss=_exploding,
            optimizer=lambda each: SGD(each, lr=1e6),
        )  # fmt: skip


def _exploding(outputs, targets):
    wanted = np.zeros(outputs.shape, np.float32)
    return MSELoss()(outputs, Tensor(wanted))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loader": (each for each in ())}, "goes over the data several times"),
        ({"loader": []}, "training needs batches, got 0"),
        ({"epochs": -1}, "and epochs, got -1"),
        ({"transform": Prune}, "needs a transform such as"),
        ({"transform": 0.9}, "needs a transform such as"),
        ({"optimizer": Adam([Tensor([1.0], requires_grad=True)])}, "function of the parameters"),
        ({"schedule": 0.5}, "a schedule is a function"),
        ({"schedule": CubicSchedule(1000)}, "after the 12 steps of this training, not at 0.5"),
        ({"transform": LowRank(), "schedule": CubicSchedule(5)}, "a schedule is for Prune"),
        ({"schedule": CubicSchedule(5), "early_stopping": EarlyStopping()}, "early stopping could"),
        ({"teacher": Linear(6, 3), "loss": MSELoss()}, "a teacher brings its own loss"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_starts(trained, change, message):
    work, loader = trained
    arguments = {"loader": loader, "transform": Prune(0.5), **change}
    with pytest.raises(SettingError, match=message):
        fine_tune(work, arguments.pop("loader"), arguments.pop("transform"), **arguments)


@pytest.mark.parametrize("name", ["lr", "learning_rate"])
def test_a_learning_rate_is_told_where_it_belongs(trained, name):
    work, loader = trained
    message = rf"{name} is a setting of the optimizer: .* lr=0\.001\), or lr_schedule"
    with pytest.raises(SettingError, match=message):
        fine_tune(work, loader, Prune(0.5), **{name: 1e-3})


def test_a_setting_that_no_training_has_is_refused_with_those_that_there_are(trained):
    work, loader = trained
    with pytest.raises(SettingError, match=r"unknown setting 'momentum' .* clip_norm, early_sto"):
        fine_tune(work, loader, Prune(0.5), momentum=0.9)
    torch = require_part("torch")
    of_torch = Workload("torch", torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(SettingError, match=r"'metrics' .*; there are clip_norm, on_step"):
        fine_tune(of_torch, loader, Prune(0.5), metrics={})


def test_a_workload_with_a_module_is_needed(trained):
    work, loader = trained
    with pytest.raises(SettingError, match="for a Workload, got Sequential"):
        fine_tune(work.model, loader, Prune(0.5))
    plain = Workload("function", lambda x: x, (Tensor([1.0]),))
    with pytest.raises(SettingError, match="trains modules of tinytorch and PyTorch"):
        fine_tune(plain, loader, Prune(0.5))


def test_digits_written_by_people_survive_with_a_seventh_of_the_weights():
    """85% of the weights gone cost scikit-learn's digits a few examples at most."""
    digits = require_part("sklearn.datasets").load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1200], order[1200:]
    loader = DataLoader(TensorDataset(Tensor(x[train]), y[train]), 32, shuffle=True, seed=0)
    model = Sequential(
        Linear(64, 128, rng=0), ReLU(), Linear(128, 64, rng=1), ReLU(), Linear(64, 10, rng=2)
    )
    model.fit(loader, epochs=15)
    work = Workload("digits", model.eval(), (Tensor(x[:1]),))
    transform = Prune(0.85)
    tuned = fine_tune(work, loader, transform, epochs=15, schedule=CubicSchedule(400))

    def right(each):
        return each(Tensor(x[test])).data.argmax(axis=1) == y[test]

    kept, dense = right(tuned), right(model)
    assert dense.mean() > 0.95
    # two standard errors of the difference of 597 pairs that differ in about 3%: 1.5%
    assert kept.mean() >= dense.mean() - 0.015
    assert Masks.of(tuned).zeros == round(0.85 * (64 * 128 + 128 * 64 + 640))


# ---------------------------------------------------------------- frozen weights


def after_ten_steps(step, target):
    return target if step >= 10 else 0.0


@pytest.mark.parametrize("schedule", [None, CubicSchedule(5, every=1)])
def test_frozen_weights_are_pruned_and_otherwise_stay(trained, schedule):
    work, loader = trained
    twin = adapter_for(work.model).clone(work.model)
    frozen = twin.layers[0].weight
    frozen.requires_grad = False
    work = replace(work, model=twin)
    transform = Prune(0.5)
    model = fine_tune(work, loader, transform, schedule=schedule)
    assert zeros_of(model) == planned_zeros(transform, work)
    found = model.layers[0].weight.data
    np.testing.assert_array_equal(found[found != 0], frozen.data[found != 0])
    assert not np.array_equal(model.layers[3].bias.data, twin.layers[3].bias.data)


@pytest.mark.parametrize("epochs", [1.5, "2", True, None])
def test_epochs_are_whole(trained, epochs):
    with pytest.raises(SettingError, match="epochs is a number of passes over the data, got"):
        fine_tune(*trained, Prune(0.5), epochs=epochs)
