"""The loops of INT8 products, one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba.int8 import (
    TILE_ROWS,
    excess_of,
    largest_of,
    quantize_and_multiply,
    quantize_by,
    quantize_by_largest,
    row_scale,
)
from tinytorch.core.kernels.packing import pack_int8
from tinytorch.core.kernels.reference_quantized import OFFSET
from tinytorch.core.kernels.reference_quantized import quantize_by as plain_by
from tinytorch.core.kernels.reference_quantized import quantize_rows as plain_rows

FLOATS = st.floats(-(2.0**99), 2.0**99, width=32)
NO_BIAS, NO_WHOLE_BIAS = np.empty(0, np.float32), np.empty(0, np.int32)


@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_a_row_becomes_the_same_bytes_as_in_the_reference(numbers):
    row = np.array(numbers, np.float32)
    done = np.empty(row.size, np.uint8)
    step = quantize_by_largest(row, done)
    whole, expected = plain_rows(row)
    np.testing.assert_array_equal(done.astype(int) - OFFSET, whole)
    assert step == expected


@given(st.lists(FLOATS, min_size=1, max_size=40), st.integers(-128, 127), st.integers(-9, 9))
def test_a_given_step_gives_the_same_bytes_as_in_the_reference(numbers, zero_point, exponent):
    row = np.array(numbers, np.float32)
    done = np.empty(row.size, np.uint8)
    step = np.float32(10.0**exponent)
    found = quantize_by(row, done, step, 1 / step, zero_point)
    with np.errstate(over="ignore"):
        whole, expected = plain_by(row, step, zero_point)
    np.testing.assert_array_equal(done.astype(int) - OFFSET, whole)
    assert found == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_has_no_step(bad):
    row = np.array([1, bad, 2], np.float32)
    done = np.empty(3, np.uint8)
    assert np.isnan(quantize_by_largest(row, done))
    assert done.tolist() == [OFFSET] * 3


def test_the_largest_element_counts_by_its_size():
    assert largest_of(np.array([1, -3, 2], np.float32)) == 3
    assert np.isnan(largest_of(np.array([1, np.nan, 2], np.float32)))
    step, inverse = row_scale(np.float32(254))
    assert (step, inverse) == (2, 0.5)


def test_a_bias_lessens_what_is_too_much():
    sums, bias = np.array([3, -4], np.int32), np.array([10, 20], np.int32)
    assert excess_of(sums, 5, NO_WHOLE_BIAS).tolist() == [15, -20]
    assert excess_of(sums, 5, bias).tolist() == [5, -40]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("block_rows", [TILE_ROWS, 2 * TILE_ROWS, 64])
def test_any_blocks_of_rows_and_shares_of_workers_give_the_same(block_rows, workers, rng):
    weight = rng.integers(-9, 9, (10, 130)).astype(np.int8)
    packed = pack_int8(weight, np.ones(130, np.float32))
    x = rng.integers(-127, 128, (13, 10)).astype(np.float32)
    x[:, 0] = 127  # so that the step is 1
    out = np.full((13, 130), np.nan, np.float32)
    quantize_and_multiply(
        x, True, 1.0, 0, *packed.arrays, NO_WHOLE_BIAS, NO_BIAS, 0, out, block_rows, workers, None,
        work=0,
    )  # fmt: skip
    np.testing.assert_array_equal(out, x @ weight)
