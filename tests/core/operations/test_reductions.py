import math

import numpy as np
import pytest
from oracles import (
    BACKENDS,
    Case,
    assert_close,
    check_against_torch,
    check_central_differences,
    each,
    every_way,
    torch,
)

from tinytorch.core.dispatch import use_backend
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ShapeError

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


def make_cases():
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


CASES = list(make_cases())


@every_way
@each(CASES)
def test_values_and_gradients_are_those_of_pytorch(case, dtype, backend, layout):
    check_against_torch(case, dtype=dtype, backend=backend, layout=layout)


@each(CASES)
def test_gradients_are_central_differences(case):
    check_central_differences(case, backend="numpy")


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
