"""The layout of INT8 weights: what goes in comes out, and no byte is wasted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.kernels.packing import (
    MOST_INPUTS,
    PANEL_COLUMNS,
    pack_int8,
    packed_length,
    unpack_values,
)
from tinytorch.errors import DTypeError, ShapeError


def weight_of(inputs, outputs, seed=0):
    return np.random.default_rng(seed).integers(-128, 128, (inputs, outputs)).astype(np.int8)


@given(st.integers(0, 140), st.integers(0, 140), st.integers(0, 9))
def test_unpacking_gives_back_what_was_packed(inputs, outputs, seed):
    weight = weight_of(inputs, outputs, seed)
    packed = pack_int8(weight, np.ones(outputs, np.float32))
    assert unpack_values(packed.values, *packed.shape).dtype == np.int8
    np.testing.assert_array_equal(unpack_values(packed.values, *packed.shape), weight)
    np.testing.assert_array_equal(packed.sums, weight.astype(np.int64).sum(axis=0))
    assert packed.shape == (inputs, outputs)


@given(st.integers(1, 300), st.integers(1, 300))
def test_little_more_than_one_byte_is_held_for_each_weight(inputs, outputs):
    packed = pack_int8(weight_of(inputs, outputs), np.ones(outputs, np.float32))
    values = inputs * outputs
    assert values <= packed.values.nbytes <= values + 3 * outputs + 60
    assert packed.nbytes == packed.values.nbytes + 8 * outputs  # scales and sums


def test_whole_panels_hold_nothing_else():
    assert packed_length(768, 3072) == 768 * 3072


def test_four_values_of_one_output_lie_side_by_side():
    weight = weight_of(8, PANEL_COLUMNS + 1)
    values = pack_int8(weight, np.ones(PANEL_COLUMNS + 1, np.float32)).values
    assert values[:4].tolist() == weight[:4, 0].tolist()
    assert values[4:8].tolist() == weight[:4, 1].tolist()
    line = 4 * PANEL_COLUMNS
    assert values[line : line + 4].tolist() == weight[4:, 0].tolist()
    assert values[2 * line : 2 * line + 8].tolist() == weight[:, PANEL_COLUMNS].tolist()


def test_registers_are_read_from_one_cache_line():
    assert pack_int8(weight_of(5, 5), np.ones(5, np.float32)).values.ctypes.data % 64 == 0


def test_the_packed_weight_is_a_copy():
    weight, scales = weight_of(4, 4), np.ones(4, np.float32)
    kept = weight.copy()
    packed = pack_int8(weight, scales)
    weight[...], scales[...] = 0, 0
    np.testing.assert_array_equal(unpack_values(packed.values, *packed.shape), kept)
    assert packed.scales.tolist() == [1, 1, 1, 1]


def test_any_order_in_memory_may_be_packed():
    weight = weight_of(9, 11)
    packed = pack_int8(np.asfortranarray(weight), np.ones(11, np.float32))
    np.testing.assert_array_equal(unpack_values(packed.values, *packed.shape), weight)


def test_what_cannot_be_packed_is_refused_with_advice():
    with pytest.raises(DTypeError, match=r"weight of float32 .* quantize it to int8 first"):
        pack_int8(np.ones((2, 3), np.float32), np.ones(3, np.float32))
    with pytest.raises(ShapeError, match=r"one scale for each output.*\(2, 3\) and \(2,\)"):
        pack_int8(np.ones((2, 3), np.int8), np.ones(2, np.float32))
    with pytest.raises(ShapeError, match="split the layer"):
        pack_int8(np.ones((MOST_INPUTS + 1, 1), np.int8), np.ones(1, np.float32))
    with pytest.raises(ShapeError, match="packed weight of 3 inputs and 4 outputs"):
        unpack_values(np.zeros(5, np.int8), 3, 4)


def test_the_longest_sum_of_the_largest_products_fits():
    assert MOST_INPUTS * 255 * 128 < 2**31 <= (MOST_INPUTS + 1) * 255 * 128
