import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.errors import SettingError
from tinytorch.measure.samples import student_t_quantile
from tinytorch.profiling.size_laws import predict_scaling

stats = require_part("scipy.stats")


def test_the_example_is_quadratic():
    found = predict_scaling([128, 256, 512], [10, 40, 160], at=2048)
    assert found.value == pytest.approx(2560)
    assert found.exponent == pytest.approx(2)
    assert found.interval.low <= found.value <= found.interval.high
    assert found.notes == ()


@given(st.floats(-3, 4), st.floats(1e-6, 1e6), st.floats(1, 1e5))
def test_an_exact_power_law_is_found(exponent, factor, at):
    sizes = [10, 30, 100, 1000]
    values = [factor * size**exponent for size in sizes]
    found = predict_scaling(sizes, values, at=at)
    assert found.exponent == pytest.approx(exponent, abs=1e-9)
    assert found.value == pytest.approx(factor * at**exponent, rel=1e-6)
    assert found.factor == pytest.approx(factor, rel=1e-6)
    assert max(map(abs, found.residuals)) < 1e-9


def test_slope_and_intervals_are_those_of_scipy(rng):
    sizes = np.array([1.0, 2, 4, 8, 16, 32])
    values = 3 * sizes**1.5 * np.exp(0.1 * rng.standard_normal(6))
    found = predict_scaling(sizes, values, at=100, confidence=0.9)
    x, y = np.log(sizes), np.log(values)
    fit = stats.linregress(x, y)
    reach = stats.t.ppf(0.95, 4)
    assert found.exponent == pytest.approx(fit.slope)
    assert found.exponent_interval.high == pytest.approx(fit.slope + reach * fit.stderr)
    sigma = math.sqrt(((y - fit.intercept - fit.slope * x) ** 2).sum() / 4)
    leverage = 1 + 1 / 6 + (math.log(100) - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
    high = fit.intercept + fit.slope * math.log(100) + reach * sigma * math.sqrt(leverage)
    assert found.interval.high == pytest.approx(math.exp(high))


def test_the_prediction_interval_covers_as_often_as_it_says(rng):
    sizes, trials, hits = np.array([1.0, 2, 4, 8, 16]), 1500, 0
    for _ in range(trials):
        values = sizes**2 * np.exp(0.2 * rng.standard_normal(5))
        truth = 64.0**2 * math.exp(0.2 * rng.standard_normal())
        interval = predict_scaling(sizes, values, at=64, confidence=0.8).interval
        hits += interval.low <= truth <= interval.high
    # Four standard errors of a share of 1500 trials.
    assert abs(hits / trials - 0.8) < 4 * math.sqrt(0.8 * 0.2 / trials)


def test_repeated_measurements_count_each():
    repeated = predict_scaling([1, 2, 4], [[1, 1.1], [2, 2.2, 2.1], [4]], at=8)
    flat = predict_scaling([1, 1, 2, 2, 2, 4], [1, 1.1, 2, 2.2, 2.1, 4], at=8)
    assert (repeated.value, repeated.interval) == (flat.value, flat.interval)
    assert len(repeated.residuals) == 6


def test_two_measurements_give_no_interval_and_say_so():
    found = predict_scaling([1, 2], [3, 6], at=4)
    assert found.value == pytest.approx(12)
    assert (found.interval.low, found.interval.high) == (0, math.inf)
    assert found.exponent_interval.high == math.inf
    assert any("no interval" in note for note in found.notes)


def test_a_curve_that_bends_is_noticed():
    sizes = [1, 10, 100, 1000]
    found = predict_scaling(sizes, [100 + size for size in sizes], at=2000)
    assert any("not a pure power law" in note for note in found.notes)


def test_a_size_far_away_is_noticed():
    found = predict_scaling([1, 2, 4], [1, 2, 4], at=1000)
    assert any("far from the measured sizes" in note for note in found.notes)


@pytest.mark.parametrize(
    ("sizes", "values", "settings", "message"),
    [
        ([1, 2], [1], {}, "2 sizes but 1 values"),
        ([], [], {}, "at least two different sizes"),
        ([4, 4], [1, 2], {}, "at least two different sizes"),
        ([0, 1], [1, 2], {}, "size 0; a power law needs positive"),
        ([1, 2], [1, -2], {}, "value -2"),
        ([1, 2], [1, math.nan], {}, "value nan"),
        ([1, 2], [[1], []], {}, "a size without a value"),
        ([1, 2], [1, 2], {"at": 0}, "at 0"),
        ([1, 2], [1, 2], {"confidence": 1}, "confidence=1"),
    ],
)
def test_what_has_no_trend_is_refused(sizes, values, settings, message):
    with pytest.raises(SettingError, match=message):
        predict_scaling(sizes, values, **{"at": 3, **settings})


@given(st.floats(0.0005, 0.9995), st.integers(1, 300))
def test_the_quantile_is_that_of_scipy(probability, freedom):
    assume(abs(probability - 0.5) > 1e-6)
    expected = stats.t.ppf(probability, freedom)
    assert student_t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("probability", "freedom"), [(0, 3), (1, 3), (0.5, 0)])
def test_an_impossible_quantile_is_refused(probability, freedom):
    with pytest.raises(SettingError):
        student_t_quantile(probability, freedom)
