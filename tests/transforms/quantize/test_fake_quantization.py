import copy

import numpy as np
import pytest

from tinytorch.core.layers import Linear
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.transforms.quantize.fine_tuning import (
    round_inputs,
    rounding_weights,
    straight_through,
)
from tinytorch.transforms.quantize.layers import QuantizedConv2d, QuantizedLinear


def faked(layer, settings):
    """Let a copy of a layer compute as it does in training."""
    twin = copy.deepcopy(layer)
    twin.weight.data = rounding_weights(layer, settings)(layer.weight.data)
    twin.register_forward_pre_hook(lambda each, inputs: round_inputs(each, settings, *inputs))
    return twin


STATIC = {"mode": "static", "bits": 8, "input_scale": 0.02, "input_zero_point": 5}


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "weight_only", "bits": 8},
        {"mode": "weight_only", "bits": 4, "group_size": 8},
        {"mode": "dynamic", "bits": 8},
        STATIC,
    ],
    ids=lambda each: f"{each['mode']}_{each['bits']}",
)
def test_a_fake_linear_layer_gives_what_the_quantized_one_will(rng, settings):
    layer = Linear(16, 6, rng=0)
    x = Tensor(rng.standard_normal((5, 16)).astype(np.float32))
    real = QuantizedLinear(
        layer, settings["mode"], bits=settings["bits"], group_size=settings.get("group_size")
    )
    if settings is STATIC:
        real.set_input_step(0.02, 5)
    # the bias of a static layer is rounded to the steps of the sum, at most half of one
    tolerance = 1e-5 if settings is not STATIC else 0.02 * real.scales.data.max()
    np.testing.assert_allclose(faked(layer, settings)(x).data, real(x).data, atol=tolerance)


@pytest.mark.parametrize("mode", ["weight_only", "dynamic"])
def test_a_fake_convolution_gives_what_the_quantized_one_will(rng, mode):
    conv = Conv2d(2, 3, 3, padding=1, rng=0)
    x = Tensor(rng.standard_normal((2, 2, 5, 5)).astype(np.float32))
    fake = faked(conv, {"mode": mode, "bits": 8})
    np.testing.assert_allclose(fake(x).data, QuantizedConv2d(conv, mode)(x).data, atol=1e-5)


def test_gradients_pass_as_if_nothing_was_rounded(rng):
    x = Tensor(rng.standard_normal((3, 4)).astype(np.float32), requires_grad=True)
    weights = rng.standard_normal((3, 4)).astype(np.float32)
    (straight_through(x, np.round(x.data)) * Tensor(weights)).sum().backward()
    np.testing.assert_allclose(x.grad, weights)


def test_no_gradient_passes_where_values_are_cut_off():
    layer = Linear(3, 1, bias=False, rng=0)
    x = Tensor(np.array([[1.0, 2.4, 100.0]], np.float32), requires_grad=True)
    faked(layer, STATIC)(x).sum().backward()
    expected = np.where([True, True, False], layer.weight.data[:, 0], 0)
    rounded = QuantizedLinear(layer).weight.data[:, 0]
    np.testing.assert_allclose(x.grad[0], np.where(expected == 0, 0, rounded), rtol=1e-6)


def test_a_projection_keeps_its_input_and_what_is_rounded_already(rng):
    layer = Conv2d(8, 3, 3, rng=0)
    free = layer.weight.data.copy()
    project = rounding_weights(layer, {"mode": "dynamic", "bits": 8})
    rounded = project(layer.weight.data)
    assert np.array_equal(layer.weight.data, free)
    assert not np.array_equal(rounded, free)
    np.testing.assert_allclose(project(rounded), rounded, rtol=1e-6)
