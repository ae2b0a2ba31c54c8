"""What INT8 convolutions mean: one step for an image, exact whole numbers, borders of zero."""

import numpy as np
import pytest
from int8_convolutions import (
    KINDS,
    SHAPES,
    SMALL,
    STATIC,
    WRONG,
    Shape,
    draw_layer,
    draw_weight,
    exact,
    packed,
    settings_of,
    wrong_call,
)
from oracles import assert_close, torch

from tinytorch.core.kernels import reference_quantized as int8
from tinytorch.core.kernels.reference import REFERENCE
from tinytorch.errors import SettingError


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_numbers_are_convolved_as_by_pytorch(shape, rng):
    weight = draw_weight(shape, rng)
    images = rng.integers(-128, 128, shape.images)
    floats = (images - 5).astype(np.float32)  # whole numbers are quantized to themselves
    result = int8.int8_conv2d_static(
        floats, *packed(weight).arrays, scale=1.0, zero_point=5, **shape.settings
    )
    np.testing.assert_array_equal(result, exact(floats, weight, shape))
    assert result.dtype == np.float32


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_weight_alone_makes_the_convolution_of_its_floats(shape, rng):
    layer, weight, images = draw_layer(shape, rng)
    bias = rng.normal(size=shape.outputs).astype(np.float32)
    result = int8.int8_conv2d_weight_only(images, *layer.arrays, bias, **shape.settings)
    theirs = torch.nn.functional.conv2d(
        *(torch.tensor(array) for array in (images, weight, bias)), **shape.how
    )
    assert_close(result, theirs, terms=weight[0].size)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_result_is_off_by_half_a_step_for_each_input_at_most(kind, rng):
    layer, weight, images = draw_layer(SMALL, rng)
    step = np.abs(images).max() / 127
    given = {"scale": float(step)} if kind.endswith("static") else {}
    result = REFERENCE.kernels[kind](images, *layer.arrays, **SMALL.settings, **given)
    bound = 0.5 * step * np.abs(weight).sum(axis=(1, 2, 3)) + 1e-4  # and float32's own rounding
    difference = np.abs(result - exact(images, weight, SMALL)).max(axis=(0, 2, 3))
    assert (difference <= bound).all()
    assert difference.max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_convolved_alone_as_it_is_in_a_batch(kind, rng):
    layer, _, images = draw_layer(SMALL, rng)
    images *= np.array([1e-3, 1, 1e3], np.float32)[:, None, None, None]
    together = REFERENCE.kernels[kind](images, *layer.arrays, **settings_of(kind))
    for image, result in zip(images, together, strict=True):
        alone = REFERENCE.kernels[kind](image[None], *layer.arrays, **settings_of(kind))
        np.testing.assert_array_equal(alone[0], result)


def test_steps_are_rounded_half_to_even():
    layer = packed(np.ones((1, 1, 1, 1), np.int8))
    shape = Shape((1, 1, 1, 6), 1, (1, 1))
    x = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5], np.float32).reshape(shape.images)
    for result in (
        int8.int8_conv2d_dynamic(x, *layer.arrays, **shape.settings),
        int8.int8_conv2d_static(x, *layer.arrays, scale=1.0, **shape.settings),
    ):
        assert result.ravel().tolist() == [127, 0, 2, 2, 0, -2]


def test_a_given_step_saturates():
    layer = packed(np.ones((1, 1, 1, 1), np.int8))
    shape = Shape((1, 1, 1, 4), 1, (1, 1))
    x = np.array([1e9, -1e9, np.inf, -np.inf], np.float32).reshape(shape.images)
    result = int8.int8_conv2d_static(x, *layer.arrays, scale=0.5, zero_point=5, **shape.settings)
    assert result.ravel().tolist() == [61, -66.5, 61, -66.5]


@pytest.mark.parametrize("zero_point", [-128, -77, 0, 127])
def test_a_border_is_zero_whatever_the_zero_point_is(zero_point, rng):
    shape = Shape((1, 2, 4, 4), 3, padding=(2, 1))
    layer, _, images = draw_layer(shape, rng)
    given = {"scale": 0.05, "zero_point": zero_point}
    with_border = np.pad(images, ((0, 0), (0, 0), (2, 2), (1, 1)))
    inside = {**shape.settings, "padding": (0, 0)}
    np.testing.assert_array_equal(
        int8.int8_conv2d_static(images, *layer.arrays, **given, **shape.settings),
        int8.int8_conv2d_static(with_border, *layer.arrays, **given, **inside),
    )
    zeros = int8.int8_conv2d_static(0 * images, *layer.arrays, **given, **shape.settings)
    assert not zeros.any()


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("int8_conv2d_dynamic", np.nan),
        ("int8_conv2d_dynamic", np.inf),
        ("int8_conv2d_static", np.nan),
    ],
)
def test_what_is_no_number_spoils_its_image_and_no_other(kind, bad, rng):
    layer, _, images = draw_layer(SMALL, rng)
    images[1, 0, 0, 0] = bad
    result = REFERENCE.kernels[kind](images, *layer.arrays, **settings_of(kind))
    assert np.isnan(result).all(axis=(1, 2, 3)).tolist() == [False, True, False]
    assert not np.isnan(result[[0, 2]]).any()


@pytest.mark.parametrize("value", [0.0, 1e-40])
def test_images_of_zeros_and_of_next_to_nothing_give_the_bias(value, rng):
    layer, _, images = draw_layer(SMALL, rng)
    bias = rng.normal(size=SMALL.outputs).astype(np.float32)
    images[...] = value
    result = int8.int8_conv2d_dynamic(images, *layer.arrays, bias, **SMALL.settings)
    np.testing.assert_array_equal(result, np.broadcast_to(bias[:, None, None], result.shape))


def test_a_bias_of_integers_counts_steps(rng):
    layer, _, images = draw_layer(SMALL, rng)
    bias = np.array([3, -700, 0, 9], np.int32)
    floats = (bias * layer.scales * STATIC["scale"]).astype(np.float32)
    counted, added = (
        int8.int8_conv2d_static(images, *layer.arrays, each, **STATIC, **SMALL.settings)
        for each in (bias, floats)
    )
    assert_close(counted, added, terms=18)


@pytest.mark.parametrize("zero_point", [np.int8(-100), np.uint8(100), np.int64(3)])
def test_a_zero_point_may_be_a_number_of_few_bits(zero_point, rng):
    layer, _, images = draw_layer(SMALL, rng)
    few, many = (
        int8.int8_conv2d_static(
            images, *layer.arrays, scale=scale, zero_point=number, **SMALL.settings
        )
        for scale, number in ((np.float64(0.1), zero_point), (0.1, int(zero_point)))
    )
    np.testing.assert_array_equal(few, many)
    assert few.dtype == np.float32


def test_an_empty_batch_has_an_empty_result(rng):
    layer, _, images = draw_layer(SMALL, rng)
    for kind in KINDS:
        result = REFERENCE.kernels[kind](images[:0], *layer.arrays, **settings_of(kind))
        assert result.shape == (0, 4, 5, 6)


# ---------------------------------------------------------------- what does not fit


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("wrong", "error", "message"), WRONG)
def test_what_does_not_fit_is_named(kind, wrong, error, message):
    with pytest.raises(error, match=message):
        REFERENCE.kernels[kind](**wrong_call(kind, wrong))


@pytest.mark.parametrize("zero_point", [-129, 128])
def test_a_zero_point_must_be_one_that_a_border_can_have(zero_point, rng):
    layer, _, images = draw_layer(SMALL, rng)
    with pytest.raises(SettingError, match=f"zero_point={zero_point}"):
        int8.int8_conv2d_static(
            images, *layer.arrays, scale=0.1, zero_point=zero_point, **SMALL.settings
        )
