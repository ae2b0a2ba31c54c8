import numpy as np
import pytest
from parts import require_part

numba = require_part("numba")

from tinytorch.core.kernels.numba.simd import (
    exp_of_minus,
    exp_without_subnormals,
    larger_number,
)

EPS = np.finfo(np.float32).eps
TINY = np.finfo(np.float32).tiny
exp_of_minus_each = numba.vectorize(["float32(float32)"])(lambda x: exp_of_minus(x))
exp_each = numba.vectorize(["float32(float32)"])(lambda x: exp_without_subnormals(x))


def test_both_are_exact_to_two_units_in_the_last_place():
    x = np.linspace(-87.3, 88.3, 1_000_001, dtype=np.float32)
    np.testing.assert_allclose(exp_each(x), np.exp(x.astype(np.float64)), rtol=2 * EPS)
    x = x[x <= 0]
    np.testing.assert_allclose(exp_of_minus_each(-x), np.exp(x.astype(np.float64)), rtol=2 * EPS)


def test_zero_gives_exactly_one():
    assert exp_each(np.float32(0)) == exp_of_minus_each(np.float32(0)) == 1


@pytest.mark.parametrize("x", [-87.8, -90, -104, -1e4, -3e38, -np.inf])
def test_what_is_too_small_for_a_normal_number_is_zero(x):
    assert exp_each(np.float32(x)) == exp_of_minus_each(np.float32(-x)) == 0


def test_between_the_smallest_normal_number_and_zero_nothing_else_is_given():
    x = np.linspace(-89, -87, 100_001, dtype=np.float32)
    for computed in (exp_each(x), exp_of_minus_each(-x)):
        assert np.abs(computed - np.exp(x.astype(np.float64))).max() < TINY
        assert (np.diff(computed) >= 0).all()


@pytest.mark.parametrize("x", [88.8, 89, 200, 3e38, np.inf])
def test_what_is_too_large_is_infinite(x):
    assert exp_each(np.float32(x)) == np.inf


def test_no_kind_of_nan_is_lost():
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0x7FC00123], np.uint32)
    with np.errstate(invalid="ignore"):  # some of them signal
        assert np.isnan(exp_each(bits.view(np.float32))).all()
        assert np.isnan(exp_of_minus_each(bits.view(np.float32))).all()


def test_the_larger_of_two_numbers_is_found():
    larger = numba.vectorize(["float32(float32, float32)"])(lambda a, b: larger_number(a, b))
    a = np.array([1, -2, -np.inf, np.inf, 0], np.float32)
    b = np.array([3, -3, 5, 1, -np.inf], np.float32)
    np.testing.assert_array_equal(larger(a, b), np.maximum(a, b))
