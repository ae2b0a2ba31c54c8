"""Exponentials in compiled loops against float64."""

import math

import numpy as np
import pytest
from parts import require_part

require_part("numba")

from numba import njit

from tinytorch.core.kernels.numba import simd as fast
from tinytorch.core.kernels.reference import gelu as exact_gelu

EPS = float(np.finfo(np.float32).eps)


def over(function, *settings):
    @njit
    def loop(x, out):
        for index in range(x.size):
            out[index] = function(x[index], *settings)

    def apply(x):
        out = np.empty_like(x)
        loop(x, out)
        return out

    return apply


exp, tanh, sigmoid, erf = (over(each) for each in (fast.exp, fast.tanh, fast.sigmoid, fast.erf))


def test_exp_is_good_to_two_units_in_the_last_place():
    x = np.linspace(-87.3, 88.7, 300_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(exp(x) / exact - 1).max() < 2 * EPS


def test_exp_of_very_small_numbers_is_denormal_and_then_0():
    x = np.array([-87.4, -95.0, -103.0, -105.0, -1e30, -np.inf], np.float32)
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    np.testing.assert_allclose(exp(x), np.exp(x.astype(np.float64)), atol=smallest, rtol=2 * EPS)


def test_exp_overflows_where_float32_does():
    x = np.array([88.72, 88.73, 1e30, np.inf], np.float32)
    result = exp(x)
    assert math.isclose(result[0], math.exp(x[0]), rel_tol=2 * EPS)
    assert np.isposinf(result[1:]).all()


@pytest.mark.parametrize("function", [exp, tanh, sigmoid, erf])
def test_nan_stays_nan(function):
    assert np.isnan(function(np.array([np.nan], np.float32))).all()


@pytest.mark.parametrize(
    ("function", "exact", "bound"),
    [
        (tanh, np.tanh, 4 * EPS),
        (sigmoid, lambda x: 1 / (1 + np.exp(-x)), 4 * EPS),
        # the formula itself is good to 1.5e-7
        (erf, np.vectorize(math.erf), 1.5e-7 + 4 * EPS),
    ],
)
def test_bounded_functions_are_close_everywhere(function, exact, bound):
    x = np.concatenate([np.linspace(-20, 20, 100_001), [-1e30, 1e30]]).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = exact(x.astype(np.float64))
    np.testing.assert_allclose(function(x), expected, rtol=0, atol=bound)


def test_tanh_keeps_its_digits_near_0():
    x = np.logspace(-30, 0, 10_000).astype(np.float32)
    assert np.abs(tanh(x) / np.tanh(x.astype(np.float64)) - 1).max() < 8 * EPS


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu_is_close_everywhere(approximate):
    x = np.linspace(-12, 12, 50_001).astype(np.float32)
    wide = x.astype(np.float64)
    value = over(fast.gelu, approximate == "tanh")(x)
    # 1.5e-7 of erf, or a few roundings, times x / 2
    np.testing.assert_allclose(
        value, exact_gelu(wide, approximate=approximate), rtol=4 * EPS, atol=1e-6
    )


def test_larger_gives_nan_whichever_side_it_is_on():
    larger = njit(lambda a, b: fast.larger(a, b))
    nan, one, two = np.float32(np.nan), np.float32(1), np.float32(2)
    assert larger(one, two) == larger(two, one) == 2
    assert math.isnan(larger(nan, one))
    assert math.isnan(larger(one, nan))
