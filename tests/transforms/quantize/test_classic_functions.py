import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from small_models import workload

from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError
from tinytorch.transforms.quantize.classic import (
    Quantizer,
    analyze_model_sizes,
    dequantize_int8,
    quantize_int8,
    quantize_model,
    verify_quantization_works,
)

FLOATS = arrays.arrays(
    np.float32,
    arrays.array_shapes(max_dims=3, max_side=6),
    elements=st.floats(-1e6, 1e6, width=32),
)


@given(FLOATS)
def test_a_round_trip_is_off_by_at_most_half_a_step(array):
    q, scale, zero_point = quantize_int8(Tensor(array))
    assert q.dtype == np.int8
    back = dequantize_int8(q, scale, zero_point).data
    # float32 rounds the quotient and the product: below 2**-15 of a step
    assert (np.abs(back - array.astype(np.float64)) <= scale * (0.5 + 2**-15)).all()


@given(FLOATS)
def test_zero_is_exact_and_order_is_kept(array):
    q, scale, zero_point = quantize_int8(Tensor(array))
    zero = np.full(1, zero_point, np.int8)
    assert dequantize_int8(zero, scale, zero_point).data[0] == 0
    order = np.argsort(array, axis=None)
    assert (np.diff(q.data.reshape(-1)[order].astype(int)) >= 0).all()


@pytest.mark.parametrize("values", [[10, 10.5, 11], [5, 5, 5], [0, 0], [-3], [1e-30, 1e30]])
def test_constants_and_far_ranges_come_back(values):
    q, scale, zero_point = quantize_int8(Tensor(values))
    np.testing.assert_allclose(
        dequantize_int8(q, scale, zero_point).data, values, atol=scale * 0.5001
    )


def test_arrays_are_taken_as_well():
    q, scale, zero_point = quantize_int8(np.array([0.0, 1.0]))
    assert isinstance(scale, float)
    assert isinstance(zero_point, int)
    np.testing.assert_allclose(dequantize_int8(q.data, scale, zero_point).data, [0, 1], rtol=1e-6)


def test_a_model_is_quantized_in_one_call_and_stays_as_it_is():
    work = workload("mlp")
    weight = work.model.layers[0].weight.data.copy()
    dynamic = quantize_model(work.model)
    static = quantize_model(work.model, [x for (x,) in work.calibration])
    assert (dynamic.layers[0].mode, static.layers[0].mode) == ("dynamic", "static")
    np.testing.assert_array_equal(work.model.layers[0].weight.data, weight)


def test_sizes_are_bytes_really_held():
    work = workload("mlp")
    sizes = analyze_model_sizes(work.model, quantize_model(work.model))
    assert sizes["original_bytes"] == 4 * work.model.num_parameters()
    assert sizes["compression_ratio"] == sizes["original_bytes"] / sizes["quantized_bytes"]
    assert sizes["original_mb"] == sizes["original_bytes"] / 2**20
    saved = 100 * (1 - sizes["quantized_bytes"] / sizes["original_bytes"])
    assert sizes["memory_saved_percent"] == pytest.approx(saved)


def test_a_working_quantization_is_confirmed_with_what_was_seen():
    work = workload("mlp")
    seen = verify_quantization_works(work.model, quantize_model(work.model), work.inputs[0])
    assert seen["sqnr_db"] > 20
    assert 0 <= seen["top1_agreement"] <= 1
    assert "sqnr_db" not in verify_quantization_works(work.model, quantize_model(work.model))


def test_a_broken_quantization_is_told():
    work = workload("mlp")
    with pytest.raises(ModelError, match="nothing was saved"):
        verify_quantization_works(work.model, work.model)
    broken = quantize_model(work.model)
    broken.layers[0].scales.data *= -3
    with pytest.raises(ModelError, match="it does something else than the original"):
        verify_quantization_works(work.model, broken, work.inputs[0])
    broken.layers[0].scales.data[:] = np.nan
    with pytest.raises(ModelError, match="the quantized model is broken"):
        verify_quantization_works(work.model, broken, work.inputs[0])


def test_the_class_has_the_same_functions():
    assert Quantizer.quantize_tensor is quantize_int8
    assert Quantizer.dequantize_tensor is dequantize_int8
    assert Quantizer.quantize_model is quantize_model
    assert Quantizer.compare_models is analyze_model_sizes


def test_what_cannot_be_compared_is_not_confirmed():
    work = workload("mlp")
    small = quantize_model(work.model)
    with pytest.raises(ModelError, match="cannot be compared: output 0: no value of the baseline"):
        verify_quantization_works(work.model, small, Tensor(np.full((2, 64), np.nan, np.float32)))
    with pytest.raises(ValueError, match="no inputs to verify on"):
        verify_quantization_works(work.model, small, [])
