import math

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

from tinytorch.core import operations as normalization
from tinytorch.core.dispatch import use_backend
from tinytorch.core.tensor import Tensor, apply

ROWS = [(5,), (3, 7), (2, 3, 5), (2, 1, 3, 4), (0, 5)]
IMAGES = [(4, 3, 5, 5), (2, 1, 3, 4), (3, 2, 1, 1), (1, 3, 2, 1)]
EPS = 1e-5


def make_cases():
    for shape in ROWS:
        width = shape[-1]
        yield Case(
            f"layer norm {shape}",
            lambda x, w, b: apply(normalization.LayerNorm(EPS), x, w, b),
            lambda x, w, b: torch.nn.functional.layer_norm(x, (x.shape[-1],), w, b, EPS),
            (shape, (width,), (width,)),
            terms=2 * math.prod(shape),
        )
    for shape in IMAGES:
        yield Case(
            f"batch norm {shape}",
            lambda x, w, b: apply(normalization.BatchNorm(EPS), x, w, b),
            lambda x, w, b: torch.nn.functional.batch_norm(
                x, None, None, w, b, training=True, eps=EPS
            ),
            (shape, (shape[1],), (shape[1],)),
            terms=2 * math.prod(shape),
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
def test_batch_norm_leaves_the_statistics_of_the_batch(dtype, backend, rng):
    x = rng.normal(3, 2, size=(6, 3, 4, 5)).astype(dtype)
    operation = normalization.BatchNorm(EPS)
    with use_backend(backend):
        apply(operation, Tensor(x), Tensor(np.ones(3, dtype)), Tensor(np.zeros(3, dtype)))
    exact = x.astype(np.float64)
    assert_close(operation.mean, exact.mean(axis=(0, 2, 3)).astype(dtype), terms=120)
    assert_close(operation.variance, exact.var(axis=(0, 2, 3)).astype(dtype), terms=120)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [normalization.LayerNorm, normalization.BatchNorm])
def test_constant_input_gives_the_bias_and_finite_gradients(kind, dtype, backend):
    x = Tensor(np.full((4, 3, 2, 3), 7, dtype), requires_grad=True)
    weight = Tensor(np.full(3, 2, dtype), requires_grad=True)
    bias = Tensor(np.array([1, 2, 3], dtype), requires_grad=True)
    with use_backend(backend):
        output = apply(kind(EPS), x, weight, bias)
        output.backward(np.random.default_rng(7).uniform(-1, 1, x.shape))
    spread = np.ones(x.shape, dtype)
    shape = (3,) if kind is normalization.LayerNorm else (3, 1, 1)
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
        output = apply(normalization.LayerNorm(EPS), Tensor(x), ones, zeros)
    np.testing.assert_allclose(output.data, exact, rtol=0, atol=4 * 1000 * np.finfo(np.float32).eps)
