import numpy as np
import pytest
from compiled_checks import signatures_of
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import assert_close, laid_out, torch
from parts import require_part

require_part("numba")

from tinytorch.core.kernels import numpy_spatial, reference_spatial
from tinytorch.core.kernels.numba import convolution

PLAIN = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
SHAPES = [
    ((2, 3, 32, 32), (16, 3, 3, 3), PLAIN),  # rows of whole vectors
    ((2, 16, 16, 16), (33, 16, 3, 3), PLAIN),
    ((2, 5, 28, 28), (7, 5, 3, 3), PLAIN),  # rows whose last vectors overlap
    ((1, 20, 14, 14), (25, 20, 3, 3), PLAIN),  # vectors across rows
    ((3, 6, 9, 7), (11, 6, 1, 1), {**PLAIN, "padding": (0, 0)}),
    ((2, 6, 15, 18), (8, 3, 1, 1), {**PLAIN, "stride": (2, 3), "padding": (0, 0), "groups": 2}),
    ((2, 4, 40, 37), (6, 4, 5, 3), {**PLAIN, "stride": (2, 2), "padding": (2, 1)}),
    ((1, 3, 50, 51), (8, 3, 7, 7), {**PLAIN, "stride": (2, 2), "padding": (3, 3)}),
    ((2, 8, 20, 24), (8, 1, 3, 3), {**PLAIN, "groups": 8}),
    ((2, 6, 33, 35), (12, 2, 3, 3), {**PLAIN, "dilation": (2, 3), "groups": 3}),
]


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


@st.composite
def convolutions(draw):
    """Draw shapes of images and weights with settings under which the window fits."""
    pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))
    groups = draw(st.integers(1, 3))
    channels, outputs = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 9))
    size = draw(st.tuples(st.integers(1, 9), st.integers(1, 40)))
    kernel, border = draw(pairs), draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    how = {"stride": draw(pairs), "padding": border, "dilation": draw(pairs)}
    if min(reference_spatial.output_size(size, kernel, *how.values())) < 1:
        kernel = (1, 1)
    images = (draw(st.integers(1, 3)), channels, *size)
    return images, (outputs, channels // groups, *kernel), {**how, "groups": groups}


@settings(max_examples=60)
@given(convolutions(), st.sampled_from(["contiguous", "transposed", "strided"]))
def test_any_convolution_and_its_derivatives_are_those_of_the_numpy_backend(case, layout):
    # which tests/core/backends/test_numpy_spatial.py holds against the reference
    images, weights, how = case
    rng = np.random.default_rng(20260)
    x, weight, bias = normal(rng, *images), normal(rng, *weights), normal(rng, weights[0])
    odd_x, odd_weight = laid_out(x, layout), laid_out(weight, layout)
    expected = numpy_spatial.conv2d(x, weight, bias, **how)
    terms = int(np.prod(weights)) + expected.size
    assert_close(convolution.conv2d(odd_x, odd_weight, bias, **how), expected, terms=terms)
    grad = normal(rng, *expected.shape)
    odd_grad = laid_out(grad, layout)
    by_input, by_weight = {"input_shape": images, **how}, {"weight_shape": weights, **how}
    assert_close(
        convolution.conv2d_backward_input(odd_grad, odd_weight, **by_input),
        numpy_spatial.conv2d_backward_input(grad, weight, **by_input),
        terms=terms,
    )
    assert_close(
        convolution.conv2d_backward_weight(odd_grad, odd_x, **by_weight),
        numpy_spatial.conv2d_backward_weight(grad, x, **by_weight),
        terms=terms,
    )


@pytest.mark.parametrize(("images", "weights", "how"), SHAPES)
def test_results_and_derivatives_are_those_of_pytorch_in_double_precision(
    images, weights, how, rng
):
    x, weight, bias = normal(rng, *images), normal(rng, *weights), normal(rng, weights[0])
    twins = [torch.tensor(array.astype(np.float64), requires_grad=True) for array in (x, weight)]
    truth = torch.nn.functional.conv2d(*twins, torch.tensor(bias.astype(np.float64)), **how)
    output = convolution.conv2d(x, weight, bias, **how)
    grad = normal(rng, *output.shape)
    by_x, by_weight = torch.autograd.grad(truth, twins, torch.tensor(grad.astype(np.float64)))
    results = [
        (output, truth, weight[0].size),
        (
            convolution.conv2d_backward_input(grad, weight, input_shape=images, **how),
            by_x,
            weight.size // how["groups"],
        ),
        (
            convolution.conv2d_backward_weight(grad, x, weight_shape=weights, **how),
            by_weight,
            output.size // weights[0],
        ),
    ]
    for computed, exact, terms in results:
        # Errors of a sum grow like the root of its length when they are independent; 8 sigma.
        bound = 8 * np.sqrt(terms) * np.finfo(np.float32).eps * max(1.0, np.sqrt(terms))
        np.testing.assert_allclose(computed, exact.detach().numpy(), rtol=0, atol=bound)
        assert computed.dtype == np.float32


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("width", [6, 20, 32])
def test_what_is_not_finite_reaches_what_it_reaches_in_the_reference(value, width, rng):
    x, weight = normal(rng, 2, 3, 5, width), normal(rng, 4, 3, 3, 3)
    grad = normal(rng, 2, 4, 5, width)
    by_input, by_weight = {"input_shape": x.shape, **PLAIN}, {"weight_shape": (4, 3, 3, 3), **PLAIN}
    calls = [
        ("conv2d", (x, weight), PLAIN),
        ("conv2d_backward_input", (grad, weight), by_input),
        ("conv2d_backward_weight", (grad, x), by_weight),
    ]
    for kind, arrays, how in calls:
        for spoiled in (0, 1):
            arguments = [array.copy() for array in arrays]
            arguments[spoiled][1, 2, 1, -1] = value
            with np.errstate(invalid="ignore"):
                computed = getattr(convolution, kind)(*arguments, **how)
                expected = getattr(reference_spatial, kind)(*arguments, **how)
            np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-3)


def test_a_derivative_by_the_weights_is_the_same_every_time(rng):
    x, grad = normal(rng, 9, 3, 20, 20), normal(rng, 9, 5, 20, 20)
    results = [
        convolution.conv2d_backward_weight(grad, x, weight_shape=(5, 3, 3, 3), **PLAIN)
        for _ in range(3)
    ]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_an_image_is_convolved_alone_as_it_is_in_a_batch(rng):
    x, weight = normal(rng, 5, 3, 17, 19), normal(rng, 13, 3, 3, 3)
    together = convolution.conv2d(x, weight, **PLAIN)
    alone = [convolution.conv2d(image[None], weight, **PLAIN) for image in x]
    assert_close(together, np.concatenate(alone), terms=27)


def test_read_only_arguments_are_accepted_and_others_stay_writable(rng):
    x, weight, bias = normal(rng, 1, 2, 6, 20), normal(rng, 3, 2, 3, 3), normal(rng, 3)
    expected = convolution.conv2d(x, weight, bias, **PLAIN)
    assert all(array.flags.writeable for array in (x, weight, bias, expected))
    for array in (x, weight, bias):
        array.flags.writeable = False
    np.testing.assert_array_equal(convolution.conv2d(x, weight, bias, **PLAIN), expected)


def test_shapes_that_do_not_fit_fail_as_they_do_with_numpy(rng):
    x, weight = normal(rng, 1, 3, 8, 8), normal(rng, 4, 2, 3, 3)
    with pytest.raises(ValueError, match="mismatch"):
        convolution.conv2d(x, weight, **PLAIN)


def test_what_is_not_float32_is_left_to_numpy(rng):
    x, weight = rng.normal(size=(1, 2, 6, 6)), rng.normal(size=(3, 2, 3, 3))
    np.testing.assert_array_equal(
        convolution.conv2d(x, weight, **PLAIN), numpy_spatial.conv2d(x, weight, **PLAIN)
    )


def test_each_loop_is_compiled_for_one_set_of_types(rng):
    x, weight, bias = normal(rng, 2, 3, 8, 16), normal(rng, 4, 3, 1, 1), normal(rng, 4)
    how = {**PLAIN, "padding": (0, 0)}
    for array in (x, weight, bias):
        convolution.conv2d(x, weight, bias, **how)
        array.flags.writeable = False
    assert max(signatures_of(convolution).values()) <= 1


def evenly_spread(rng, layout, *shape):
    """Draw an array whose flat view would be one of even steps, other than one element."""
    count = int(np.prod(shape))
    if layout == "repeated":  # as the gradient of a sum
        return np.broadcast_to(normal(rng, count)[0], shape)
    if layout == "flipped":
        return np.flip(normal(rng, *shape))
    return normal(rng, *shape[:-1], 2 * shape[-1])[..., ::2]


SPREAD = [
    ((2, 3, 4, 16), (8, 3, 1, 1), {**PLAIN, "padding": (0, 0)}),
    ((2, 1, 5, 20), (1, 1, 3, 3), PLAIN),
    ((1, 8, 4, 4), (16, 8, 1, 1), {**PLAIN, "padding": (0, 0)}),
]


@pytest.mark.parametrize("layout", ["repeated", "flipped", "with gaps"])
@pytest.mark.parametrize(("images", "weights", "how"), SPREAD)
def test_elements_at_even_distances_are_not_taken_for_neighbours(images, weights, how, layout, rng):
    grad_shape = (images[0], weights[0], *images[2:])
    x, weight, bias, grad = (
        evenly_spread(rng, layout, *shape) for shape in (images, weights, weights[:1], grad_shape)
    )
    calls = [
        ("conv2d", (x, weight, bias), how),
        ("conv2d_backward_input", (grad, weight), {"input_shape": images, **how}),
        ("conv2d_backward_weight", (grad, x), {"weight_shape": weights, **how}),
    ]
    for kind, arrays, settings_of_call in calls:
        computed = getattr(convolution, kind)(*arrays, **settings_of_call)
        expected = getattr(reference_spatial, kind)(*arrays, **settings_of_call)
        assert_close(computed, expected, terms=grad.size)


@pytest.mark.parametrize(("kernel", "border"), [(1, 19), (1, 20), (2, 20)])
def test_lanes_that_end_where_neighbours_would_need_not_be_neighbours(kernel, border, rng):
    how = {**PLAIN, "stride": (3, 3), "padding": (border, border), "input_shape": (1, 1, 5, 5)}
    weight, side = normal(rng, 1, 1, kernel, kernel), (5 + 2 * border - kernel) // 3 + 1
    grad = normal(rng, 1, 1, side, side)
    computed = convolution.conv2d_backward_input(grad, weight, **how)
    expected = reference_spatial.conv2d_backward_input(grad, weight, **how)
    assert_close(computed, expected, terms=kernel * kernel)
