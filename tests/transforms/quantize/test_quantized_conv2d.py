import numpy as np
import pytest

from tinytorch.core.dispatch import use_backend
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ShapeError
from tinytorch.transforms.quantize.layers import QuantizedConv2d

SHAPES = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (1, 3), "stride": 2},
    {"kernel_size": 2, "dilation": 2, "padding": (1, 0)},
    {"kernel_size": 3, "groups": 2},
    {"kernel_size": 3, "groups": 4, "bias": False},
]


@pytest.mark.parametrize("mode", ["weight_only", "dynamic", "static"])
@pytest.mark.parametrize("geometry", SHAPES, ids=str)
def test_the_output_is_that_of_the_float_layer_but_for_rounding(rng, mode, geometry):
    conv = Conv2d(4, 8, **geometry, rng=0)
    x = Tensor(rng.standard_normal((2, 4, 7, 9)).astype(np.float32))
    layer = QuantizedConv2d(conv, mode)
    if mode == "static":
        layer.calibrate(x, "minmax")
    expected, found = conv(x).data, layer(x).data
    assert found.shape == expected.shape
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.02 * expected.std()
    with use_backend("reference"):
        np.testing.assert_allclose(layer(x).data, found, rtol=1e-5, atol=1e-5)


def test_one_image_needs_no_batch(rng):
    layer = QuantizedConv2d(Conv2d(3, 5, 2, rng=0))
    x = rng.standard_normal((3, 6, 6)).astype(np.float32)
    np.testing.assert_array_equal(layer(Tensor(x)).data, layer(Tensor(x[None])).data[0])


def test_an_image_does_not_depend_on_the_others_in_its_batch(rng):
    layer = QuantizedConv2d(Conv2d(3, 5, 2, rng=0))
    x = rng.standard_normal((2, 3, 6, 6)).astype(np.float32)
    x[1] *= 100
    np.testing.assert_array_equal(layer(Tensor(x)).data[0], layer(Tensor(x[:1])).data[0])


def test_padding_is_exactly_zero_with_a_zero_point(rng):
    layer = QuantizedConv2d(Conv2d(1, 1, 3, padding=1, bias=False, rng=0))
    layer.set_input_range(0.0, 5.0)  # zero is the lowest value
    np.testing.assert_array_equal(layer(Tensor(np.zeros((1, 1, 4, 4), np.float32))).data, 0)


def test_bytes_held_are_counted_and_the_weight_comes_back(rng):
    conv = Conv2d(64, 32, 3, rng=0)
    layer = QuantizedConv2d(conv, "weight_only")
    usage = layer.memory_usage()
    assert usage["original_bytes"] == conv.weight.data.nbytes + conv.bias.data.nbytes
    assert usage["compression_ratio"] > 3.9
    largest = np.abs(conv.weight.data).max()
    np.testing.assert_allclose(layer.weight.data, conv.weight.data, atol=largest / 253)


def test_a_kernel_larger_than_the_image_says_so():
    layer = QuantizedConv2d(Conv2d(1, 1, 5))
    with pytest.raises(ShapeError, match="does not fit into images of 3x3"):
        layer(Tensor(np.zeros((1, 1, 3, 3), np.float32)))


def test_its_settings_are_shown():
    assert repr(QuantizedConv2d(Conv2d(1, 2, 3))) == (
        "QuantizedConv2d(1, 2, kernel_size=(3, 3), bits=8, mode='dynamic')"
    )
