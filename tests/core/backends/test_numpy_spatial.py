import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import DTYPES, assert_close, laid_out

from tinytorch.core.kernels import numpy_spatial as spatial
from tinytorch.core.kernels import reference_spatial as reference

LAYOUTS = ("contiguous", "transposed", "strided")
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
borders = st.tuples(st.integers(0, 2), st.integers(0, 2))
sizes = st.tuples(st.integers(1, 7), st.integers(1, 7))


@st.composite
def convolutions(draw):
    """Draw shapes of images and weights with settings under which the window fits."""
    groups = draw(st.integers(1, 3))
    channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    size, kernel = draw(sizes), draw(pairs)
    settings = {"stride": draw(pairs), "padding": draw(borders), "dilation": draw(pairs)}
    fits = reference.output_size(size, kernel, *settings.values())
    if min(fits) < 1:
        kernel = (1, 1)
    images = (draw(st.integers(1, 3)), channels, *size)
    return images, (outputs, channels // groups, *kernel), {**settings, "groups": groups}


@given(convolutions(), st.sampled_from(DTYPES), st.sampled_from(LAYOUTS))
def test_any_convolution_and_its_derivatives_are_those_of_the_reference(case, dtype, layout):
    images, weights, settings = case
    rng = np.random.default_rng(20260)
    x, weight, bias = (rng.normal(size=s).astype(dtype) for s in (images, weights, weights[0]))
    odd_x, odd_weight = laid_out(x, layout), laid_out(weight, layout)
    expected = reference.conv2d(x, weight, bias, **settings)
    terms = int(np.prod(weights)) + expected.size
    assert_close(spatial.conv2d(odd_x, odd_weight, bias, **settings), expected, terms=terms)
    grad = rng.normal(size=expected.shape).astype(dtype)
    odd_grad = laid_out(grad, layout)
    by_input, by_weight = {"input_shape": images, **settings}, {"weight_shape": weights, **settings}
    assert_close(
        spatial.conv2d_backward_input(odd_grad, odd_weight, **by_input),
        reference.conv2d_backward_input(grad, weight, **by_input),
        terms=terms,
    )
    assert_close(
        spatial.conv2d_backward_weight(odd_grad, odd_x, **by_weight),
        reference.conv2d_backward_weight(grad, x, **by_weight),
        terms=terms,
    )


@st.composite
def pools(draw):
    kernel = draw(pairs)
    padding = tuple(draw(st.integers(0, taps // 2)) for taps in kernel)
    size = tuple(draw(st.integers(taps, 8)) for taps in kernel)
    images = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *size)
    return images, {"kernel": kernel, "stride": draw(pairs), "padding": padding}


@given(pools(), st.booleans(), st.sampled_from(DTYPES), st.sampled_from(LAYOUTS))
def test_any_pool_and_its_derivative_are_those_of_the_reference(case, has_ties, dtype, layout):
    images, window = case
    rng = np.random.default_rng(20260)
    x = (rng.integers(0, 2, images) if has_ties else rng.normal(size=images)).astype(dtype)
    odd = laid_out(x, layout)
    largest = reference.max_pool2d(x, **window)
    np.testing.assert_array_equal(spatial.max_pool2d(odd, **window), largest)
    assert_close(spatial.avg_pool2d(odd, **window), reference.avg_pool2d(x, **window), terms=9)
    grad = rng.normal(size=largest.shape).astype(dtype)
    odd_grad = laid_out(grad, layout)
    assert_close(
        spatial.max_pool2d_backward(odd_grad, odd, laid_out(largest, layout), **window),
        reference.max_pool2d_backward(grad, x, largest, **window),
        terms=9,
    )
    assert_close(
        spatial.avg_pool2d_backward(odd_grad, input_shape=images, **window),
        reference.avg_pool2d_backward(grad, input_shape=images, **window),
        terms=9,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_norm_is_that_of_the_reference_also_far_from_zero(dtype, rng):
    x = (100 + rng.normal(size=(5, 3, 6, 4))).astype(dtype)
    weight, bias = rng.normal(size=(2, 3)).astype(dtype)
    computed = spatial.batch_norm(x, weight, bias, eps=1e-5)
    expected = reference.batch_norm(x, weight, bias, eps=1e-5)
    # What is left after the mean is taken away carries the rounding of 100, on a scale of 1.
    for ours, theirs in zip(computed, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=100 * 120 * np.finfo(dtype).eps)


@pytest.mark.parametrize("batch", [1, 7])
def test_a_result_does_not_depend_on_the_images_beside_it(batch, rng):
    x = rng.normal(size=(batch, 3, 9, 8)).astype(np.float32)
    weight = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    settings = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    together = spatial.conv2d(x, weight, **settings)
    alone = np.concatenate([spatial.conv2d(image[None], weight, **settings) for image in x])
    assert_close(together, alone, terms=27)


def test_a_maximum_of_nothing_but_minus_infinity_is_minus_infinity():
    x = np.full((1, 1, 2, 2), -np.inf)
    window = {"kernel": (2, 2), "stride": (2, 2), "padding": (1, 1)}
    assert (spatial.max_pool2d(x, **window) == -np.inf).all()
