"""Ranges that leave out the extremes: never worse, and near the best that there is."""

import numpy as np
import pytest
from drawn_schemes import TAME, arrays_and_schemes
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from tinytorch.formats import affine
from tinytorch.formats.affine import Scheme, narrowed_ranges, quantize_array


def squared_error(array, quantized):
    return np.square(quantized.dequantize().astype(np.float64) - array).sum()


def test_each_scale_gets_the_range_of_its_own_least_error():
    best_low, best_high = np.array([-2.0, -4.0]), np.array([1.0, 3.0])

    def error(low, high):
        return np.abs(high - best_high) + np.abs(low - best_low) + 1

    low, high = narrowed_ranges(error, np.full(2, -4.0), np.full(2, 4.0), is_symmetric=False)
    np.testing.assert_allclose(high, best_high, rtol=0.05)
    np.testing.assert_allclose(low, best_low, rtol=0.05)


@given(
    arrays_and_schemes(
        arrays_of.arrays(
            np.float32, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=TAME
        )
    )
)
def test_the_least_squares_fit_is_never_worse_than_the_range(case):
    array, scheme = case
    by_range = quantize_array(array, scheme)
    fitted = quantize_array(array, scheme, fit="mse")
    assert squared_error(array, fitted) <= squared_error(array, by_range)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_least_squares_fit_of_a_scale_does_not_depend_on_the_others(axis, rng, monkeypatch):
    matrix = rng.laplace(size=(40, 30)).astype(np.float32)
    scheme = Scheme(4, axis=axis)
    together = quantize_array(matrix, scheme, fit="mse")
    monkeypatch.setattr(affine, "PART", 100)
    in_parts = quantize_array(matrix, scheme, fit="mse")
    # Where all of a part is hopeless its search ends earlier, and so may miss a distant range.
    assert squared_error(matrix, in_parts) == pytest.approx(
        squared_error(matrix, together), rel=0.01
    )


def test_clipping_saves_squared_error_with_four_bits(rng):
    weight = rng.normal(size=(512, 64)).astype(np.float32)
    for scheme in (Scheme(4, True, axis=1), Scheme(4, axis=1, group_size=128)):
        by_range, fitted = quantize_array(weight, scheme), quantize_array(weight, scheme, fit="mse")
        assert squared_error(weight, fitted) < 0.92 * squared_error(weight, by_range)
        assert (fitted.scale <= by_range.scale).all()


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_least_squares_fit_is_near_the_best_of_a_fine_search(symmetric, rng):
    row = rng.laplace(size=4000).astype(np.float32)
    scheme = Scheme(4, symmetric)
    fitted = squared_error(row, quantize_array(row, scheme, fit="mse"))
    ends = np.linspace(0.05, 1, 60)
    pairs = [(end, end) for end in ends] if symmetric else [(a, b) for a in ends for b in ends]
    best = min(
        squared_error(row, quantize_array(row, scheme, limits=(a * row.min(), b * row.max())))
        for a, b in pairs
    )
    assert fitted < 1.03 * best


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("count", "outlier"), [(2_000, 30), (200_000, 300)])
def test_one_outlier_does_not_take_the_precision_of_all_others(count, outlier, symmetric, rng):
    row = rng.normal(size=count).astype(np.float32)
    row[77] = outlier  # on one side only
    scheme = Scheme(4, symmetric)
    by_range, fitted = quantize_array(row, scheme), quantize_array(row, scheme, fit="mse")
    assert squared_error(row, fitted) < 0.6 * squared_error(row, by_range)
