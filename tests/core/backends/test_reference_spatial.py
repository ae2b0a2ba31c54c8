import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import assert_close
from parts import require_part

from tinytorch.core.kernels import reference_spatial as spatial

pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
PLAIN = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


def positions_that_fit(length, taps, step, pad, dilate):
    """Count where a window fits, by trying."""
    padded = length + 2 * pad
    return sum(1 for start in range(0, padded, step) if start + dilate * (taps - 1) < padded)


@given(sizes, pairs, pairs, st.tuples(st.integers(0, 3), st.integers(0, 3)), pairs)
def test_output_size_counts_the_positions_where_the_window_fits(
    size, kernel, stride, padding, dilation
):
    settings = list(zip(size, kernel, stride, padding, dilation, strict=True))
    counted = tuple(positions_that_fit(*numbers) for numbers in settings)
    computed = spatial.output_size(size, kernel, stride, padding, dilation)
    assert tuple(max(length, 0) for length in computed) == counted


@given(sizes, pairs, pairs, pairs)
def test_windows_are_as_many_as_the_output_and_have_the_size_of_the_kernel(
    size, kernel, stride, dilation
):
    image = np.arange(size[0] * size[1]).reshape(size)
    rows, columns = spatial.output_size(size, kernel, stride, (0, 0), dilation)
    seen = list(spatial.windows(size, kernel, stride, dilation))
    assert len(seen) == max(rows, 0) * max(columns, 0)
    for row, column, window in seen:
        assert image[window].shape == kernel
        assert image[window][0, 0] == image[row * stride[0], column * stride[1]]


@pytest.mark.parametrize("padding", [(0, 0), (1, 2), (3, 0)])
def test_unpadding_undoes_padding(padding, rng):
    x = rng.normal(size=(2, 3, 4, 5))
    padded = spatial.pad_image(x, padding, -1.0)
    assert padded.shape == (2, 3, 4 + 2 * padding[0], 5 + 2 * padding[1])
    assert (padded == -1).sum() == padded.size - x.size
    np.testing.assert_array_equal(spatial.unpad_image(padded, padding), x)


def test_convolution_is_the_correlation_of_scipy(rng):
    signal = require_part("scipy.signal")
    image, kernel = rng.normal(size=(7, 6)), rng.normal(size=(3, 2))
    result = spatial.conv2d(image[None, None], kernel[None, None], **PLAIN)
    assert_close(result[0, 0], signal.correlate2d(image, kernel, mode="valid"), terms=6)


@pytest.mark.parametrize(
    "settings",
    [
        PLAIN,
        PLAIN | {"stride": (2, 3), "padding": (1, 2)},
        PLAIN | {"dilation": (2, 1), "padding": (2, 0), "groups": 2},
    ],
    ids=str,
)
def test_the_derivatives_of_convolution_are_its_adjoints(settings, rng):
    x = rng.normal(size=(2, 4, 7, 6))
    weight = rng.normal(size=(6, 4 // settings["groups"], 3, 2))
    output = spatial.conv2d(x, weight, **settings)
    grad = rng.normal(size=output.shape)
    by_input = spatial.conv2d_backward_input(grad, weight, input_shape=x.shape, **settings)
    by_weight = spatial.conv2d_backward_weight(grad, x, weight_shape=weight.shape, **settings)
    # Convolution is linear in both, so <conv(x, w), g> = <x, back_x(g)> = <w, back_w(g)>.
    product = (output * grad).sum()
    bound = output.size * 24 * np.finfo(float).eps * np.abs(output).max() * np.abs(grad).max()
    assert abs((x * by_input).sum() - product) <= bound
    assert abs((weight * by_weight).sum() - product) <= bound


def test_groups_are_separate_convolutions(rng):
    x, weight = rng.normal(size=(2, 4, 5, 5)), rng.normal(size=(6, 2, 3, 3))
    grouped = spatial.conv2d(x, weight, **(PLAIN | {"groups": 2}))
    apart = [
        spatial.conv2d(x[:, :2], weight[:3], **PLAIN),
        spatial.conv2d(x[:, 2:], weight[3:], **PLAIN),
    ]
    assert_close(grouped, np.concatenate(apart, axis=1), terms=18)


def test_pooling_over_windows_that_do_not_overlap_is_a_reduction_over_axes(rng):
    x = rng.normal(size=(2, 3, 4, 6))
    window = {"kernel": (2, 3), "stride": (2, 3), "padding": (0, 0)}
    split = x.reshape(2, 3, 2, 2, 2, 3)
    np.testing.assert_array_equal(spatial.max_pool2d(x, **window), split.max(axis=(3, 5)))
    assert_close(spatial.avg_pool2d(x, **window), split.mean(axis=(3, 5)), terms=6)


def test_pooling_hands_all_of_a_gradient_back(rng):
    x, grad = rng.normal(size=(2, 3, 5, 5)), rng.normal(size=(2, 3, 3, 3))
    window = {"kernel": (3, 3), "stride": (1, 1), "padding": (0, 0)}
    largest = spatial.max_pool2d(x, **window)
    for back in (
        spatial.max_pool2d_backward(grad, x, largest, **window),
        spatial.avg_pool2d_backward(grad, input_shape=x.shape, **window),
    ):
        assert_close(back.sum(axis=(2, 3)), grad.sum(axis=(2, 3)), terms=81)


def test_normalised_channels_have_mean_zero_and_deviation_one(rng):
    x = rng.normal(5, 3, size=(4, 3, 5, 5))
    one, zero = np.ones(3), np.zeros(3)
    output, normalised, inverse, mean, variance = spatial.batch_norm(x, one, zero, eps=0.0)
    # sums of 100 numbers of the order of 1
    bound = 100 * np.finfo(float).eps
    np.testing.assert_allclose(output.mean(axis=(0, 2, 3)), 0, atol=bound)
    np.testing.assert_allclose(output.std(axis=(0, 2, 3)), 1, atol=bound)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(variance), rtol=bound)
    np.testing.assert_array_equal(normalised, output)
    np.testing.assert_array_equal(mean, x.mean(axis=(0, 2, 3)))
