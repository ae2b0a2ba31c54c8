import numpy as np
import pytest
from compiled_checks import check_every_call, check_like_reference, signatures_of
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_calls import Call
from oracles import assert_close, torch
from parts import require_part

require_part("numba")

from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.kernels import NUMPY, REFERENCE
from tinytorch.core.kernels.numba import norms
from tinytorch.core.kernels.numba.norms import KERNELS
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import LayerNorm

EPS = np.finfo(np.float32).eps
EPSILON = {"eps": 1e-5}
BY_ROWS = ["layer_norm", "add_layer_norm", "layer_norm_backward"]


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def call_of(kind, rng, count, width):
    """Give a call of a kind on so many rows of such a width."""
    x, y = normal(rng, count, width), normal(rng, count, width)
    weight, bias = normal(rng, width), normal(rng, width)
    mean, inverse = normal(rng, count, 1), rng.uniform(0.5, 2, (count, 1)).astype(np.float32)
    return {
        "layer_norm": Call((x, weight, bias), EPSILON, 4 * width),
        "add_layer_norm": Call((x, y, weight, bias), EPSILON, 4 * width),
        "layer_norm_backward": Call((x, y, weight, mean, inverse), {}, width + count),
    }[kind]


@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_computes_what_the_reference_computes(kind):
    check_every_call(KERNELS, kind)


@pytest.mark.parametrize("kind", BY_ROWS)
@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 9), width=st.integers(2, 150), seed=st.integers(0, 999))
def test_rows_of_any_length_are_exact(kind, count, width, seed):
    check_like_reference(KERNELS, kind, call_of(kind, np.random.default_rng(seed), count, width))


@pytest.mark.parametrize(("count", "width"), [(1, 50_257), (333, 257), (2049, 31)])
@pytest.mark.parametrize("kind", BY_ROWS)
def test_many_and_long_rows_are_exact(kind, count, width, rng):
    check_like_reference(KERNELS, kind, call_of(kind, rng, count, width))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 3, 1, 1), (2, 7, 5, 3), (16, 5, 31, 33)])
def test_images_of_any_size_are_exact(shape, rng):
    x, y, (weight, bias) = normal(rng, *shape), normal(rng, *shape), normal(rng, 2, shape[1])
    inverse = rng.uniform(0.5, 2, shape[1]).astype(np.float32)
    terms = x.size // shape[1]
    check_like_reference(KERNELS, "batch_norm", Call((x, weight, bias), EPSILON, terms + 4))
    check_like_reference(KERNELS, "batch_norm_backward", Call((x, weight, y, inverse), {}, terms))


@pytest.mark.parametrize("offset", [1e3, -1e5])
def test_a_large_mean_does_not_swallow_the_deviation(offset, rng):
    x = normal(rng, 20, 768) + np.float32(offset)
    weight, bias = np.ones(768, np.float32), np.zeros(768, np.float32)
    exact = REFERENCE.kernels["layer_norm"](x.astype(np.float64), weight, bias, eps=1e-5)[0]
    # the mean is rounded to its last place, and moves all elements by that
    bound = 16 * EPS * abs(offset)
    output, mean, _ = KERNELS["layer_norm"](x, weight, bias, eps=1e-5)
    np.testing.assert_allclose(output, exact, rtol=0, atol=bound)
    np.testing.assert_allclose(mean[:, 0], x.mean(axis=1, dtype=np.float64), atol=bound)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_number_that_is_not_finite_spoils_only_its_row(number, rng):
    x, weight = normal(rng, 300, 200), normal(rng, 200)
    x[7, 13] = number
    for output in (
        KERNELS["layer_norm"](x, weight, weight, eps=1e-5)[0],
        KERNELS["add_layer_norm"](x, np.zeros_like(x), weight, weight, eps=1e-5)[1],
    ):
        assert np.isnan(output[7]).all()
        assert np.isfinite(np.delete(output, 7, axis=0)).all()


def test_a_constant_row_becomes_the_bias(rng):
    weight, bias = normal(rng, 2, 70)
    x = np.full((3, 70), 2.5, np.float32)
    output, mean, _ = KERNELS["layer_norm"](x, weight, bias, eps=1e-5)
    np.testing.assert_array_equal(output, np.broadcast_to(bias, (3, 70)))
    assert (mean == 2.5).all()


def test_adding_and_normalising_is_both_in_one(rng):
    x, residual = normal(rng, 2, 40, 9, 65)
    weight, bias = normal(rng, 2, 65)
    total, output = KERNELS["add_layer_norm"](x, residual, weight, bias, eps=1e-5)
    np.testing.assert_array_equal(total, x + residual)
    expected = KERNELS["layer_norm"](total, weight, bias, eps=1e-5)[0]
    assert_close(output, expected, terms=65)


@pytest.mark.parametrize("kind", ["layer_norm_backward", "batch_norm_backward", "batch_norm"])
def test_results_own_their_memory(kind, rng):
    if kind == "layer_norm_backward":
        call = call_of(kind, rng, 5, 7)
    else:
        x, vector = normal(rng, 2, 3, 4, 5), normal(rng, 3)
        backward = kind.endswith("backward")
        call = Call((x, vector, x, vector) if backward else (x, vector, vector))
        call = call if backward else Call(call.arguments, EPSILON)
    # autograd copies a gradient that is a view of something larger
    results = KERNELS[kind](*call.arguments, **call.settings)
    assert all(result.base is None for result in results)


def test_the_gradients_of_weights_are_the_same_every_time(rng):
    call = call_of("layer_norm_backward", rng, 3000, 64)
    first, second = (KERNELS["layer_norm_backward"](*call.arguments) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_both_versions_of_a_loop_give_the_same(rng):
    call = call_of("layer_norm_backward", rng, 301, 64)
    grad, x, weight, mean, inverse = call.arguments
    results = []
    for version in (norms._layer_norm_backward.serial, norms._layer_norm_backward.parallel):
        out, sums = np.empty_like(grad), np.zeros((3, 2, 64), np.float32)
        version(grad, x, weight, mean.ravel(), inverse.ravel(), out, sums)
        results.append((out, sums))
    for serial, parallel in zip(*results, strict=True):
        assert_close(serial, parallel, terms=301)


def test_a_layer_trains_as_in_pytorch(rng):
    x, grad = normal(rng, 2, 4, 6, 33)
    layer, twin = LayerNorm(33), torch.nn.LayerNorm(33)
    tensor, twin_x = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    expected = twin(twin_x)
    expected.backward(torch.tensor(grad))
    with use_backend(NUMPY.extended("rows", KERNELS)):
        output = layer(tensor)
        output.backward(grad)
        with no_grad():
            np.testing.assert_array_equal(layer(tensor).data, output.data)
    assert_close(output.data, expected, terms=33)
    assert_close(tensor.grad, twin_x.grad, terms=33)
    for ours, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        assert_close(ours.grad, theirs.grad, terms=33)


def test_each_loop_is_compiled_for_one_set_of_types():
    assert set(signatures_of(norms).values()) <= {0, 1}
