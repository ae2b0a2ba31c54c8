import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DTypeError, GraphError, SettingError, ShapeError
from tinytorch.transforms.quantize.layers import QuantizedLinear

MODES = [("weight_only", 8), ("weight_only", 4), ("dynamic", 8), ("static", 8)]


def make(mode, bits, *, inputs=64, outputs=70, bias=True, rng=0):
    linear = Linear(inputs, outputs, bias, rng=rng)
    x = Tensor(np.random.default_rng(1).standard_normal((5, inputs)).astype(np.float32))
    layer = QuantizedLinear(linear, mode, bits=bits)
    if mode == "static":
        layer.calibrate(x, "minmax")
    return linear, layer, x


@pytest.mark.parametrize(("mode", "bits"), MODES)
@pytest.mark.parametrize("bias", [True, False])
def test_the_output_is_that_of_the_float_layer_but_for_rounding(mode, bits, bias):
    linear, layer, x = make(mode, bits, bias=bias)
    expected, found = linear(x).data, layer(x).data
    # a rounding error is uniform, so its deviation is a step over the root of 12: of the inputs
    # (range about 6 in 255 steps) and of the weights (2/8 in 255 or 15 steps)
    weight_error = 0.25 / (255 if bits == 8 else 12) / 12**0.5
    input_error = 0 if mode == "weight_only" else 6.5 / 254 / 12**0.5
    deviation = (64 * (weight_error**2 + (input_error * 0.125 / 3**0.5) ** 2)) ** 0.5
    assert np.sqrt(np.mean((found - expected) ** 2)) < 1.5 * deviation
    assert found.dtype == np.float32


@pytest.mark.parametrize(("mode", "bits"), MODES)
@pytest.mark.parametrize("shape", [(64,), (2, 64), (2, 3, 64), (0, 64)])
def test_any_axes_in_front_of_the_features_stay(mode, bits, shape):
    _, layer, _ = make(mode, bits)
    assert layer(Tensor(np.zeros(shape, np.float32))).shape == (*shape[:-1], 70)


@pytest.mark.parametrize(("mode", "bits"), MODES)
def test_backends_agree(mode, bits):
    _, layer, x = make(mode, bits, inputs=24)
    with use_backend("reference"):
        expected = layer(x).data
    np.testing.assert_allclose(layer(x).data, expected, rtol=1e-5, atol=1e-5)


def test_products_of_whole_numbers_are_exact():
    linear, layer, x = make("dynamic", 8)
    rows = x.data.astype(np.float64)
    step = np.abs(rows).max(axis=1, keepdims=True) / 127
    packed = layer.packed.unpacked()
    whole = np.rint(rows / step) @ packed.values.astype(np.int64)
    expected = whole * step * packed.scale + linear.bias.data
    np.testing.assert_allclose(layer(x).data, expected, rtol=1e-5, atol=1e-5)


def test_a_static_bias_is_in_int32():
    linear, layer, _ = make("static", 8)
    assert layer.bias.data.dtype == np.int32
    step = layer.input_step.data[0] * layer.scales.data
    np.testing.assert_allclose(layer.bias.data * step, linear.bias.data, atol=step.max() / 2)


def test_a_bias_beyond_int32_stays_in_floats():
    linear, layer, x = make("static", 8)
    step = layer.input_step.data[0] * layer.scales.data
    for size in (1e12, 2**31 - 1000):  # the second one fits, but not with what is added to it
        linear.bias.data = (size * step).astype(np.float32)
        layer = QuantizedLinear(linear).calibrate(x, "minmax")
        assert layer.bias.data.dtype == np.float32
        np.testing.assert_allclose(layer(x).data, linear(x).data, rtol=1e-5)


def test_a_bias_that_was_rounded_by_one_range_is_not_rounded_by_another():
    _, layer, x = make("static", 8)
    with pytest.raises(SettingError, match="make a new one from the float layer"):
        layer.calibrate(x)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize(("mode", "bits"), MODES)
def test_the_result_has_the_dtype_of_the_input(dtype, mode, bits):
    _, layer, x = make(mode, bits, inputs=512)
    exact = x.data.astype(np.float16)  # in every dtype the same numbers
    found = layer(Tensor(exact.astype(dtype)))
    assert found.dtype == dtype
    expected = layer(Tensor(exact.astype(np.float32))).data
    # a row may be rounded to another side of a half; half precision has three digits
    np.testing.assert_allclose(found.data, expected, atol=0.01 * np.abs(expected).max())


def test_a_gradient_that_would_be_lost_is_an_error():
    _, layer, x = make("dynamic", 8)
    x.requires_grad = True
    with pytest.raises(GraphError, match="lets no gradient through; call it inside of no_grad"):
        layer(x)
    with no_grad():
        assert not layer(x).requires_grad


def test_samples_of_another_shape_are_refused():
    _, layer, _ = make("dynamic", 8)
    with pytest.raises(ShapeError, match=r"needs input \(..., 64\), got \(4, 63\)"):
        layer.calibrate(np.ones((4, 63), np.float32))


def test_calibration_takes_one_tensor_or_many():
    _, layer, x = make("dynamic", 8)
    assert layer.mode == "dynamic"
    one = copy.deepcopy(layer).calibrate(x)
    many = copy.deepcopy(layer).calibrate([Tensor(row) for row in x.data])
    assert one.mode == many.mode == "static"
    np.testing.assert_allclose(one.input_step.data, many.input_step.data, rtol=0.05)


def test_bytes_held_are_a_quarter_and_counted():
    linear, layer, _ = make("weight_only", 8, inputs=512, outputs=256, bias=False)
    usage = layer.memory_usage()
    assert usage["original_bytes"] == 512 * 256 * 4
    assert usage["quantized_bytes"] == layer.values.data.nbytes + layer.scales.data.nbytes
    assert usage["compression_ratio"] >= 3.9
    assert QuantizedLinear(linear).memory_usage()["compression_ratio"] >= 3.9


def test_the_float_layer_stays_as_it_is_and_its_weight_is_not_held():
    linear, layer, _ = make("static", 8)
    before = Linear(64, 70, rng=0)
    np.testing.assert_array_equal(linear.weight.data, before.weight.data)
    held = [tensor.data for _, tensor in layer._named_tensors()]
    assert not any(np.may_share_memory(array, linear.weight.data) for array in held)
    assert layer.parameters() == []


def test_the_weight_as_floats_is_made_anew():
    linear, layer, _ = make("dynamic", 8)
    np.testing.assert_allclose(layer.weight.data, linear.weight.data, atol=0.126 / 254)
    assert layer.weight is not layer.weight


def test_copies_are_independent_and_lie_where_kernels_read_best():
    _, layer, _ = make("dynamic", 8, inputs=256, outputs=256)
    expected = layer(Tensor(np.ones((1, 256), np.float32))).data
    twin = copy.deepcopy(layer)
    twin.values.data[:] = 0
    assert twin.values.data.ctypes.data % 64 == 0
    np.testing.assert_array_equal(layer(Tensor(np.ones((1, 256), np.float32))).data, expected)


def test_an_activation_can_be_part_of_the_kernel():
    _, layer, x = make("static", 8)
    fused = layer.with_activation("relu")
    np.testing.assert_array_equal(fused(x).data, np.maximum(layer(x).data, 0))
    assert layer.activation is None
    assert "activation='relu'" in repr(fused)


def test_its_settings_are_shown():
    _, layer, _ = make("weight_only", 4)
    assert repr(layer) == (
        "QuantizedLinear(64, 70, bias=True, bits=4, mode='weight_only', group_size=32)"
    )


def test_bad_input_says_what_is_needed():
    _, layer, _ = make("dynamic", 8)
    with pytest.raises(ShapeError, match=r"needs input \(..., 64\), got \(2, 3\)"):
        layer(Tensor(np.zeros((2, 3), np.float32)))
    with pytest.raises(DTypeError, match="needs floating-point input"):
        layer(Tensor(np.zeros((2, 64), np.int8)))


def test_bad_settings_say_what_is_possible():
    linear = Linear(24, 3)
    with pytest.raises(SettingError, match="unknown mode 'fast'"):
        QuantizedLinear(linear, "fast")
    with pytest.raises(SettingError, match="INT4 weights meet float inputs"):
        QuantizedLinear(linear, "dynamic", bits=4)
    with pytest.raises(SettingError, match="group_size=16 does not divide 24 inputs"):
        QuantizedLinear(linear, "weight_only", bits=4, group_size=16)
    with pytest.raises(SettingError, match="has INT4 weights"):
        QuantizedLinear(linear, "weight_only", bits=4).calibrate(Tensor([[1.0] * 24]))
    with pytest.raises(SettingError, match="without samples"):
        QuantizedLinear(linear).calibrate([])


@given(
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 80),
    rows=st.integers(1, 4),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 100),
)
def test_each_output_is_within_its_bound(inputs, outputs, rows, scale, seed):
    """Half a step for each input and each weight, as they can add up at worst."""
    rng = np.random.default_rng(seed)
    linear = Linear(inputs, outputs, rng=rng)
    x = Tensor((scale * rng.standard_normal((rows, inputs))).astype(np.float32))
    layer = QuantizedLinear(linear)
    step = np.abs(x.data).max(axis=1, keepdims=True) / 127  # of the inputs
    bound = (
        np.abs(x.data).sum(axis=1, keepdims=True) * layer.scales.data / 2
        + np.abs(linear.weight.data).sum(axis=0) * step / 2
        + inputs * step * layer.scales.data / 4
    )
    slack = 1e-4 * (np.abs(linear(x).data) + bound) + 1e-6
    assert (np.abs(layer(x).data - linear(x).data) <= bound + slack).all()
