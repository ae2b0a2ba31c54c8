import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.errors import SettingError
from tinytorch.measure.estimate import (
    FASTER,
    INCONCLUSIVE,
    SAME,
    SLOWER,
    Estimate,
    read_verdict,
    time_verdict,
)

positive = st.floats(1e-6, 1e6)


@given(st.tuples(positive, positive, positive).map(sorted))
def test_the_inverse_of_the_inverse_is_the_estimate(ends):
    low, value, high = ends
    again = Estimate(value, low, high, coverage=0.9, n=7).inverse.inverse
    assert (again.value, again.low, again.high) == pytest.approx((value, low, high))
    assert (again.coverage, again.n) == (0.9, 7)


def test_the_inverse_of_nothing_is_infinite():
    assert Estimate.counted(0.0).inverse.value == math.inf


def test_a_value_outside_of_its_interval_is_refused():
    with pytest.raises(SettingError):
        Estimate(1.0, 2.0, 3.0)


@pytest.mark.parametrize("ends", [(1.0, math.nextafter(1.0, 2)), (math.nextafter(1.0, 0), 1.0)])
def test_an_interval_holds_its_value_in_spite_of_rounding(ends):
    for value in (math.nextafter(ends[0], 0), math.nextafter(ends[1], 2)):
        found = Estimate(value, *ends)
        assert found.low <= found.value <= found.high


@pytest.mark.parametrize(
    ("low", "high", "limit", "found"),
    [(1, 2, 2, True), (1, 2, 1, None), (1, 2, 0.5, False), (1, math.inf, 3, None)],
)
def test_an_interval_against_a_limit(low, high, limit, found):
    assert Estimate(low, low, high).is_below(limit) is found


def test_intervals_that_touch_are_not_apart():
    assert not Estimate(1, 1, 2).is_apart_from(Estimate(2, 2, 3))
    assert Estimate(1, 1, 2).is_apart_from(Estimate(2.1, 2.1, 3))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.5, 0.9, FASTER),
        (1.1, 1.5, SLOWER),
        (0.99, 1.01, SAME),
        (0.9, 1.1, INCONCLUSIVE),
        (0.9, 0.995, INCONCLUSIVE),
    ],
)
def test_the_verdict_on_a_time_ratio(low, high, verdict):
    assert time_verdict(Estimate(low, low, high), floor=0.01, band=0.02) == verdict


def test_an_estimate_unpacks_into_its_ends():
    low, high = Estimate(1, 0.5, 2)
    assert (low, high) == (0.5, 2)


def test_less_and_more_ask_for_the_whole_interval_and_a_share():
    assert Estimate(0.9, 0.8, 0.95).is_less_than(1)
    assert not Estimate(0.9, 0.8, 0.95).is_less_than(1, by=0.1)
    assert Estimate(1.1, 1.05, 1.2).is_more_than(Estimate(1, 0.9, 1.04))
    assert not Estimate(1.1, 1.05, 1.2).is_more_than(1, by=0.1)


def test_another_unit_keeps_coverage_and_count():
    assert Estimate(1.0, 0.5, 2.0, 0.9, 7).scaled(4) == Estimate(4.0, 2.0, 8.0, 0.9, 7)


def test_the_former_name_of_the_coverage_warns():
    with pytest.warns(DeprecationWarning, match="coverage"):
        assert Estimate(1.0, 0.5, 2.0, 0.9).confidence == 0.9


def test_verdicts_of_former_versions_are_read():
    assert read_verdict("not shown") == INCONCLUSIVE
    assert read_verdict(FASTER) == FASTER
