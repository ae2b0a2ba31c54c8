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

from tinytorch.core import operations as activations
from tinytorch.core.dispatch import use_backend
from tinytorch.core.tensor import Tensor, apply

SHAPES = [(), (1,), (3, 5), (2, 1, 7), (0, 4)]
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
    "relu": (activations.ReLU, lambda x: torch.relu(x)),
    "sigmoid": (activations.Sigmoid, lambda x: torch.sigmoid(x)),
    "tanh": (activations.Tanh, lambda x: torch.tanh(x)),
    "gelu tanh": (
        lambda: activations.GELU("tanh"),
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "gelu erf": (lambda: activations.GELU("none"), lambda x: torch.nn.functional.gelu(x)),
}
ALONG_AXIS = {
    "softmax": (activations.Softmax, lambda x, axis: torch.softmax(x, axis)),
    "log softmax": (activations.LogSoftmax, lambda x, axis: torch.log_softmax(x, axis)),
}


def applied(make):
    return lambda x: apply(make(), x)


def make_cases():
    for name, (make, theirs) in ELEMENTWISE.items():
        for shape in SHAPES:
            yield Case(f"{name} {shape}", applied(make), theirs, (shape,), between=(-4, 4))
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
        rows = apply(activations.Softmax(-1), x).data
    # a sum of 50 rounded numbers
    np.testing.assert_allclose(rows.sum(axis=-1), 1, rtol=0, atol=50 * np.finfo(dtype).eps)


@pytest.mark.parametrize("backend", BACKENDS)
def test_relu_is_flat_at_zero_and_below(backend):
    x = Tensor([-1.0, -0.0, 0.0, 2.0], requires_grad=True)
    with use_backend(backend):
        apply(activations.ReLU(), x).sum().backward()
    assert x.grad.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_forms_of_gelu_agree_to_a_thousandth(dtype, backend):
    # Hendrycks and Gimpel give the tanh form as an approximation; its largest error is 4.8e-4.
    x = Tensor(np.linspace(-6, 6, 301, dtype=dtype))
    with use_backend(backend):
        difference = (
            apply(activations.GELU("tanh"), x).data - apply(activations.GELU("none"), x).data
        )
    assert 1e-5 < np.abs(difference).max() < 5e-4
