import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytorch.core.checkpoints import load_checkpoint, save_checkpoint
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.losses import MSELoss
from tinytorch.core.optimizers import SGD, Adam, AdamW
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.core.training import CosineSchedule, Trainer
from tinytorch.errors import CheckpointError, SettingError, ShapeError
from tinytorch.transforms.support.training import ConstrainedOptimizer, keeping_zeros

OPTIMIZERS = {
    "sgd": lambda p, decay: SGD(p, lr=0.05, weight_decay=decay),
    "momentum": lambda p, decay: SGD(p, lr=0.05, momentum=0.9, weight_decay=decay),
    "adam": lambda p, decay: Adam(p, lr=0.02, weight_decay=decay),
    "adamw": lambda p, decay: AdamW(p, lr=0.02, weight_decay=decay),
}


def small_model(seed=0):
    return Sequential(Linear(6, 8, rng=seed), ReLU(), Linear(8, 2, rng=seed + 1))


def batch(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((40, 6)).astype(np.float32)
    return Tensor(x), Tensor(np.stack([x[:, 0] - x[:, 1], x[:, 2]], axis=1))


@settings(max_examples=30)
@given(
    kind=st.sampled_from(sorted(OPTIMIZERS)),
    decay=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 100),
    steps=st.integers(1, 12),
    clip=st.sampled_from([None, 0.5]),
)
def test_masked_weights_stay_zero_whatever_moves_the_others(kind, decay, seed, steps, clip):
    model = small_model(seed)
    rng = np.random.default_rng(seed)
    weights = [model.layers[0].weight, model.layers[2].weight]
    masks = [rng.random(each.shape) < 0.5 for each in weights]
    for each, mask in zip(weights, masks, strict=True):
        mask.flat[0] = True
        each.data[~mask] = 0
    before = [each.data.copy() for each in weights]
    pairs = [(each, keeping_zeros(mask)) for each, mask in zip(weights, masks, strict=True)]
    optimizer = ConstrainedOptimizer(OPTIMIZERS[kind](model.parameters(), decay), pairs)
    trainer = Trainer(model, loss=MSELoss(), optimizer=optimizer, clip_norm=clip)
    for _ in range(steps):
        trainer.train_step(*batch())
        for each, mask in zip(weights, masks, strict=True):
            assert not each.data[~mask].any()
    assert any((each.data != old).any() for each, old in zip(weights, before, strict=True))


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_without_a_real_constraint_training_is_what_it_was(kind):
    plain, constrained = small_model(), small_model()
    optimizers = [OPTIMIZERS[kind](each.parameters(), 0.01) for each in (plain, constrained)]
    pairs = [(each, lambda free: free) for each in constrained.parameters()]
    optimizers[1] = ConstrainedOptimizer(optimizers[1], pairs)
    for model, optimizer in zip((plain, constrained), optimizers, strict=True):
        schedule = CosineSchedule(0.05, 10)
        trainer = Trainer(model, loss=MSELoss(), optimizer=optimizer, schedule=schedule)
        trainer.fit([batch(seed) for seed in range(4)], epochs=2)
    assert optimizers[0].lr == optimizers[1].lr
    assert optimizers[1].steps == 8
    for name, array in plain.state_dict().items():
        np.testing.assert_array_equal(array, constrained.state_dict()[name])


def test_rounding_goes_straight_through():
    """Weights lie on a grid after each step, and steps far smaller than the grid still add up."""
    step = np.float32(0.25)

    def to_grid(free):
        return np.rint(free / step) * step

    model = small_model()
    pairs = [(each, to_grid) for each in model.parameters() if each.ndim == 2]
    optimizer = ConstrainedOptimizer(Adam(model.parameters(), lr=0.01), pairs)
    trainer = Trainer(model, loss=MSELoss(), optimizer=optimizer)
    losses = []
    for _ in range(150):
        losses.append(trainer.train_step(*batch()))
        for each, _ in pairs:
            np.testing.assert_array_equal(each.data, to_grid(each.data))
    assert np.mean(losses[-10:]) < 0.3 * np.mean(losses[:10])


def test_a_copy_that_nobody_sees_may_overflow():
    kept = np.array([True, False])
    free = np.array([1.0, np.inf], np.float32)
    np.testing.assert_array_equal(keeping_zeros(kept)(free), [1, 0])


def test_prepare_sees_the_steps_and_the_free_copies():
    weight = Parameter(np.array([1.0, 2.0], np.float32))
    seen = []
    optimizer = ConstrainedOptimizer(
        SGD([weight], lr=0.5),
        [(weight, keeping_zeros(np.array([False, True])))],
        prepare=lambda steps, free: seen.append((steps, free[0].tolist())),
    )
    np.testing.assert_array_equal(weight.data, [0, 2])  # at once
    weight.grad = np.array([1.0, 1.0], np.float32)
    optimizer.step()
    assert seen == [(0, [1.0, 2.0]), (1, [0.5, 1.5])]
    np.testing.assert_array_equal(weight.data, [0, 1.5])
    assert optimizer.slots[0]["free"].tolist() == [0.5, 1.5]


def test_parameters_that_were_loaded_are_where_it_goes_on_from():
    layer = Linear(2, 1, bias=False, rng=0)
    optimizer = ConstrainedOptimizer(
        SGD(layer.parameters(), lr=1.0),
        [(layer.weight, keeping_zeros(np.array([[True], [False]])))],
    )
    layer.load_state_dict({"weight": np.array([[5.0], [7.0]], np.float32)})
    layer.weight.grad = np.array([[1.0], [1.0]], np.float32)
    optimizer.step()
    np.testing.assert_array_equal(layer.weight.data, [[4], [0]])


def test_a_checkpoint_goes_on_exactly(tmp_path):
    def make():
        model = small_model()
        weight = model.layers[0].weight
        grid = [(weight, lambda free: np.rint(free * 4) / 4)]
        optimizer = ConstrainedOptimizer(AdamW(model.parameters(), lr=0.01), grid)
        return Trainer(model, loss=MSELoss(), optimizer=optimizer)

    whole, first, second = make(), make(), make()
    for seed in range(6):
        whole.train_step(*batch(seed))
    for seed in range(3):
        first.train_step(*batch(seed))
    save_checkpoint(tmp_path / "c.safetensors", first.model, first.optimizer)
    load_checkpoint(tmp_path / "c.safetensors", second.model, second.optimizer)
    for seed in range(3, 6):
        second.train_step(*batch(seed))
    for name, array in whole.model.state_dict().items():
        np.testing.assert_array_equal(array, second.model.state_dict()[name])


def test_a_state_without_the_constraints_does_not_fit():
    layer = Linear(2, 2, rng=0)
    plain = SGD(layer.parameters())
    optimizer = ConstrainedOptimizer(plain, [(layer.weight, np.copy)])
    with pytest.raises(CheckpointError, match=r"missing key 'free\.0'"):
        optimizer.load_state_dict(plain.state_dict())
    wrong = optimizer.state_dict() | {"free.0": np.zeros(3)}
    with pytest.raises(CheckpointError, match=r"shape \(3,\), the parameter needs \(2, 2\)"):
        optimizer.load_state_dict(wrong)


def test_constraints_that_cannot_hold_are_refused():
    layer, other = Linear(2, 2, rng=0), Linear(2, 2, rng=1)
    plain = SGD(layer.parameters())
    with pytest.raises(SettingError, match="constraint 0 is for a tensor that the optimizer"):
        ConstrainedOptimizer(plain, [(other.weight, np.copy)])
    with pytest.raises(SettingError, match="two constraints"):
        ConstrainedOptimizer(plain, [(layer.weight, np.copy), (layer.weight, np.copy)])
    with pytest.raises(ShapeError, match=r"gave shape \(4,\) for a parameter \(2, 2\)"):
        ConstrainedOptimizer(plain, [(layer.weight, np.ravel)])
