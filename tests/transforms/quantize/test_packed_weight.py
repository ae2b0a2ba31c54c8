import numpy as np
import pytest

from tinytorch.errors import SettingError
from tinytorch.transforms.quantize.layers import (
    check_group_size,
    default_group,
    pack_weight,
    quantize_weight,
)


@pytest.mark.parametrize(("bits", "group_size"), [(8, None), (4, 16), (4, None)])
@pytest.mark.parametrize("shape", [(32, 5), (16, 130), (64, 64)])
def test_unpacking_gives_back_what_was_packed(rng, shape, bits, group_size):
    matrix = rng.standard_normal(shape).astype(np.float32)
    quantized = quantize_weight(matrix, bits=bits, group_size=group_size)
    unpacked = pack_weight(quantized).unpacked()
    np.testing.assert_array_equal(unpacked.values, quantized.values)
    np.testing.assert_array_equal(unpacked.scale, quantized.scale)
    assert unpacked.scheme == quantized.scheme
    np.testing.assert_array_equal(unpacked.dequantize(), quantized.dequantize())


def test_sums_are_of_the_values_of_each_output(rng):
    quantized = quantize_weight(rng.standard_normal((37, 70)).astype(np.float32))
    np.testing.assert_array_equal(
        pack_weight(quantized).sums(), quantized.values.sum(axis=0, dtype=np.int64)
    )


def test_eight_bits_cut_nothing_off(rng):
    matrix = rng.standard_normal((64, 8)).astype(np.float32)
    matrix[3, 2] = 100
    quantized = quantize_weight(matrix)
    # half a step, and the rounding of float32 on top
    bound = quantized.scale / 2 * (1 + 1e-4)
    assert (np.abs(quantized.dequantize() - matrix) <= bound).all()


def test_per_channel_error_of_usual_weights_is_below_two_ten_thousandths(rng):
    matrix = (0.02 * rng.standard_normal((1024, 256))).astype(np.float32)
    error = quantize_weight(matrix).dequantize() - matrix
    assert np.sqrt(np.mean(error**2)) < 2e-4


@pytest.mark.parametrize(("inputs", "group"), [(96, 32), (784, 16), (24, 8), (9, None)])
def test_the_default_group_is_the_largest_that_divides(inputs, group):
    assert default_group(inputs) == group


def test_a_group_that_does_not_divide_names_those_that_do():
    with pytest.raises(SettingError, match=r"group_size=32 does not divide 784 inputs; 16 would"):
        check_group_size(784, 32)
    with pytest.raises(SettingError, match="INT8 needs no groups"):
        check_group_size(9, 8)
    with pytest.raises(SettingError, match="no group of 8 divides 9 inputs"):
        quantize_weight(np.ones((9, 2), np.float32), bits=4)
