import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba import int8_simd as unpacking
from tinytorch.core.kernels.packing import pack_int8

SIZES = [(1, 1), (4, 64), (5, 65), (63, 3), (64, 16), (70, 130), (130, 17)]


def draw(inputs, outputs, seed=0):
    rng = np.random.default_rng(seed)
    weight = rng.integers(-128, 128, (inputs, outputs)).astype(np.int8)
    packed = pack_int8(weight, rng.uniform(0.001, 0.01, outputs).astype(np.float32))
    return packed, weight * packed.scales


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_a_whole_weight_becomes_its_floats(inputs, outputs):
    packed, floats = draw(inputs, outputs)
    out = np.full(inputs * outputs + 3, 9, np.float32)
    unpacking.unpack_floats(packed.values, packed.scales, inputs, out, work=0)
    np.testing.assert_array_equal(out[:-3].reshape(outputs, inputs), floats.T)
    assert (out[-3:] == 9).all()


@given(st.integers(1, 40), st.integers(1, 140), st.integers(0, 9), st.integers(0, 99))
def test_any_columns_become_their_floats(inputs, outputs, count, seed):
    packed, floats = draw(inputs, outputs, seed)
    numbers = np.random.default_rng(seed).integers(0, outputs, count)
    out = np.full(inputs * count + 3, 9, np.float32)
    assert unpacking.unpack_columns(numbers, packed.values, packed.scales, inputs, out, work=0)
    np.testing.assert_array_equal(out[:-3].reshape(count, inputs), floats.T[numbers])
    assert (out[-3:] == 9).all()


@pytest.mark.parametrize("wrong", [-1, 70, 2**62, -(2**63)])
def test_a_column_that_is_not_there_is_told_and_nothing_written(wrong):
    packed, _ = draw(9, 70)
    out = np.zeros(27, np.float32)
    numbers = np.array([3, wrong, 5])
    assert not unpacking.unpack_columns(numbers, packed.values, packed.scales, 9, out, work=0)
    assert not out.any()
