"""Loss functions against PyTorch, with every reduction, and far out."""

import numpy as np
import pytest
from parts import require_part
from torch_twins import assert_same, check_twins

from tinytorch.core.losses import BinaryCrossEntropyLoss, CrossEntropyLoss, MSELoss
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DTypeError, SettingError, ShapeError

torch = require_part("torch")

REDUCTIONS = ["mean", "sum", "none"]
DTYPES = [np.float32, np.float64]


def check_loss(ours, theirs, predictions, targets, rng, their_targets=None):
    """Compare a loss of (predictions, targets) and its slope at the predictions."""
    wanted = torch.tensor(targets if their_targets is None else their_targets)
    check_twins(
        ours,
        theirs,
        predictions,
        rng,
        our_call=lambda x: ours(x, Tensor(targets)),
        their_call=lambda x: theirs(x, wanted),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4)])
def test_mse_is_that_of_pytorch(shape, reduction, dtype, rng):
    x, targets = rng.standard_normal((2, *shape)).astype(dtype)
    check_loss(MSELoss(reduction), torch.nn.MSELoss(reduction=reduction), x, targets, rng)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_cross_entropy_is_that_of_pytorch(size, reduction, dtype, rng):
    logits = (size * rng.standard_normal((6, 5))).astype(dtype)
    targets = rng.integers(0, 5, 6)
    theirs = torch.nn.CrossEntropyLoss(reduction=reduction)
    check_loss(CrossEntropyLoss(reduction), theirs, logits, targets, rng)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(), (3, 4), (2, 3, 4)])
def test_cross_entropy_takes_any_number_of_axes(shape, reduction, rng):
    logits = rng.standard_normal((*shape, 5))
    targets = rng.integers(0, 5, shape)
    ours = CrossEntropyLoss(reduction)(Tensor(logits), targets)
    # PyTorch wants the classes second.
    flat = torch.tensor(logits.reshape(-1, 5)), torch.tensor(targets.reshape(-1))
    theirs = torch.nn.functional.cross_entropy(*flat, reduction=reduction)
    assert_same(ours, theirs.reshape(shape if reduction == "none" else ()))


def test_class_numbers_may_be_whole_floats(rng):
    logits = Tensor(rng.standard_normal((3, 4)))
    loss = CrossEntropyLoss()
    whole = loss(logits, Tensor([0.0, 3.0, 2.0]))
    assert whole.data == loss(logits, np.array([0, 3, 2], np.int8)).data
    assert whole.data == loss(logits, [0, 3, 2]).data


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy_is_that_of_pytorch(reduction, dtype, rng):
    probabilities = rng.uniform(0.01, 0.99, (4, 3)).astype(dtype)
    targets = rng.integers(0, 2, (4, 3)).astype(dtype)
    theirs = torch.nn.BCELoss(reduction=reduction)
    check_loss(BinaryCrossEntropyLoss(reduction), theirs, probabilities, targets, rng)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_binary_cross_entropy_of_logits_is_that_of_pytorch(size, reduction, dtype, rng):
    logits = (size * rng.standard_normal((4, 3))).astype(dtype)
    targets = rng.uniform(0, 1, (4, 3)).astype(dtype)
    ours = BinaryCrossEntropyLoss(reduction, from_logits=True)
    check_loss(ours, torch.nn.BCEWithLogitsLoss(reduction=reduction), logits, targets, rng)


def test_certain_probabilities_cost_what_they_cost_in_pytorch():
    predictions, targets = [0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]
    ours = BinaryCrossEntropyLoss("none")(Tensor(predictions), targets)
    theirs = torch.nn.BCELoss(reduction="none")(torch.tensor(predictions), torch.tensor(targets))
    assert ours.data.tolist() == theirs.tolist() == [0, 0, 100, 100]


def test_whole_number_targets_serve_for_every_loss():
    for loss in (MSELoss(), BinaryCrossEntropyLoss()):
        from_integers = loss(Tensor([0.25, 0.5]), Tensor(np.array([0, 1])))
        assert from_integers.data == pytest.approx(float(loss(Tensor([0.25, 0.5]), [0, 1]).data))


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("loss", [MSELoss(), BinaryCrossEntropyLoss()])
def test_unequal_shapes_are_an_error_that_shows_both(loss):
    name = type(loss).__name__
    with pytest.raises(ShapeError) as caught:
        loss(Tensor([[0.5], [0.5]]), Tensor([0.5, 0.5]))
    assert str(caught.value) == (
        f"{name} needs equal shapes, got predictions (2, 1) and targets (2,)"
    )


@pytest.mark.parametrize("shape", [(4,), (3, 1), ()])
def test_class_numbers_of_another_shape_are_an_error_that_shows_the_wanted_one(shape):
    with pytest.raises(ShapeError) as caught:
        CrossEntropyLoss()(Tensor(np.zeros((3, 5), np.float32)), np.zeros(shape, np.int64))
    assert str(caught.value) == (
        f"cross entropy of logits (3, 5) needs class numbers of shape (3,), got {shape}"
    )


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_class_that_does_not_exist_is_an_error(wrong):
    with pytest.raises(SettingError, match=r"class numbers must be in 0\.\.4, got"):
        CrossEntropyLoss()(Tensor(np.zeros((2, 5), np.float32)), [0, wrong])


@pytest.mark.parametrize("wrong", [0.5, float("nan"), float("inf")])
def test_class_numbers_that_are_not_whole_are_an_error(wrong):
    with pytest.raises(DTypeError, match="class numbers must be whole, got float32"):
        CrossEntropyLoss()(Tensor(np.zeros((2, 5), np.float32)), [0, wrong])


@pytest.mark.parametrize("wrong", [-0.5, 1.5])
def test_probabilities_outside_of_zero_to_one_point_to_the_form_for_logits(wrong):
    with pytest.raises(SettingError, match=rf"got {wrong}; for logits use from_logits=True"):
        BinaryCrossEntropyLoss()(Tensor([0.5, wrong]), [0, 1])


@pytest.mark.parametrize("loss", [CrossEntropyLoss(), BinaryCrossEntropyLoss()])
def test_predictions_that_are_integers_are_an_error(loss):
    with pytest.raises(DTypeError, match="needs floating-point input, got int64"):
        loss(Tensor(np.zeros((2, 2), np.int64)), np.zeros((2, 2), np.int64))


@pytest.mark.parametrize("kind", [MSELoss, CrossEntropyLoss, BinaryCrossEntropyLoss])
def test_an_unknown_reduction_is_an_error_that_names_the_known_ones(kind):
    with pytest.raises(SettingError, match="must be 'mean', 'sum' or 'none', got 'median'"):
        kind("median")
