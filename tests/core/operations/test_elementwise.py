import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
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

from tinytorch.core.dispatch import use_backend
from tinytorch.core.tensor import Tensor, where

BROADCASTS = [
    ((), ()),
    ((3,), ()),
    ((), (2, 3)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((4, 1, 3), (2, 1)),
    ((1,), (5,)),
    ((1, 1), (1,)),
    ((0, 3), (1, 3)),
    ((2, 0), (1,)),
    ((7, 5), (7, 5)),
]
SHAPES = [(), (1,), (3, 5), (2, 1, 3), (0, 2)]
AWAY_FROM_ZERO = (0.5, 2.0)
BELOW_ZERO = (-2.0, -0.5)

BINARY = {
    "add": (lambda a, b: a + b, (-2.0, 2.0)),
    "subtract": (lambda a, b: a - b, (-2.0, 2.0)),
    "multiply": (lambda a, b: a * b, (-2.0, 2.0)),
    "divide": (lambda a, b: a / b, AWAY_FROM_ZERO),
    "power": (lambda a, b: a**b, AWAY_FROM_ZERO),
}
UNARY = {
    "negative": (lambda x: -x, (-2.0, 2.0)),
    "absolute": (abs, (-2.0, 2.0)),
    "abs": (lambda x: x.abs(), (-2.0, 2.0)),
    "exp": (lambda x: x.exp(), (-2.0, 2.0)),
    "log": (lambda x: x.log(), AWAY_FROM_ZERO),
    "sqrt": (lambda x: x.sqrt(), AWAY_FROM_ZERO),
}
WITH_NUMBERS = {
    "x + 2": lambda x: x + 2,
    "2 + x": lambda x: 2 + x,
    "x - 2.5": lambda x: x - 2.5,
    "2.5 - x": lambda x: 2.5 - x,
    "x * 3": lambda x: x * 3,
    "3 * x": lambda x: 3 * x,
    "x / 3": lambda x: x / 3,
    "3 / x": lambda x: 3 / x,
    "2 ** x": lambda x: 2**x,
    "x used twice": lambda x: x * x + x,
}
CHOICES = [
    ((2, 3), (2, 3), (2, 3)),
    ((3,), (2, 3), (2, 1)),
    ((2, 1), (1, 3), ()),
    ((4, 1, 1), (2, 3), (3,)),
    ((), (2,), (2,)),
    ((1,), (), ()),
    ((0, 3), (1, 3), (0, 3)),
]


def longest_sum(*shapes):
    """Give how many gradients broadcasting adds up at most."""
    return int(np.prod(np.broadcast_shapes(*shapes)))


def choose(condition, library):
    if library == "ours":
        return lambda a, b: where(condition, a, b)
    return lambda a, b: torch.where(torch.tensor(condition), a, b)


def make_cases():
    for name, (function, between) in BINARY.items():
        for shapes in BROADCASTS:
            terms = longest_sum(*shapes)
            yield Case(f"{name} {shapes}", function, function, shapes, terms, between)
    for name, (function, between) in UNARY.items():
        for shape in SHAPES:
            yield Case(f"{name} {shape}", function, function, (shape,), between=between)
    for name, function in WITH_NUMBERS.items():
        yield Case(name, function, function, ((2, 3),), between=AWAY_FROM_ZERO)
    for exponent in (2, 3, 0, 1, -1, 0.5, -0.5, 2.5):
        function = lambda x, exponent=exponent: x**exponent  # noqa: E731
        yield Case(f"x ** {exponent}", function, function, ((3, 5),), between=AWAY_FROM_ZERO)
        if exponent == int(exponent):
            name = f"negative x ** {exponent}"
            yield Case(name, function, function, ((3, 5),), between=BELOW_ZERO)
    for condition_shape, *shapes in CHOICES:
        condition = np.random.default_rng(3).random(condition_shape) < 0.5
        yield Case(
            f"where {condition_shape} {shapes}",
            choose(condition, "ours"),
            choose(condition, "theirs"),
            tuple(shapes),
            longest_sum(condition_shape, *shapes),
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
def test_powers_of_zero_have_the_gradients_of_pytorch(dtype, backend):
    bases, exponents = np.zeros(4, dtype), np.array([0, 1, 2, 0.5 + 1], dtype)
    a, b = Tensor(bases, requires_grad=True), Tensor(exponents, requires_grad=True)
    their_a = torch.tensor(bases, requires_grad=True)
    their_b = torch.tensor(exponents, requires_grad=True)
    with use_backend(backend):
        (a**b).sum().backward()
    (their_a**their_b).sum().backward()
    assert_close(a.grad, their_a.grad)
    assert_close(b.grad, their_b.grad)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3])
def test_a_zero_to_a_plain_power_has_the_gradient_of_pytorch(exponent):
    x = Tensor(np.zeros(2), requires_grad=True)
    theirs = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (x**exponent).sum().backward()
    (theirs**exponent).sum().backward()
    assert_close(x.grad, theirs.grad)


def test_the_absolute_value_is_flat_at_zero():
    x = Tensor([-1.0, 0.0, 2.0], requires_grad=True)
    abs(x).sum().backward()
    assert x.grad.tolist() == [-1, 0, 1]


def test_an_input_that_needs_no_gradient_gets_none():
    x, constant = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0])
    where([True, False], x * constant, constant - x).sum().backward()
    assert constant.grad is None
    assert x.grad.tolist() == [3, -1]


@given(
    numpy_strategies.mutually_broadcastable_shapes(
        num_shapes=3, min_side=0, max_side=4, max_dims=4
    ),
    st.sampled_from(["add", "multiply", "where"]),
)
def test_broadcasting_follows_numpy_and_gradients_come_back_in_each_shape(shapes, operation):
    rng = np.random.default_rng(20260)
    # Small whole numbers, so that every sum is exact and can be compared for equality.
    a, b = (rng.integers(-4, 5, shape).astype(float) for shape in shapes.input_shapes[:2])
    condition = rng.random(shapes.input_shapes[2]) < 0.5
    left, right = Tensor(np.asarray(a), requires_grad=True), Tensor(b, requires_grad=True)
    if operation == "where":
        result, expected = where(condition, left, right), np.where(condition, a, b)
        slopes = condition * np.ones_like(expected), ~condition * np.ones_like(expected)
    elif operation == "add":
        result, expected = left + right, np.asarray(a + b)
        slopes = np.ones_like(expected), np.ones_like(expected)
    else:
        result, expected = left * right, np.asarray(a * b)
        slopes = np.broadcast_to(b, expected.shape), np.broadcast_to(a, expected.shape)
    result.sum().backward()
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.data, expected)
    for tensor, slope in zip((left, right), slopes, strict=True):
        assert tensor.grad.shape == tensor.shape
        np.testing.assert_array_equal(tensor.grad, summed_to(slope, tensor.shape))


def summed_to(array, shape):
    """Undo broadcasting by adding up element after element."""
    result = np.zeros(shape)
    counter = np.broadcast_to(np.arange(result.size).reshape(shape), array.shape)
    for position, value in zip(counter.ravel(), array.ravel(), strict=True):
        result.flat[position] += value
    return result
