import numpy as np
import pytest
from oracles import (
    BACKENDS,
    DTYPES,
    Case,
    assert_close,
    check_against_torch,
    check_central_differences,
    each,
    every_way,
    torch,
)

from tinytorch.core import operations as losses
from tinytorch.core.dispatch import use_backend
from tinytorch.core.tensor import Tensor, apply

BINARY = {
    "probabilities": (
        losses.BinaryCrossEntropy,
        lambda x, targets: torch.nn.functional.binary_cross_entropy(x, targets, reduction="none"),
        (0.05, 0.95),
    ),
    "logits": (
        losses.BinaryCrossEntropyWithLogits,
        lambda x, targets: torch.nn.functional.binary_cross_entropy_with_logits(
            x, targets, reduction="none"
        ),
        (-4, 4),
    ),
}


def class_loss(targets):
    return lambda logits: apply(losses.CrossEntropy(targets), logits)


def class_loss_in_torch(targets):
    return lambda logits: torch.nn.functional.cross_entropy(
        logits, torch.tensor(targets), reduction="none"
    )


def make_cases():
    for rows, classes in [(1, 1), (1, 5), (4, 3), (7, 2), (3, 50), (0, 3)]:
        targets = np.random.default_rng(3).integers(0, classes, rows)
        yield Case(
            f"cross entropy of {rows} rows, {classes} classes",
            class_loss(targets),
            class_loss_in_torch(targets),
            ((rows, classes),),
            terms=classes,
            between=(-5, 5),
        )
    for name, (kind, theirs, between) in BINARY.items():
        for shape in [(), (5,), (2, 3), (0, 2)]:
            targets = np.asarray(np.random.default_rng(3).random(shape).round(1))
            yield Case(
                f"binary cross entropy of {name} {shape}",
                lambda x, kind=kind, targets=targets: apply(kind(targets.astype(x.dtype)), x),
                lambda x, theirs=theirs, targets=targets: theirs(
                    x, torch.tensor(targets, dtype=x.dtype)
                ),
                (shape,),
                between=between,
            )


CASES = list(make_cases())


@every_way
@each(CASES)
def test_values_and_gradients_are_those_of_pytorch(case, dtype, backend, layout):
    check_against_torch(case, dtype=dtype, backend=backend, layout=layout)


@each(CASES)
def test_gradients_are_central_differences(case):
    check_central_differences(case, backend="numpy")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_is_exact_at_logits_of_ten_thousand(dtype, backend):
    logits = Tensor(np.array([[1e4, 0, -1e4]] * 3, dtype), requires_grad=True)
    with use_backend(backend):
        values = class_loss(np.array([0, 1, 2]))(logits)
        values.sum().backward()
    assert values.data.tolist() == [0, 1e4, 2e4]
    assert logits.grad.tolist() == [[0, 0, 0], [1, -1, 0], [1, 0, -1]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_forbidden_class_costs_the_others_nothing(dtype, backend):
    logits = Tensor(np.array([[-np.inf, 0, 0]], dtype), requires_grad=True)
    with use_backend(backend):
        values = class_loss(np.array([1]))(logits)
        values.sum().backward()
    assert_close(values.data, np.log(np.array([2], dtype)))
    assert logits.grad.tolist() == [[0, -0.5, 0.5]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_certain_probabilities_cost_what_they_cost_in_pytorch(dtype, backend):
    # All pairs of prediction and target; a confident mistake costs 100, the cut of PyTorch.
    probabilities, targets = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], dtype)
    x = Tensor(probabilities, requires_grad=True)
    twin = torch.tensor(probabilities, requires_grad=True)
    with use_backend(backend):
        values = apply(losses.BinaryCrossEntropy(targets), x)
        values.sum().backward()
    expected = BINARY["probabilities"][1](twin, torch.tensor(targets))
    expected.sum().backward()
    assert values.data.tolist() == [0, 100, 100, 0]
    assert_close(values.data, expected)
    # PyTorch keeps the 1e-12 that it divides by in float32, also for float64.
    rtol = float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(x.grad, twin.grad.numpy(), rtol=rtol)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_cross_entropy_of_extreme_logits_is_that_of_pytorch(dtype, backend):
    logits = np.array([-1e4, -100, -1e-6, 0, 1e-6, 100, 1e4] * 2, dtype)
    targets = np.repeat(np.array([0, 1], dtype), 7)
    x, twin = Tensor(logits, requires_grad=True), torch.tensor(logits, requires_grad=True)
    with use_backend(backend):
        values = apply(losses.BinaryCrossEntropyWithLogits(targets), x)
        values.sum().backward()
    expected = BINARY["logits"][1](twin, torch.tensor(targets))
    expected.sum().backward()
    assert np.isfinite(values.data).all()
    for index in range(len(logits)):  # each on its own scale
        assert_close(values.data[index], expected[index])
    assert_close(x.grad, twin.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_gradient_of_cross_entropy_adds_up_to_nothing(backend, rng):
    logits = Tensor(rng.normal(scale=5, size=(20, 10)), requires_grad=True)
    with use_backend(backend):
        class_loss(rng.integers(0, 10, 20))(logits).sum().backward()
    # probabilities minus one-hot: a sum of ten numbers of at most 1
    np.testing.assert_allclose(logits.grad.sum(axis=-1), 0, atol=10 * np.finfo(np.float64).eps)
