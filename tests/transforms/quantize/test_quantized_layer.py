import copy

import numpy as np
import pytest

from tinytorch.core.layers import Linear
from tinytorch.core.spatial import Conv2d
from tinytorch.transforms.quantize.layers import QuantizedConv2d, QuantizedLinear


def layers():
    return [
        QuantizedLinear(Linear(12, 5, rng=0)),
        QuantizedConv2d(Conv2d(3, 5, 2, rng=0)),
    ]


@pytest.mark.parametrize("layer", layers(), ids=["linear", "conv2d"])
def test_until_it_is_calibrated_a_layer_quantizes_inputs_as_they_come(layer):
    assert layer.mode == "dynamic"
    assert layer.input_step is None
    assert layer.product()[0].endswith("_dynamic")


@pytest.mark.parametrize("layer", layers(), ids=["linear", "conv2d"])
def test_a_fixed_range_goes_to_the_kernel(layer):
    layer = copy.deepcopy(layer).set_input_range(-1.0, 3.0)
    kind, arrays, settings = layer.product()
    assert kind.endswith("_static")
    assert settings["scale"] == pytest.approx(4 / 255)
    assert settings["zero_point"] == -64
    assert arrays[3].dtype == np.int32


@pytest.mark.parametrize("layer", layers(), ids=["linear", "conv2d"])
def test_the_state_holds_everything_that_computing_needs(layer):
    other = copy.deepcopy(layer).set_input_range(-2.0, 1.0)
    layer = copy.deepcopy(layer).set_input_range(-1.0, 3.0)
    other.load_state_dict(layer.state_dict())
    assert other.product()[2] == layer.product()[2]
    for one, two in zip(layer.product()[1], other.product()[1], strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_weight_only_layer_holds_no_sums_until_it_needs_them():
    linear = Linear(12, 5, rng=0)
    layer = QuantizedLinear(linear, "weight_only")
    assert layer.sums is None
    layer.set_input_range(-1, 1)
    np.testing.assert_array_equal(layer.sums.data, QuantizedLinear(linear).sums.data)


def test_a_layer_is_made_from_one_of_its_kind():
    with pytest.raises(TypeError, match=r"QuantizedLinear is made from a Linear, not from Conv2d"):
        QuantizedLinear(Conv2d(1, 2, 3))
    with pytest.raises(TypeError, match=r"QuantizedConv2d is made from a Conv2d, not from Linear"):
        QuantizedConv2d(Linear(2, 3))
