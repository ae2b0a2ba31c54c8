"""Training: the loop, schedules, clipping, metrics, early stopping, and real digits."""

import math

import numpy as np
import pytest
from parts import require_part

from tinytorch.core import training
from tinytorch.core.autograd import is_grad_enabled
from tinytorch.core.checkpoints import load_checkpoint, save_checkpoint
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.core.losses import MSELoss
from tinytorch.core.optimizers import SGD, Adam
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.core.training import (
    ConstantSchedule,
    CosineSchedule,
    EarlyStopping,
    Epoch,
    History,
    StepSchedule,
    Trainer,
    accuracy,
    clip_grad_norm,
)
from tinytorch.errors import DivergenceError, SettingError, ShapeError


def easy_problem(count=120, seed=0):
    """Give points of the plane with the number of their quadrant."""
    inputs = np.random.default_rng(seed).standard_normal((count, 2)).astype(np.float32)
    return TensorDataset(inputs, 2 * (inputs[:, 0] > 0) + (inputs[:, 1] > 0))


def small_network(seed=0, dropout=0.0):
    rng = np.random.default_rng(seed)
    return Sequential(
        Linear(2, 16, rng=rng), ReLU(), Dropout(dropout, rng=rng), Linear(16, 4, rng=rng)
    )


def fitted(epochs=5, **settings):
    model = small_network(dropout=0.2)
    loader = DataLoader(easy_problem(), batch_size=16, shuffle=True, seed=1)
    trainer = Trainer(model, optimizer=Adam(model.parameters(), lr=0.01), **settings)
    return trainer, trainer.fit(loader, epochs=epochs)


# ---------------------------------------------------------------- the loop


def test_the_loss_falls_and_the_problem_is_learned():
    model = small_network()
    trainer = Trainer(
        model, optimizer=Adam(model.parameters(), lr=0.02), metrics={"hits": accuracy}
    )
    history = trainer.fit(
        DataLoader(easy_problem(), 16, shuffle=True, seed=0),
        epochs=40,
        validation=DataLoader(easy_problem(200, seed=1), 50),
    )
    losses = history.values("loss")
    assert losses[-1] < 0.2 * losses[0]
    assert history.values("validation_hits")[-1] > 0.9
    assert [epoch.number for epoch in history.epochs] == list(range(40))
    assert not history.stopped_early
    assert history.best_epoch is None


def test_two_runs_with_one_seed_give_the_same_weights_bit_for_bit():
    first, second = (fitted()[0].model for _ in range(2))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert one.data.tobytes() == other.data.tobytes()


def test_the_mean_loss_weighs_batches_by_their_size():
    inputs = np.array([[0.0], [0.0], [3.0]], np.float32)
    model = Linear(1, 1, rng=0)
    model.weight.data[:], model.bias.data[:] = 1, 0
    trainer = Trainer(model, loss=MSELoss(), optimizer=SGD(model.parameters(), lr=0.0))
    loader = DataLoader(TensorDataset(inputs, np.zeros((3, 1), np.float32)), batch_size=2)
    assert trainer.fit(loader).values("loss") == [3.0]
    assert trainer.evaluate(loader) == {"loss": 3.0}


def test_metrics_are_means_over_examples_and_validation_values_have_their_name():
    model = small_network()
    metrics = {"hits": accuracy, "largest": lambda outputs, targets: float(outputs.max())}
    trainer = Trainer(model, metrics=metrics)
    data = easy_problem(50)
    history = trainer.fit(DataLoader(data, 16), validation=DataLoader(data, 16))
    assert set(history.epochs[0].values) == {
        "loss",
        "validation_loss",
        "validation_hits",
        "validation_largest",
    }
    outputs = model(data.tensors[0]).data
    wanted = accuracy(outputs, data.tensors[1].data)
    assert history.values("validation_hits") == [pytest.approx(wanted)]


def test_evaluation_uses_no_dropout_builds_no_graph_and_keeps_every_mode():
    model = small_network(dropout=0.9)
    model.layers[0].eval()
    seen = []
    model.register_forward_hook(
        lambda module, inputs, output: seen.append((module.training, output.creator))
    )
    trainer, loader = Trainer(model), DataLoader(easy_problem(), 16)
    assert trainer.evaluate(loader) == trainer.evaluate(loader)
    assert set(seen) == {(False, None)}
    assert [module.training for module in model.modules()] == [True, False, True, True, True]
    assert is_grad_enabled()


def test_evaluating_nothing_gives_no_numbers():
    values = Trainer(small_network(), metrics={"hits": accuracy}).evaluate([])
    assert set(values) == {"loss", "hits"}
    assert all(math.isnan(value) for value in values.values())


def test_training_happens_in_training_mode_and_ends_in_the_mode_of_before():
    modes = []
    for before in (True, False):
        model = small_network().train(before)
        model.register_forward_hook(lambda module, *_: modes.append(module.training))
        Trainer(model).fit(DataLoader(easy_problem(), 60), epochs=2)
        assert model.training is before
    assert modes == [True] * 8


def test_an_exception_restores_the_mode():
    def fail(done, total, loss):
        raise RuntimeError("stop here")

    for before in (True, False):
        model = small_network().train(before)
        with pytest.raises(RuntimeError, match="stop here"):
            Trainer(model, on_step=fail).fit(DataLoader(easy_problem(), 60))
        assert [module.training for module in model.modules()] == [before] * 5


def test_an_exception_in_evaluation_restores_the_mode():
    model = small_network()
    with pytest.raises(SettingError, match="class numbers must be in"):
        Trainer(model).evaluate([(Tensor(np.zeros((1, 2), np.float32)), Tensor([7.0]))])
    assert model.training
    assert is_grad_enabled()


def test_on_step_hears_every_step():
    heard = []
    fitted(epochs=2, on_step=lambda done, total, loss: heard.append((done, total, loss)))
    assert [done for done, _, _ in heard] == list(range(1, 17))
    assert {total for _, total, _ in heard} == {16}
    assert all(math.isfinite(loss) for _, _, loss in heard)


def test_the_progress_line_hears_of_every_step_and_is_closed(monkeypatch):
    lines = []

    class Line:
        def __init__(self, total):
            self.total, self.texts, self.closed = total, [], False
            lines.append(self)

        def advance(self, text):
            self.texts.append(text)

        def close(self):
            self.closed = True

    monkeypatch.setattr(training, "ProgressLine", Line)
    fitted(epochs=2)
    assert lines[0].total == len(lines[0].texts) == 16
    assert lines[0].texts[-1].startswith("epoch 2/2  loss ")
    assert lines[0].closed


def test_training_without_a_terminal_writes_nothing(capsys):
    fitted(epochs=1)
    assert capsys.readouterr() == ("", "")


def test_the_defaults_are_cross_entropy_and_adam():
    trainer = Trainer(small_network())
    assert repr(trainer.loss) == "CrossEntropyLoss(reduction='mean')"
    assert type(trainer.optimizer) is Adam


def test_no_epochs_change_nothing():
    model = small_network()
    before = model.layers[0].weight.data.copy()
    assert Trainer(model).fit(DataLoader(easy_problem()), epochs=0) == History()
    np.testing.assert_array_equal(model.layers[0].weight.data, before)


def test_a_negative_number_of_epochs_is_an_error():
    with pytest.raises(SettingError, match="epochs must be at least 0, got -1"):
        Trainer(small_network()).fit([], epochs=-1)


def test_an_error_in_the_model_names_the_layer():
    model = Sequential(Linear(2, 3), Linear(4, 4))
    with pytest.raises(ShapeError, match=r"^layers\.1: Linear\(4, 4, bias=True\) needs"):
        Trainer(model).fit(DataLoader(easy_problem(), 8))


# ---------------------------------------------------------------- schedules


def test_the_values_of_a_schedule_are_used_and_go_on_over_calls():
    used, model = [], small_network()

    class Watching(SGD):
        def step(self):
            used.append(self.lr)
            super().step()

    optimizer = Watching(model.parameters(), lr=9.0)
    trainer = Trainer(model, optimizer=optimizer, schedule=lambda step: 0.1 / (step + 1))
    loader = DataLoader(easy_problem(), 40)
    trainer.fit(loader, epochs=2)
    trainer.fit(loader)
    assert used == [0.1 / (step + 1) for step in range(9)]


def test_a_constant_schedule_is_constant():
    assert {ConstantSchedule(0.3)(step) for step in range(100)} == {0.3}


@pytest.mark.parametrize("step", [0, 1, 9, 10, 11, 25, 1000])
def test_a_step_schedule_multiplies_every_so_often(step):
    assert StepSchedule(0.4, every=10, factor=0.5)(step) == 0.4 * 0.5 ** (step // 10)


def test_schedules_are_those_of_pytorch():
    torch = require_part("torch")
    parameter = torch.nn.Parameter(torch.ones(1))
    for ours, kind, settings in (
        (StepSchedule(0.4, 3, 0.5), torch.optim.lr_scheduler.StepLR, (3, 0.5)),
        (CosineSchedule(0.4, 20), torch.optim.lr_scheduler.CosineAnnealingLR, (20,)),
        (CosineSchedule(0.4, 20, 0, 0.1), torch.optim.lr_scheduler.CosineAnnealingLR, (20, 0.1)),
    ):
        optimizer = torch.optim.SGD([parameter], lr=0.4)
        schedule = kind(optimizer, *settings)
        for step in range(20):
            # PyTorch multiplies from step to step: one rounding of float64 in each.
            assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
            optimizer.step()
            schedule.step()


def test_a_cosine_schedule_rises_then_falls_to_its_floor():
    schedule = CosineSchedule(lr=1.0, steps=110, warmup=10, floor=0.2)
    assert [schedule(step) for step in range(10)] == [(step + 1) / 10 for step in range(10)]
    for step in range(10, 110):
        wanted = 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * (step - 10) / 100))
        assert schedule(step) == pytest.approx(wanted, rel=1e-15)
    assert schedule(10) == 1.0
    assert schedule(60) == pytest.approx(0.6)
    assert schedule(110) == schedule(10_000) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepSchedule(0.1, every=0), "every must be at least 1, got 0"),
        (lambda: CosineSchedule(0.1, steps=0), "steps must be at least 1, got 0"),
        (lambda: CosineSchedule(0.1, steps=5, warmup=5), r"warmup must be in 0\.\.4, got 5"),
        (lambda: CosineSchedule(0.1, steps=5, warmup=-1), r"warmup must be in 0\.\.4, got -1"),
        (lambda: EarlyStopping(patience=0), "patience must be at least 1, got 0"),
    ],
)
def test_a_bad_setting_is_an_error_that_shows_it(make, message):
    with pytest.raises(SettingError, match=message):
        make()


# ---------------------------------------------------------------- clipping


@pytest.mark.parametrize("max_norm", [0.5, 3.0, 100.0])
def test_clipping_is_that_of_pytorch(max_norm, rng):
    torch = require_part("torch")
    gradients = [rng.standard_normal(shape).astype(np.float32) for shape in [(4, 5), (7,), ()]]
    ours = [Parameter(np.zeros_like(gradient)) for gradient in [*gradients, gradients[0]]]
    theirs = [torch.nn.Parameter(torch.zeros(gradient.shape)) for gradient in gradients]
    for mine, other, gradient in zip(ours, theirs, gradients, strict=False):
        mine.grad, other.grad = gradient.copy(), torch.tensor(gradient)
    norm = clip_grad_norm(ours, max_norm)  # the last one has no gradient
    wanted = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    # A root of a sum of 28 squares in float32.
    assert norm == pytest.approx(float(wanted), rel=1e-6)
    for mine, other in zip(ours, theirs, strict=False):
        np.testing.assert_allclose(mine.grad, other.grad.numpy(), rtol=1e-5)
    assert ours[-1].grad is None


def test_clipping_reaches_scalar_parameters():
    scale = Parameter(np.float32(1.0))
    (scale * 10.0).backward()
    assert clip_grad_norm([scale], 1.0) == pytest.approx(10.0)
    assert float(scale.grad) == pytest.approx(1.0, rel=1e-5)


def test_the_trainer_clips_before_the_step():
    model = Linear(1, 1, rng=0)
    before = [parameter.data.copy() for parameter in model.parameters()]
    trainer = Trainer(
        model, loss=MSELoss(), optimizer=SGD(model.parameters(), lr=1.0), clip_norm=0.1
    )
    trainer.train_step(Tensor([[100.0]]), Tensor([[-100.0]]))
    moves = [p.data - old for p, old in zip(model.parameters(), before, strict=True)]
    # Rounding of weights of order one in float32.
    assert math.sqrt(sum(float((move**2).sum()) for move in moves)) == pytest.approx(0.1, rel=1e-4)


def test_a_gradient_without_a_norm_is_reported():
    parameter = Parameter(np.zeros(2))
    parameter.grad = np.array([np.nan, 1.0])
    assert math.isnan(clip_grad_norm([parameter], 1.0))


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("nan")])
def test_a_norm_to_clip_to_is_above_zero(max_norm):
    with pytest.raises(SettingError, match=f"max_norm must be above 0, got {max_norm}"):
        clip_grad_norm([], max_norm)


# ---------------------------------------------------------------- accuracy


def test_accuracy_is_the_share_of_hits():
    outputs = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    assert accuracy(outputs, np.array([1, 0, 0, 1])) == 0.5
    assert accuracy(outputs.reshape(2, 2, 2), np.array([[1, 0], [1, 0]])) == 1.0
    assert math.isnan(accuracy(np.zeros((0, 2)), np.zeros(0)))


def test_accuracy_of_another_shape_is_an_error_that_shows_the_wanted_one():
    message = r"accuracy of outputs \(3, 2\) needs targets of shape \(3,\), got \(3, 1\)"
    with pytest.raises(ShapeError, match=message):
        accuracy(np.zeros((3, 2)), np.zeros((3, 1)))


# ---------------------------------------------------------------- early stopping


def scripted_fit(values, monkeypatch, **rule):
    """Train while validation gives these values; weights count the epochs from one."""
    model = Linear(1, 1, rng=0)
    trainer = Trainer(model, loss=MSELoss(), early_stopping=EarlyStopping(**rule))
    script = iter(values)

    def run_epoch(*_):
        model.weight.data = model.weight.data + 1
        return 0.0

    model.weight.data = np.zeros_like(model.weight.data)
    monkeypatch.setattr(trainer, "_run_epoch", run_epoch)
    monkeypatch.setattr(trainer, "evaluate", lambda _: {"loss": next(script), "hits": 0.0})
    history = trainer.fit([None], epochs=len(values), validation=[])
    return history, float(model.weight.data[0, 0])


@pytest.mark.parametrize(
    ("values", "rule", "epochs", "best"),
    [
        ([3, 2, 1, 2, 3, 4, 5], {"patience": 2}, 5, 2),
        ([3, 2, 4, 1, 4, 4, 4, 4], {"patience": 3}, 7, 3),
        ([3, 2, 1], {"patience": 2}, 3, 2),
        ([1, 2, 3], {"patience": 5}, 3, 0),
        ([3.0, 2.9, 2.8, 2.7], {"patience": 2, "min_delta": 0.5}, 3, 0),
        ([1, 2, 3, 2, 1], {"patience": 2, "higher_is_better": True}, 5, 2),
        ([math.nan, 2, math.nan, math.nan, 1], {"patience": 2}, 4, 1),
        ([1, 1, 1], {"patience": 1}, 2, 0),
    ],
)
def test_early_stopping_gives_back_the_weights_of_the_best_epoch(
    values, rule, epochs, best, monkeypatch
):
    history, weight = scripted_fit(values, monkeypatch, **rule)
    assert len(history.epochs) == epochs
    assert history.best_epoch == best
    assert history.stopped_early is (epochs - 1 - best >= rule["patience"])
    assert weight == best + 1


def test_values_that_are_never_numbers_stop_and_leave_the_weights(monkeypatch):
    history, weight = scripted_fit([math.nan] * 9, monkeypatch, patience=2)
    assert history.stopped_early
    assert history.best_epoch is None
    assert weight == 2


def test_early_stopping_in_real_training_restores_what_validated_best():
    trainer, _ = fitted(epochs=0)
    trainer.early_stopping = EarlyStopping(patience=2)
    trainer.schedule = ConstantSchedule(0.5)  # far too fast, so that it gets worse
    validation = DataLoader(easy_problem(60, seed=5), 60)
    loader = DataLoader(easy_problem(), 16, shuffle=True, seed=1)
    history = trainer.fit(loader, epochs=30, validation=validation)
    assert history.stopped_early
    losses = history.values("validation_loss")
    assert history.best_epoch == int(np.argmin(losses))
    assert trainer.evaluate(validation)["loss"] == min(losses)


def test_watching_a_value_that_does_not_exist_is_an_error_that_names_the_known_ones():
    trainer = Trainer(small_network(), early_stopping=EarlyStopping(metric="validation_loss"))
    message = (
        "early stopping watches 'validation_loss', but an epoch has loss; pass validation data"
    )
    with pytest.raises(SettingError, match=message):
        trainer.fit(DataLoader(easy_problem(), 16))


def test_the_training_loss_can_be_watched_too():
    _, history = fitted(epochs=3, early_stopping=EarlyStopping(metric="loss"))
    assert history.best_epoch == 2


def test_history_gives_one_value_of_every_epoch():
    history = History((Epoch(0, {"loss": 2.0}), Epoch(1, {"loss": 1.0})))
    assert history.values("loss") == [2.0, 1.0]


def test_a_resumed_run_with_a_schedule_ends_where_a_straight_run_ends(tmp_path):
    data = TensorDataset(np.eye(8, dtype=np.float32), np.arange(8))
    schedule = CosineSchedule(0.1, 16, warmup=3)

    def start():
        model = Linear(8, 8, rng=0)
        loader = DataLoader(data, batch_size=2, shuffle=True, seed=0)
        return model, loader, Adam(model.parameters())

    straight, loader, optimizer = start()
    Trainer(straight, optimizer=optimizer, schedule=schedule).fit(loader, epochs=4)
    first, loader, optimizer = start()
    Trainer(first, optimizer=optimizer, schedule=schedule).fit(loader, epochs=2)
    save_checkpoint(tmp_path / "half.safetensors", first, optimizer, {"epoch": loader.epoch})
    second, loader, optimizer = start()
    metadata = load_checkpoint(tmp_path / "half.safetensors", second, optimizer)
    loader.set_epoch(metadata["epoch"])
    Trainer(second, optimizer=optimizer, schedule=schedule).fit(loader, epochs=2)
    np.testing.assert_array_equal(second.weight.data, straight.weight.data)


def test_a_loss_that_is_not_finite_stops_before_any_weight_changes():
    model = Linear(2, 2, rng=0)
    before = model.weight.data.copy()
    data = TensorDataset(np.full((4, 2), np.nan, np.float32), np.zeros(4, int))
    with pytest.raises(DivergenceError, match=r"the loss is nan at step 0 .*check the inputs"):
        model.fit(DataLoader(data, batch_size=2))
    np.testing.assert_array_equal(model.weight.data, before)


def test_training_on_nothing_is_an_error():
    data = TensorDataset(np.zeros((3, 2), np.float32), np.zeros(3, int))
    with pytest.raises(SettingError, match="no batch"):
        Linear(2, 2).fit(DataLoader(data, batch_size=4, drop_last=True))


def test_an_optimizer_of_another_model_is_an_error():
    with pytest.raises(SettingError, match="no parameter of the optimizer belongs to the model"):
        Trainer(Linear(2, 2), optimizer=Adam(Linear(2, 2).parameters()))


@pytest.mark.parametrize("loss", [MSELoss, "mse"])
def test_a_loss_is_a_function(loss):
    with pytest.raises(SettingError, match=r"loss must be a function such as MSELoss\(\)"):
        Trainer(Linear(2, 2), loss=loss)


def test_batches_without_targets_are_an_error():
    with pytest.raises(SettingError, match=r"needs batches of \(inputs, targets\)"):
        Linear(2, 2).fit([np.zeros((4, 2))])


def test_gradients_too_large_for_float32_are_clipped_not_lost():
    parameter = Tensor(np.zeros(2, np.float32), requires_grad=True)
    parameter.grad = np.full(2, 1e20, np.float32)
    assert clip_grad_norm([parameter], 1.0) == pytest.approx(2**0.5 * 1e20, rel=1e-6)
    np.testing.assert_allclose(parameter.grad, [0.5**0.5] * 2, rtol=1e-5)
