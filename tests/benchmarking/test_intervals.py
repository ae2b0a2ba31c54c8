import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.benchmarking.checks import mean_interval, ratio_interval, share_interval
from tinytorch.errors import SettingError


@pytest.mark.parametrize(("hits", "count"), [(0, 1), (0, 40), (7, 9), (40, 40), (1, 5000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_shares_have_the_interval_of_scipy(hits, count, confidence):
    stats = require_part("scipy.stats")
    wanted = stats.binomtest(hits, count).proportion_ci(confidence, method="wilson")
    found = share_interval(hits, count, confidence)
    # Both round a handful of operations on numbers of order one.
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)
    assert found.coverage == confidence


@pytest.mark.parametrize("count", [2, 5, 30, 400])
def test_means_have_the_interval_of_scipy(rng, count):
    stats = require_part("scipy.stats")
    values = rng.standard_normal(count)
    wanted = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = mean_interval(values)
    # The quantile is found by bisection, to about ten digits.
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), rel=1e-7)


def test_zeros_and_ones_are_shares():
    assert mean_interval([1, 0, 1, 1]) == share_interval(3, 4)


def test_a_single_value_says_nothing_about_others():
    found = mean_interval([0.3])
    assert (found.low, found.high, found.coverage) == (0.3, 0.3, 0.0)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_shares_stay_between_zero_and_one_and_hold_the_estimate(case):
    hits, count = case
    found = share_interval(hits, count)
    assert 0 <= found.low <= hits / count <= found.high <= 1
    assert found.low < found.high


@pytest.mark.parametrize(("hits", "count"), [(1, 0), (-1, 5), (6, 5)])
def test_impossible_shares_are_refused(hits, count):
    with pytest.raises(SettingError, match="hits"):
        share_interval(hits, count)


def test_ratios_are_taken_pair_by_pair():
    slow = np.array([2.0, 20.0, 4.0, 6.0, 8.0, 2.0, 2.0])  # the machine was busy in the second
    interval = ratio_interval(slow, slow / 2)
    assert (interval.value, interval.low, interval.high) == (2.0, 2.0, 2.0)
    assert interval.coverage > 0.95
