"""Convolutions of whole numbers by way of floats: still exact."""

import numpy as np
import pytest
from int8_convolutions import SHAPES, Shape, draw_weight, exact, packed
from kernel_calls import kernel_calls
from oracles import assert_close

from tinytorch.core.kernels import numpy_quantized as numpy_int8_convolution
from tinytorch.core.kernels.numpy_quantized import EXACT_DEPTH
from tinytorch.core.kernels.reference import REFERENCE

CALLS = {dtype: kernel_calls(dtype) for dtype in (np.float32, np.float64)}
KERNELS = numpy_int8_convolution.CONVOLUTION_KERNELS


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_a_kernel_computes_what_the_reference_computes(kind, dtype):
    for call in CALLS[dtype][kind]:
        ours = KERNELS[kind](*call.arguments, **call.settings)
        theirs = REFERENCE.kernels[kind](*call.arguments, **call.settings)
        assert_close(ours, theirs, terms=call.terms)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_numbers_are_exact(shape, rng):
    weight, images = draw_weight(shape, rng), rng.integers(-255, 256, shape.images)
    result = numpy_int8_convolution.convolve_integers(images, weight, **shape.how)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, exact(images, weight, shape))


DEEP = [
    Shape((2, 60, 5, 4), 3, padding=(1, 1)),  # 57 channels at a time
    Shape((1, 240, 4, 4), 4, padding=(1, 1), groups=2),
    Shape((1, 3, 24, 24), 2, (23, 23)),  # one channel is too much already
]


@pytest.mark.parametrize("shape", DEEP, ids=str)
def test_the_largest_sums_are_exact(shape):
    assert np.prod(shape.weight[1:]) > EXACT_DEPTH
    weight = np.full(shape.weight, -128, np.int8)
    images = np.full(shape.images, 255, np.int16)
    images[0, :, 1, 1] = 254  # so that sums are no multiples of a power of two
    weight[:, :, 0, 0] = 127
    result = numpy_int8_convolution.convolve_integers(images, weight, **shape.how)
    np.testing.assert_array_equal(result, exact(images, weight, shape))


def test_an_image_with_nan_gives_nan_and_the_others_do_not(rng):
    shape = Shape((2, 3, 5, 5), 4)
    layer, images = packed(draw_weight(shape, rng)), np.ones(shape.images, np.float32)
    images[1, 2, 4, 4] = np.nan
    for kind, given in (("dynamic", {}), ("static", {"scale": 0.1})):
        result = KERNELS[f"int8_conv2d_{kind}"](images, *layer.arrays, **given, **shape.settings)
        assert np.isnan(result).all(axis=(1, 2, 3)).tolist() == [False, True]
