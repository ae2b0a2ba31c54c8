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
    each,
    every_way,
    torch,
)

from tinytorch.core import operations as shaping
from tinytorch.core.dispatch import use_backend
from tinytorch.core.tensor import Tensor, apply, concatenate, stack
from tinytorch.errors import ShapeError

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
BROADCASTS = [
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
    return lambda table: apply(shaping.Embedding(ids), table)


def look_up_in_torch(ids):
    return lambda table: torch.nn.functional.embedding(torch.tensor(ids.astype(np.int64)), table)


def in_torch(index):
    """Give an index with tensors in place of arrays."""
    if isinstance(index, tuple):
        return tuple(in_torch(part) for part in index)
    return torch.tensor(index) if isinstance(index, np.ndarray) else index


def make_cases():
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
    for before, after in BROADCASTS:
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


CASES = list(make_cases())


@every_way
@each(CASES)
def test_values_and_gradients_are_those_of_pytorch(case, dtype, backend, layout):
    check_against_torch(case, dtype=dtype, backend=backend, layout=layout)


@each(CASES)
def test_gradients_are_central_differences(case):
    check_central_differences(case, backend="numpy")


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
