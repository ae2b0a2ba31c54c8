"""Every operation against PyTorch and central differences, from one table of cases."""

import math

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
    check_every_operation_has_a_case,
    each,
    every_way,
    operations_behind,
    torch,
)

from tinytorch.core import operations
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.operations import Operation, sum_to_shape
from tinytorch.core.tensor import Tensor, apply, concatenate, stack, where
from tinytorch.errors import GraphError, ShapeError

# Elementwise

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


def elementwise_cases():
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


# Reductions

REDUCED = [
    ((), None),
    ((5,), 0),
    ((5,), None),
    ((1, 1), 1),
    ((3, 7), -1),
    ((3, 7), -2),
    ((2, 3, 5), None),
    ((2, 3, 5), 1),
    ((2, 3, 5), (0, 2)),
    ((2, 3, 5), (-1, 0)),
    ((2, 1, 5), (1,)),
]
# Where NumPy or PyTorch has no value for the others, or warns.
MORE = {
    "sum": [((), -1), ((0, 3), 1), ((0, 3), 0), ((0, 3), None), ((2, 0), -1)],
    "mean": [((0, 3), 1)],
    "max": [((), -1), ((0, 3), 1)],
    "var": [],
}
REDUCTIONS = {
    "sum": (lambda x, axis, keep: x.sum(axis, keep), lambda x, axis, keep: x.sum(axis, keep)),
    "mean": (lambda x, axis, keep: x.mean(axis, keep), lambda x, axis, keep: x.mean(axis, keep)),
    "max": (lambda x, axis, keep: x.max(axis, keep), lambda x, axis, keep: x.amax(axis, keep)),
    "var": (
        lambda x, axis, keep: x.var(axis, keep),
        lambda x, axis, keep: x.var(axis, correction=0, keepdim=keep),
    ),
}


def reduction_cases():
    for name, (ours, theirs) in REDUCTIONS.items():
        for shape, axis in REDUCED + MORE[name]:
            for keep in (False, True):
                every = tuple(range(len(shape)))
                yield Case(
                    f"{name} {shape} axis {axis} keepdims {keep}",
                    lambda x, f=ours, axis=axis, keep=keep: f(x, axis, keep),
                    lambda x, f=theirs, axis=every if axis is None else axis, keep=keep: f(
                        x, axis, keep
                    ),
                    (shape,),
                    terms=math.prod(shape),
                )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
def test_elements_that_share_the_maximum_share_its_gradient(axis, backend):
    values = np.array([[1.0, 3.0, 3.0], [3.0, 0.0, 3.0]])
    x, twin = Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    with use_backend(backend):
        x.max(axis).sum().backward()
    twin.amax((0, 1) if axis is None else axis).sum().backward()
    assert_close(x.grad, twin.grad)


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_argmax_is_the_first_largest_and_has_no_gradient(axis):
    x = Tensor([[1.0, 3.0, 3.0], [3.0, 0.0, 3.0]], requires_grad=True)
    found = x.argmax(axis)
    np.testing.assert_array_equal(found.data, x.data.argmax(axis))
    assert not found.requires_grad


@pytest.mark.parametrize("name", REDUCTIONS)
def test_an_axis_may_be_an_integer_of_numpy(name):
    reduce = REDUCTIONS[name][0]
    x, twin = (Tensor(np.arange(6.0).reshape(2, 3), requires_grad=True) for _ in range(2))
    reduce(x, np.int64(1), False).sum().backward()
    reduce(twin, 1, False).sum().backward()
    np.testing.assert_array_equal(x.grad, twin.grad)


def test_the_maximum_of_nothing_is_an_error_that_names_the_shape():
    with pytest.raises(ShapeError, match=r"Max cannot use shapes \(0, 3\)"):
        Tensor(np.zeros((0, 3))).max()


def test_an_axis_that_does_not_exist_is_an_error_that_names_the_shape():
    with pytest.raises(ShapeError, match=r"Sum cannot use shapes \(2, 3\).*axis 2"):
        Tensor(np.zeros((2, 3))).sum(2)


# Shaping

MASK = np.array([[True, False, True, True], [False, False, True, False], [True, True, True, True]])
SHAPE = (3, 4, 5)
# Indices that PyTorch and NumPy read alike.
INDICES = {
    "an integer": 1,
    "a negative integer": -1,
    "a slice": slice(1, 3),
    "a slice with steps": (slice(None), slice(None, None, 2)),
    "an ellipsis": (..., 2),
    "a new axis": (slice(None), None, 1),
    "a new axis before an ellipsis": (None, ..., slice(1, 4)),
    "one element": (1, 2, 3),
    "nothing": slice(2, 2),
    "a list": [0, 2, 1],
    "an array": np.array([2, 0]),
    "an array with repeats": np.array([1, 1, 1, 0]),
    "a matrix of integers": np.array([[0, 1], [1, 1]]),
    "negative integers in an array": np.array([-1, 0, -1]),
    "two arrays": (np.array([0, 0, 2]), np.array([1, 1, 3])),
    "an array after a slice": (slice(None), np.array([3, 3])),
    "arrays around a slice": (np.array([0, 1]), slice(None), np.array([4, 4])),
    "an array of no integers": np.zeros(0, np.int64),
    "a mask": MASK[:, 0],
    "a mask of two axes": MASK,
    "a mask of nothing": np.zeros(3, bool),
    "a mask and a slice": (MASK[:, 1], slice(1, None)),
}
RESHAPES = [
    ((), (1,)),
    ((1, 1), ()),
    ((6,), (2, 3)),
    ((2, 3), (-1,)),
    ((2, 3, 4), (4, -1)),
    ((0, 3), (3, 0)),
    ((2, 1, 3), (1, 6, 1)),
]
PERMUTATIONS = [
    ((), ()),
    ((4,), (0,)),
    ((2, 3), (1, 0)),
    ((2, 3, 4), (2, 0, 1)),
    ((2, 3, 4), (-1, 0, -2)),
]
SHAPING_BROADCASTS = [
    ((), (2, 3)),
    ((3,), (2, 3)),
    ((2, 1), (2, 5)),
    ((1, 1), (4, 2, 3)),
    ((1, 3), (0, 3)),
    ((2, 3), (2, 3)),
]
PIECES = [
    (((2, 3),), 0),
    (((2, 3), (2, 3)), 0),
    (((2, 3), (4, 3), (1, 3)), 0),
    (((2, 3), (2, 1)), 1),
    (((2, 3), (2, 4)), -1),
    (((2, 3, 4), (2, 1, 4)), -2),
    (((0, 3), (2, 3)), 0),
    (((4,), (1,)), 0),
]
TABLES = {
    "one id": np.array(2),
    "ids": np.array([3, 0, 1]),
    "repeated ids": np.array([[1, 1, 4], [4, 1, 0]]),
    "no ids": np.zeros((2, 0), np.int64),
    "small ids": np.array([2, 2, 0], np.uint8),
}


def look_up(ids):
    return lambda table: apply(operations.Embedding(ids), table)


def look_up_in_torch(ids):
    return lambda table: torch.nn.functional.embedding(torch.tensor(ids.astype(np.int64)), table)


def in_torch(index):
    """Give an index with tensors in place of arrays."""
    if isinstance(index, tuple):
        return tuple(in_torch(part) for part in index)
    return torch.tensor(index) if isinstance(index, np.ndarray) else index


def shaping_cases():
    for name, index in INDICES.items():
        yield Case(
            f"index: {name}",
            lambda x, index=index: x[index],
            lambda x, index=index: x[in_torch(index)],
            (SHAPE,),
            terms=4,
        )
    for before, after in RESHAPES:
        function = lambda x, after=after: x.reshape(after)  # noqa: E731
        yield Case(f"reshape {before} {after}", function, function, (before,))
    for shape, axes in PERMUTATIONS:
        function = lambda x, axes=axes: x.permute(axes)  # noqa: E731
        yield Case(f"permute {shape} {axes}", function, function, (shape,))
    for before, after in SHAPING_BROADCASTS:
        function = lambda x, after=after: x.broadcast_to(after)  # noqa: E731
        yield Case(f"broadcast {before} {after}", function, function, (before,), math.prod(after))
    for shapes, axis in PIECES:
        yield Case(
            f"concatenate {shapes} axis {axis}",
            lambda *pieces, axis=axis: concatenate(pieces, axis),
            lambda *pieces, axis=axis: torch.cat(pieces, axis),
            shapes,
        )
    for axis in (0, 1, 2, -1, -3):
        yield Case(
            f"stack axis {axis}",
            lambda *pieces, axis=axis: stack(pieces, axis),
            lambda *pieces, axis=axis: torch.stack(pieces, axis),
            ((2, 3),) * 3,
        )
    for name, ids in TABLES.items():
        yield Case(f"embedding: {name}", look_up(ids), look_up_in_torch(ids), ((5, 3),), terms=4)


@pytest.mark.parametrize("axes", [(), (0, 1), (1, 0), (-1, 0), (0, 2), ((1, 2),)], ids=str)
def test_transpose_swaps_the_last_two_axes_or_the_two_that_are_given(axes, rng):
    x = rng.normal(size=(2, 3, 4))
    first, second = np.ravel(axes).astype(int).tolist() or (-2, -1)
    np.testing.assert_array_equal(Tensor(x).transpose(*axes).data, np.swapaxes(x, first, second))


@pytest.mark.parametrize("shape", [(), (4,)])
def test_transpose_leaves_vectors_and_numbers_alone(shape, rng):
    x = np.asarray(rng.normal(size=shape))
    np.testing.assert_array_equal(Tensor(x).transpose().data, x)


def test_transpose_of_all_axes_reorders_them(rng):
    x = rng.normal(size=(2, 3, 4))
    np.testing.assert_array_equal(Tensor(x).transpose(2, 0, 1).data, x.transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 3, 4), (2, 0), (5,)])
@pytest.mark.parametrize("start", [0, 1, -1])
def test_flatten_joins_the_axes_from_start_on_also_of_empty_batches(shape, start):
    expected = torch.zeros(shape).flatten(start) if start < len(shape) else torch.zeros(shape)
    if start == 1 and len(shape) == 1:
        expected = torch.zeros((*shape, 1))  # nothing is left to join: an empty product
    assert Tensor(np.zeros(shape)).flatten(start).shape == tuple(expected.shape)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_element_that_is_taken_twice_gets_both_gradients(dtype, backend):
    x = Tensor(np.arange(4, dtype=dtype), requires_grad=True)
    with use_backend(backend):
        x[np.array([1, 3, 1, 1])].backward(np.array([1, 10, 100, 1000], dtype))
    assert x.grad.tolist() == [0, 1101, 0, 10]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_id_that_is_looked_up_often_gets_all_gradients(backend, rng):
    ids = rng.integers(0, 3, 1000)
    table = Tensor(np.zeros((5, 2)), requires_grad=True)
    with use_backend(backend):
        look_up(ids)(table).sum().backward()
    assert table.grad.tolist() == [[n, n] for n in np.bincount(ids, minlength=5).tolist()]


def test_tensors_serve_as_indices():
    x = Tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    rows, columns = Tensor(np.array([2, 0])), Tensor(np.array([0, 1]))
    assert x[rows].data.tolist() == [[5, 6], [1, 2]]
    assert x[rows, columns].data.tolist() == [5, 2]
    assert x[Tensor(np.array([True, False, True]))].data.tolist() == [[1, 2], [5, 6]]


@st.composite
def shapes_and_indices(draw):
    shape = draw(numpy_strategies.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5))
    integers = numpy_strategies.integer_array_indices(shape)
    basic = numpy_strategies.basic_indices(shape, allow_newaxis=True)  # slices also run backwards
    masks = numpy_strategies.arrays(bool, shape)
    return shape, draw(st.one_of(basic, integers, masks))


@pytest.mark.parametrize("backend", BACKENDS)
@given(shapes_and_indices())
def test_every_index_takes_what_numpy_takes_and_hands_gradients_back(backend, shape_and_index):
    shape, index = shape_and_index
    values = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    x = Tensor(values, requires_grad=True)
    expected = np.asarray(values[index])
    upstream = np.arange(1, expected.size + 1, dtype=np.float64).reshape(expected.shape)
    with use_backend(backend):
        taken = x[index]
        taken.backward(upstream)
    np.testing.assert_array_equal(taken.data, expected)
    # Each value is its own position: add up the gradients of all that came from there.
    grad = np.bincount(expected.ravel().astype(int), upstream.ravel(), math.prod(shape))
    np.testing.assert_array_equal(x.grad, grad.reshape(shape))


def test_a_reshape_that_does_not_fit_is_an_error_that_names_both_shapes():
    with pytest.raises(ShapeError, match=r"Reshape cannot use shapes \(2, 3\).*into shape \(4,\)"):
        Tensor(np.zeros((2, 3))).reshape(4)


def test_pieces_that_do_not_fit_are_an_error_that_names_both_shapes():
    with pytest.raises(ShapeError, match=r"Concatenate cannot use shapes \(2, 3\) and \(2, 4\)"):
        concatenate([Tensor(np.zeros((2, 3))), Tensor(np.zeros((2, 4)))])


@pytest.mark.parametrize("axis", [3, -4])
def test_stacking_along_an_axis_that_cannot_be_is_an_error(axis):
    with pytest.raises(ShapeError, match=rf"axis {axis}"):
        stack([Tensor(np.zeros((2, 3)))] * 2, axis)


@pytest.mark.parametrize("axes", [(0, 2), (-3, 0)])
def test_transposing_an_axis_that_does_not_exist_is_an_error_that_names_the_shape(axes):
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        Tensor(np.zeros((2, 3))).transpose(*axes)


def test_an_index_outside_is_an_index_error():
    with pytest.raises(IndexError, match="out of bounds"):
        Tensor([1.0, 2.0])[2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_a_reversed_view_are_reversed_back(backend):
    x = Tensor(np.arange(5.0), requires_grad=True)
    with use_backend(backend):
        x[::-1].backward(np.arange(5.0))
    assert_close(x.grad, np.arange(5.0)[::-1].copy())


# Products

FACTORS = [
    ((3,), (3,)),
    ((1,), (1,)),
    ((3,), (3, 5)),
    ((2, 3), (3,)),
    ((2, 3), (3, 5)),
    ((1, 3), (3, 1)),
    ((7, 1), (1, 7)),
    ((4, 2, 3), (4, 3, 5)),
    ((4, 2, 3), (3, 5)),
    ((2, 3), (4, 3, 5)),
    ((4, 1, 2, 3), (1, 6, 3, 5)),
    ((1, 2, 3), (4, 3, 5)),
    ((6, 1, 2, 3), (4, 3, 1)),
    ((3,), (4, 3, 5)),
    ((4, 2, 3), (3,)),
    ((3,), (2, 4, 3, 1)),
    ((0, 3), (3, 5)),
    ((0, 2, 3), (3, 5)),
    ((2, 3), (3, 0)),
    ((2, 0), (0, 5)),
]
ROWS = [(3,), (1, 3), (5, 3), (2, 5, 3), (2, 1, 4, 3), (0, 3), (2, 0, 3)]
MINUS_INFINITY = -np.inf
HOLES = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0]], bool)
BLIND = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]], bool)
QUERIES = (2, 2, 3, 4)
KEYS = (2, 2, 5, 4)
VALUES = (2, 2, 5, 6)
ONE_LENGTH = ((2, 3, 5, 4),) * 3
THREE_OF_FIVE = (QUERIES, KEYS, VALUES)


def additive(visible):
    return np.where(visible, 0.0, MINUS_INFINITY)


def causal_bias(queries, keys):
    return additive(np.arange(keys) <= np.arange(queries)[:, None] + keys - queries)


def slopes(*shape):
    return np.asarray(np.random.default_rng(11).normal(size=shape))


# name -> (shapes, bias, causal)
ATTENTIONS = {
    "plain": (ONE_LENGTH, None, False),
    "causal": (ONE_LENGTH, None, True),
    "one head": (((5, 4),) * 3, None, True),
    "fewer queries than keys": (THREE_OF_FIVE, None, False),
    "causal with fewer queries than keys": (THREE_OF_FIVE, None, True),
    "causal with one query": (((2, 1, 4), (2, 5, 4), (2, 5, 4)), None, True),
    "causal with more queries than keys": (((2, 5, 4), (2, 3, 4), (2, 3, 6)), None, True),
    "holes": (THREE_OF_FIVE, additive(HOLES), False),
    "holes for each head": (THREE_OF_FIVE, additive(np.stack([HOLES, ~HOLES])), False),
    "holes and causal": (THREE_OF_FIVE, additive(HOLES), True),
    "a row that sees nothing": (THREE_OF_FIVE, additive(BLIND), False),
    "numbers to add": (THREE_OF_FIVE, slopes(2, 1, 3, 5), False),
    "numbers to add and causal": (THREE_OF_FIVE, slopes(3, 5), True),
    "numbers for each key": (THREE_OF_FIVE, slopes(1, 5), False),
    "numbers for each query": (THREE_OF_FIVE, slopes(3, 1), False),
    "keys and values shared by the heads": (((2, 3, 4, 5), (2, 1, 6, 5), (2, 1, 6, 5)), None, True),
    "a bias for more heads than there are": (((5, 4),) * 3, slopes(2, 5, 5), False),
    "no examples": (((0, 2, 3, 4), (0, 2, 5, 4), (0, 2, 5, 4)), None, True),
    "no keys": (((2, 3, 4), (2, 0, 4), (2, 0, 4)), None, False),
}


def attend(bias, causal):
    def ours(query, key, value):
        typed = None if bias is None else bias.astype(query.dtype)
        scale = 1 / math.sqrt(query.shape[-1])
        return apply(operations.Attention(typed, scale, causal), query, key, value)

    return ours


def attend_in_torch(bias, causal):
    def theirs(query, key, value):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if bias is not None:
            scores = scores + torch.tensor(bias, dtype=scores.dtype)
        if causal:
            scores = scores + torch.tensor(causal_bias(*scores.shape[-2:]), dtype=scores.dtype)
        blind = torch.isinf(scores).all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
        return weights @ value

    return theirs


def product_cases():
    for shapes in FACTORS:
        terms = math.prod(shapes[0]) + math.prod(shapes[1])
        yield Case(f"matmul {shapes}", lambda a, b: a @ b, lambda a, b: a @ b, shapes, terms)
    for rows in ROWS:
        terms = math.prod(rows) + 5
        yield Case(
            f"linear {rows}",
            lambda x, w, b: apply(operations.Linear(), x, w, b),
            lambda x, w, b: torch.nn.functional.linear(x, w.T, b),
            (rows, (3, 5), (5,)),
            terms,
        )
        yield Case(
            f"linear {rows} without bias",
            lambda x, w: apply(operations.Linear(), x, w),
            lambda x, w: torch.nn.functional.linear(x, w.T),
            (rows, (3, 5)),
            terms,
        )
    for name, (shapes, bias, causal) in ATTENTIONS.items():
        yield Case(
            f"attention, {name}",
            attend(bias, causal),
            attend_in_torch(bias, causal),
            shapes,
            terms=math.prod(shapes[0][-3:]),
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_the_one_that_pytorch_ships(causal, backend):
    case = Case(
        "attention",
        attend(None, causal),
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
        ONE_LENGTH,
        terms=20,
    )
    check_against_torch(case, dtype=np.float32, backend=backend, layout="contiguous")


# Long enough for a backend that handles queries in blocks, and not a multiple of any block.
# (queries, keys) and a bias that fits them
LONG = {
    "no bias": (523, 523, None),
    "fewer queries": (523, 601, None),
    "more queries": (601, 523, None),
    "one key": (523, 1, None),
    "a bias for each pair": (523, 301, slopes(523, 301)),
    "a bias for each head": (523, 301, slopes(2, 523, 301)),
    "a bias for each key": (523, 301, slopes(1, 301)),
    "a bias for each key, without an axis of queries": (523, 301, slopes(301)),
    "a bias for each query": (523, 301, slopes(523, 1)),
    "one bias": (523, 301, slopes()),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LONG)
def test_long_attention_without_a_graph_is_that_of_pytorch(name, causal, backend, rng):
    queries, keys, bias = LONG[name]
    arrays = [rng.normal(size=(2, length, 4)) for length in (queries, keys, keys)]
    with use_backend(backend), no_grad():
        mix = attend(bias, causal)(*map(Tensor, arrays))
    expected = attend_in_torch(bias, causal)(*map(torch.tensor, arrays))
    assert_close(mix.data, expected, terms=keys)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_query_that_sees_nothing_gives_zeros_and_gets_no_gradient(backend):
    query, key, value = (Tensor(np.ones((2, 3)), requires_grad=True) for _ in range(3))
    nothing = np.full((2, 2), MINUS_INFINITY)
    with use_backend(backend):
        mix = attend(nothing, False)(query, key, value)
        mix.sum().backward()
    for array in (mix.data, query.grad, key.grad, value.grad):
        np.testing.assert_array_equal(array, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_later_key_has_no_influence_on_causal_attention(backend, rng):
    query, key, value = rng.normal(size=(3, 6, 4))
    with use_backend(backend):
        before = attend(None, True)(Tensor(query), Tensor(key), Tensor(value)).data
        key[4:], value[4:] = 99, -99
        after = attend(None, True)(Tensor(query), Tensor(key), Tensor(value)).data
    np.testing.assert_array_equal(before[:4], after[:4])
    assert (before[4:] != after[4:]).all()


@pytest.mark.parametrize("shapes", [((2, 3), (4, 5)), ((3,), (4,)), ((2, 2, 3), (3, 3, 5))])
def test_factors_that_do_not_fit_are_an_error_that_names_both_shapes(shapes):
    a, b = (Tensor(np.zeros(shape)) for shape in shapes)
    with pytest.raises(ShapeError) as caught:
        a @ b
    assert f"Matmul cannot use shapes {shapes[0]} and {shapes[1]}" in str(caught.value)


def test_a_number_is_not_a_matrix():
    with pytest.raises(ShapeError, match=r"Matmul cannot use shapes \(2, 3\) and \(\)"):
        Tensor(np.zeros((2, 3))) @ 2.0


# Activations

ACTIVATION_SHAPES = [(), (1,), (3, 5), (2, 1, 7), (0, 4)]
AXES = [
    ((), -1),
    ((4,), 0),
    ((3, 5), -1),
    ((3, 5), 0),
    ((2, 3, 4), 1),
    ((2, 3, 4), -3),
    ((0, 4), -1),
]
ELEMENTWISE = {
    "relu": (operations.ReLU, lambda x: torch.relu(x)),
    "sigmoid": (operations.Sigmoid, lambda x: torch.sigmoid(x)),
    "tanh": (operations.Tanh, lambda x: torch.tanh(x)),
    "gelu tanh": (
        lambda: operations.GELU("tanh"),
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "silu": (operations.SiLU, lambda x: torch.nn.functional.silu(x)),
    "gelu erf": (lambda: operations.GELU("none"), lambda x: torch.nn.functional.gelu(x)),
}
ALONG_AXIS = {
    "softmax": (operations.Softmax, lambda x, axis: torch.softmax(x, axis)),
    "log softmax": (operations.LogSoftmax, lambda x, axis: torch.log_softmax(x, axis)),
}


def applied(make):
    return lambda x: apply(make(), x)


ANGLES = np.random.default_rng(3).uniform(-3, 3, (3, 2))  # (time, d / 2)


def rotated(x):
    cosines, sines = np.cos(ANGLES).astype(x.dtype), np.sin(ANGLES).astype(x.dtype)
    return apply(operations.Rotary(cosines, sines), x)


def rotated_by_pytorch(x):
    """Multiply complex numbers, whose parts are the two halves of a row."""
    angles = torch.tensor(ANGLES, dtype=x.dtype)
    turned = torch.complex(x[..., :2], x[..., 2:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def activation_cases():
    for name, (make, theirs) in ELEMENTWISE.items():
        for shape in ACTIVATION_SHAPES:
            yield Case(f"{name} {shape}", applied(make), theirs, (shape,), between=(-4, 4))
    yield Case("rotary", rotated, rotated_by_pytorch, ((2, 3, 4),), terms=2)
    for name, (make, theirs) in ALONG_AXIS.items():
        for shape, axis in AXES:
            yield Case(
                f"{name} {shape} axis {axis}",
                lambda x, make=make, axis=axis: apply(make(axis), x),
                lambda x, theirs=theirs, axis=axis: theirs(x, axis),
                (shape,),
                terms=shape[axis] if shape else 1,
                between=(-4, 4),
            )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_arrays_longer_than_any_block_are_computed_to_the_end(name, dtype, backend):
    # An odd length, so that whatever block size a backend uses, the last block is a short one.
    make, theirs = ELEMENTWISE[name]
    case = Case(name, applied(make), theirs, ((70_001,),), between=(-6, 6))
    check_against_torch(case, dtype=dtype, backend=backend, layout="contiguous")


EXTREMES = [-1e4, -710.0, -200.0, -89.0, -20.0, -1e-6, 0.0, 1e-6, 20.0, 89.0, 200.0, 710.0, 1e4]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_extreme_inputs_give_the_finite_values_of_pytorch(name, dtype, backend):
    make, theirs = ELEMENTWISE[name]
    values = np.array(EXTREMES, dtype)
    x, twin = Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    with use_backend(backend):
        output = apply(make(), x)
        output.sum().backward()
    expected = theirs(twin)
    expected.sum().backward()
    assert np.isfinite(output.data).all()
    # One element at a time, because the tolerance is relative to the largest number.
    for index in range(len(values)):
        assert_close(output.data[index], expected[index])
        assert_close(x.grad[index], twin.grad[index])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALONG_AXIS)
@pytest.mark.parametrize(
    "row", [[1e4, -1e4, 0], [-np.inf, 0, 1], [1e4, 1e4, 1e4 - 1], [-1e4, -1e4, -1e4]], ids=str
)
def test_softmax_of_extreme_rows_is_that_of_pytorch(row, name, dtype, backend):
    make, theirs = ALONG_AXIS[name]
    values = np.array([row], dtype)
    x, twin = Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    upstream = np.array([[0.3, -0.2, 0.5]], dtype)
    with use_backend(backend):
        output = apply(make(-1), x)
        output.backward(upstream)
    expected = theirs(twin, -1)
    expected.backward(torch.tensor(upstream))
    np.testing.assert_array_equal(np.isinf(output.data), np.isinf(expected.detach().numpy()))
    seen = np.isfinite(output.data)
    assert_close(output.data[seen], expected.detach().numpy()[seen])
    assert_close(x.grad, twin.grad)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_probabilities_add_up_to_one(dtype, backend, rng):
    x = Tensor(rng.normal(scale=30, size=(20, 50)).astype(dtype))
    with use_backend(backend):
        rows = apply(operations.Softmax(-1), x).data
    # a sum of 50 rounded numbers
    np.testing.assert_allclose(rows.sum(axis=-1), 1, rtol=0, atol=50 * np.finfo(dtype).eps)


@pytest.mark.parametrize("backend", BACKENDS)
def test_relu_is_flat_at_zero_and_below(backend):
    x = Tensor([-1.0, -0.0, 0.0, 2.0], requires_grad=True)
    with use_backend(backend):
        apply(operations.ReLU(), x).sum().backward()
    assert x.grad.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_forms_of_gelu_agree_to_a_thousandth(dtype, backend):
    # Hendrycks and Gimpel give the tanh form as an approximation; its largest error is 4.8e-4.
    x = Tensor(np.linspace(-6, 6, 301, dtype=dtype))
    with use_backend(backend):
        difference = apply(operations.GELU("tanh"), x).data - apply(operations.GELU("none"), x).data
    assert 1e-5 < np.abs(difference).max() < 5e-4


# Normalization

NORMALIZATION_ROWS = [(5,), (3, 7), (2, 3, 5), (2, 1, 3, 4), (0, 5)]
IMAGES = [(4, 3, 5, 5), (2, 1, 3, 4), (3, 2, 1, 1), (1, 3, 2, 1)]
EPS = 1e-5


def normalization_cases():
    for shape in NORMALIZATION_ROWS:
        width = shape[-1]
        yield Case(
            f"layer norm {shape}",
            lambda x, w, b: apply(operations.LayerNorm(EPS), x, w, b),
            lambda x, w, b: torch.nn.functional.layer_norm(x, (x.shape[-1],), w, b, EPS),
            (shape, (width,), (width,)),
            terms=2 * math.prod(shape),
        )
        yield Case(
            f"rms norm {shape}",
            lambda x, w: apply(operations.RMSNorm(EPS), x, w),
            lambda x, w: torch.nn.functional.rms_norm(x, (x.shape[-1],), w, EPS),
            (shape, (width,)),
            terms=2 * math.prod(shape),
        )
    for shape in IMAGES:
        yield Case(
            f"batch norm {shape}",
            lambda x, w, b: apply(operations.BatchNorm(EPS), x, w, b),
            lambda x, w, b: torch.nn.functional.batch_norm(
                x, None, None, w, b, training=True, eps=EPS
            ),
            (shape, (shape[1],), (shape[1],)),
            terms=2 * math.prod(shape),
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_norm_leaves_the_statistics_of_the_batch(dtype, backend, rng):
    x = rng.normal(3, 2, size=(6, 3, 4, 5)).astype(dtype)
    operation = operations.BatchNorm(EPS)
    with use_backend(backend):
        apply(operation, Tensor(x), Tensor(np.ones(3, dtype)), Tensor(np.zeros(3, dtype)))
    exact = x.astype(np.float64)
    assert_close(operation.mean, exact.mean(axis=(0, 2, 3)).astype(dtype), terms=120)
    assert_close(operation.variance, exact.var(axis=(0, 2, 3)).astype(dtype), terms=120)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [operations.LayerNorm, operations.BatchNorm])
def test_constant_input_gives_the_bias_and_finite_gradients(kind, dtype, backend):
    x = Tensor(np.full((4, 3, 2, 3), 7, dtype), requires_grad=True)
    weight = Tensor(np.full(3, 2, dtype), requires_grad=True)
    bias = Tensor(np.array([1, 2, 3], dtype), requires_grad=True)
    with use_backend(backend):
        output = apply(kind(EPS), x, weight, bias)
        output.backward(np.random.default_rng(7).uniform(-1, 1, x.shape))
    spread = np.ones(x.shape, dtype)
    shape = (3,) if kind is operations.LayerNorm else (3, 1, 1)
    np.testing.assert_array_equal(output.data, spread * bias.data.reshape(shape))
    assert np.isfinite(x.grad).all()
    assert not weight.grad.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_large_offset_does_not_drown_the_variance(backend, rng):
    # float32 holds 1000 + noise to 1000 eps = 6e-5; x^2 - mean^2 would lose all but two digits
    x = (1000 + rng.normal(size=(2, 64))).astype(np.float32)
    exact = x.astype(np.float64) - x.astype(np.float64).mean(axis=-1, keepdims=True)
    exact /= np.sqrt((exact**2).mean(axis=-1, keepdims=True) + EPS)
    with use_backend(backend):
        ones, zeros = Tensor(np.ones(64, np.float32)), Tensor(np.zeros(64, np.float32))
        output = apply(operations.LayerNorm(EPS), Tensor(x), ones, zeros)
    np.testing.assert_allclose(output.data, exact, rtol=0, atol=4 * 1000 * np.finfo(np.float32).eps)


# Convolution

PLAIN = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
# name -> (shape of the images, shape of the weights, settings)
CONVOLUTIONS = {
    "plain": ((2, 3, 6, 5), (4, 3, 3, 3), {}),
    "stride": ((2, 2, 7, 6), (3, 2, 3, 3), {"stride": (2, 3)}),
    "stride that leaves a rest": ((1, 2, 8, 8), (3, 2, 3, 3), {"stride": (3, 3)}),
    "stride beyond the kernel": ((1, 2, 9, 9), (3, 2, 2, 2), {"stride": (4, 3)}),
    "padding": ((2, 2, 4, 5), (3, 2, 3, 3), {"padding": (1, 2)}),
    "padding beyond the kernel": ((1, 1, 2, 2), (1, 1, 2, 2), {"padding": (3, 3)}),
    "dilation": ((2, 2, 8, 7), (3, 2, 3, 3), {"dilation": (2, 3)}),
    "everything": (
        (2, 4, 9, 8),
        (6, 2, 3, 2),
        {"stride": (2, 1), "padding": (2, 1), "dilation": (2, 2), "groups": 2},
    ),
    "rectangular kernel": ((2, 2, 6, 7), (3, 2, 1, 4), {}),
    "tall kernel": ((2, 2, 6, 3), (3, 2, 5, 1), {"padding": (1, 0)}),
    "groups": ((2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": ((2, 3, 5, 4), (3, 1, 3, 3), {"groups": 3, "padding": (1, 1)}),
    "depthwise with two results": ((1, 3, 5, 4), (6, 1, 3, 3), {"groups": 3}),
    "one by one": ((2, 5, 4, 3), (2, 5, 1, 1), {}),
    "one by one with stride": ((2, 5, 4, 5), (2, 5, 1, 1), {"stride": (2, 2)}),
    "one by one with groups": ((2, 4, 3, 3), (4, 2, 1, 1), {"groups": 2}),
    "kernel of the image's size": ((3, 2, 4, 5), (3, 2, 4, 5), {}),
    "unit image": ((2, 3, 1, 1), (4, 3, 1, 1), {}),
    "unit image with padding": ((2, 3, 1, 1), (4, 3, 3, 3), {"padding": (1, 1)}),
    "one channel": ((1, 1, 5, 5), (1, 1, 2, 2), {}),
    "no examples": ((0, 3, 5, 5), (4, 3, 3, 3), {"padding": (1, 1)}),
    "no examples with groups": ((0, 4, 5, 5), (4, 2, 1, 1), {"groups": 2}),
}
# name -> (shape of the images, kernel, stride, padding)
POOLS = {
    "plain": ((2, 3, 4, 6), (2, 2), (2, 2), (0, 0)),
    "rest": ((2, 3, 5, 7), (2, 2), (2, 2), (0, 0)),
    "overlap": ((2, 2, 6, 5), (3, 3), (1, 1), (0, 0)),
    "overlap and padding": ((2, 2, 5, 5), (3, 3), (2, 2), (1, 1)),
    "rectangular": ((2, 2, 6, 7), (2, 3), (1, 2), (1, 0)),
    "gaps": ((1, 2, 7, 7), (2, 2), (3, 3), (0, 0)),
    "unit window": ((1, 2, 3, 3), (1, 1), (1, 1), (0, 0)),
    "unit window with stride": ((1, 2, 4, 5), (1, 1), (2, 2), (0, 0)),
    "whole image": ((3, 2, 3, 4), (3, 4), (3, 4), (0, 0)),
    "unit image": ((2, 3, 1, 1), (1, 1), (1, 1), (0, 0)),
    "unit image with padding": ((2, 3, 1, 1), (2, 2), (1, 1), (1, 1)),
    "no examples": ((0, 2, 4, 4), (2, 2), (2, 2), (1, 1)),
}


def convolve(settings):
    values = PLAIN | settings
    return lambda *inputs: apply(operations.Conv2d(**values), *inputs)


def convolve_in_torch(settings):
    return lambda *inputs: torch.nn.functional.conv2d(*inputs, **settings)


def convolution_cases():
    for name, (images, weights, settings) in CONVOLUTIONS.items():
        for bias in ([(weights[0],)], []):
            yield Case(
                f"conv2d: {name}{'' if bias else ', no bias'}",
                convolve(settings),
                convolve_in_torch(settings),
                (images, weights, *bias),
                terms=math.prod(images) + math.prod(weights),
            )
    for name, (shape, *window) in POOLS.items():
        yield Case(
            f"max pool: {name}",
            lambda x, window=window: apply(operations.MaxPool2d(*window), x),
            lambda x, window=window: torch.nn.functional.max_pool2d(x, *window),
            (shape,),
            terms=9,
        )
        yield Case(
            f"average pool: {name}",
            lambda x, window=window: apply(operations.AvgPool2d(*window), x),
            lambda x, window=window: torch.nn.functional.avg_pool2d(x, *window),
            (shape,),
            terms=12,
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_larger_than_any_cache_is_convolved_to_the_end(dtype, backend):
    # 16 x 9 x 20 x 20 taps are 230 kB an image in float32, 2.5 MB for the batch: whatever a
    # backend takes as a piece, there are several or a short last one.
    case = Case("big", convolve({}), convolve_in_torch({}), ((11, 16, 22, 22), (4, 16, 3, 3)), 5000)
    check_against_torch(case, dtype=dtype, backend=backend, layout="contiguous")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", POOLS)
def test_ties_of_max_pooling_go_where_pytorch_sends_them(name, dtype, backend):
    shape, *window = POOLS[name]
    # Two values only, so that most windows have ties; and windows that are all alike.
    values = np.random.default_rng(5).integers(0, 2, shape).astype(dtype)
    for images in (values, np.zeros_like(values), -values):
        x, twin = Tensor(images, requires_grad=True), torch.tensor(images, requires_grad=True)
        expected = torch.nn.functional.max_pool2d(twin, *window)
        upstream = np.random.default_rng(7).uniform(1, 2, tuple(expected.shape)).astype(dtype)
        expected.backward(torch.tensor(upstream))
        with use_backend(backend):
            apply(operations.MaxPool2d(*window), x).backward(upstream)
        assert_close(x.grad, twin.grad, terms=9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_of_equals_gets_the_gradient(backend):
    x = Tensor(np.zeros((1, 1, 2, 2)), requires_grad=True)
    with use_backend(backend):
        apply(operations.MaxPool2d((2, 2), (2, 2), (0, 0)), x).sum().backward()
    assert x.grad.tolist() == [[[[1, 0], [0, 0]]]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_never_wins_a_maximum(backend):
    x = Tensor(np.full((1, 1, 2, 2), -5.0), requires_grad=True)
    with use_backend(backend):
        output = apply(operations.MaxPool2d((2, 2), (1, 1), (1, 1)), x)
        output.sum().backward()
    assert (output.data == -5).all()
    assert x.grad.sum() == output.size


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_need_no_gradient_get_none(backend):
    x, weight = Tensor(np.ones((1, 1, 3, 3))), Tensor(np.ones((1, 1, 2, 2)), requires_grad=True)
    with use_backend(backend):
        convolve({})(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad.tolist() == [[[[4, 4], [4, 4]]]]


# Losses

LOSS_BINARY = {
    "probabilities": (
        operations.BinaryCrossEntropy,
        lambda x, targets: torch.nn.functional.binary_cross_entropy(x, targets, reduction="none"),
        (0.05, 0.95),
    ),
    "logits": (
        operations.BinaryCrossEntropyWithLogits,
        lambda x, targets: torch.nn.functional.binary_cross_entropy_with_logits(
            x, targets, reduction="none"
        ),
        (-4, 4),
    ),
}


def class_loss(targets):
    return lambda logits: apply(operations.CrossEntropy(targets), logits)


def class_loss_in_torch(targets):
    return lambda logits: torch.nn.functional.cross_entropy(
        logits, torch.tensor(targets), reduction="none"
    )


def loss_cases():
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
    for name, (kind, theirs, between) in LOSS_BINARY.items():
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
        values = apply(operations.BinaryCrossEntropy(targets), x)
        values.sum().backward()
    expected = LOSS_BINARY["probabilities"][1](twin, torch.tensor(targets))
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
        values = apply(operations.BinaryCrossEntropyWithLogits(targets), x)
        values.sum().backward()
    expected = LOSS_BINARY["logits"][1](twin, torch.tensor(targets))
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


CASES = [
    *elementwise_cases(),
    *reduction_cases(),
    *shaping_cases(),
    *product_cases(),
    *activation_cases(),
    *normalization_cases(),
    *convolution_cases(),
    *loss_cases(),
]
FEW_ELEMENTS = 500
"""Central differences call an operation twice for each element of its inputs."""


@every_way
@each(CASES)
def test_values_and_gradients_are_those_of_pytorch(case, dtype, backend, layout):
    check_against_torch(case, dtype=dtype, backend=backend, layout=layout)


@each(case for case in CASES if sum(map(math.prod, case.shapes)) < FEW_ELEMENTS)
def test_gradients_are_central_differences(case):
    check_central_differences(case, backend="numpy")


def test_every_operation_has_a_case():
    check_every_operation_has_a_case(operations, CASES)


# What every operation is


class Double(Operation):
    def forward(self, x):
        self.saved = x
        return 2 * x

    def backward(self, grad):
        return (2 * grad,)


def test_an_operation_of_ones_own_needs_only_its_two_directions():
    x = Tensor([1.0, 2.0], requires_grad=True)
    doubled = apply(Double(), x)
    doubled.sum().backward()
    assert doubled.data.tolist() == [2, 4]
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_an_operation_without_a_direction_says_so(direction):
    with pytest.raises(NotImplementedError):
        getattr(Operation(), direction)(np.ones(2))


def test_an_operation_wants_gradients_only_for_inputs_that_need_them():
    operation = Double()
    operation.inputs = (Tensor([1.0]), Tensor([1.0], requires_grad=True))
    assert [operation.wants(position) for position in range(3)] == [False, True, False]


def test_a_freed_operation_holds_nothing_and_says_what_to_do():
    x = Tensor([1.0], requires_grad=True)
    operation = apply(Double(), x).creator
    operation.check_not_freed()
    operation.free()
    assert (operation.inputs, operation.saved) == ((), None)
    with pytest.raises(GraphError, match=r"Double was freed.*retain_graph=True"):
        operation.check_not_freed()


def test_operations_know_whether_somebody_will_ask_for_their_derivative():
    followed, ignored = Double(), Double()
    apply(followed, Tensor([1.0], requires_grad=True))
    apply(ignored, Tensor([1.0]))
    assert followed.tracked
    assert not ignored.tracked


def test_the_graph_is_the_operations_and_their_inputs():
    x = Tensor([1.0], requires_grad=True)
    names = [type(operation).__name__ for operation in operations_behind((x * x + x).sum())]
    assert sorted(names) == ["Add", "Multiply", "Sum"]


@given(st.lists(st.booleans(), min_size=3, max_size=3), st.integers(0, 3))
def test_sum_to_shape_undoes_broadcasting(is_repeated, missing):
    full = (2, 3, 4)
    shape = tuple(1 if one else n for one, n in zip(is_repeated, full, strict=True))[missing:]
    total = sum_to_shape(np.ones(full), shape)
    assert total.shape == shape
    # Each element was repeated as often as the array became larger.
    assert (total == np.prod(full) // np.prod(shape, dtype=int)).all()


def test_sum_to_the_same_shape_is_the_array_itself():
    array = np.ones((2, 3))
    assert sum_to_shape(array, (2, 3)) is array


def test_a_sum_over_nothing_is_zero():
    assert sum_to_shape(np.ones((0, 3)), (1, 3)).tolist() == [[0, 0, 0]]
