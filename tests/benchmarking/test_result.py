import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.benchmarking.benchmark import BenchmarkResult
from tinytorch.errors import SettingError


def test_the_golden_numbers():
    result = BenchmarkResult("latency", [1.0, 2.0, 3.0, 4.0, 5.0], {"device": "cpu"})
    assert (result.mean, result.median, result.count) == (3.0, 3.0, 5)
    assert (result.min_val, result.max_val) == (1.0, 5.0)
    assert result.std == pytest.approx(statistics.stdev([1, 2, 3, 4, 5]), rel=1e-15)
    assert result.metadata == {"device": "cpu"}


def test_the_interval_is_of_the_median_and_of_order_statistics():
    values = np.random.default_rng(0).lognormal(size=40)
    result = BenchmarkResult("latency", values)
    wanted = require_part("scipy.stats").quantile_test(values, q=0, p=0.5).confidence_interval(0.95)
    assert (result.ci_lower, result.ci_upper) == (wanted.low, wanted.high)


def test_the_coverage_is_the_real_one():
    assert BenchmarkResult("x", [1, 2, 3, 4, 5]).ci_confidence == 1 - 2 / 2**5
    assert BenchmarkResult("x", range(6)).ci_confidence == 1 - 2 / 2**6 > 0.95
    coverage = BenchmarkResult("x", range(40)).to_dict()["ci_confidence"]
    binom = require_part("scipy.stats").binom(40, 0.5)
    assert coverage == pytest.approx(1 - 2 * binom.cdf(13), rel=1e-12)


def test_one_value_works_and_claims_nothing():
    result = BenchmarkResult("memory", [2.5])
    assert (result.mean, result.std, result.ci_lower, result.ci_upper) == (2.5, 0.0, 2.5, 2.5)
    assert result.ci_confidence == 0.0
    assert str(result) == "memory: 2.5 (a single value)"


def test_scores_have_an_interval_of_their_mean():
    result = BenchmarkResult("accuracy", [1] * 97 + [0] * 3, interval_of="mean")
    assert result.ci_lower < result.mean == 0.97 < result.ci_upper < 1
    assert (result.typical, BenchmarkResult("x", [1, 2, 30]).typical) == (0.97, 2.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "without a value"),
        ([1.0, math.nan], "nan at position 1"),
        ([math.inf], "inf at position 0"),
        (None, "give a list of numbers"),
        (3.0, "give a list of numbers"),
    ],
)
def test_values_that_mean_nothing_are_refused(values, message):
    with pytest.raises(SettingError, match=message):
        BenchmarkResult("latency", values)


def test_a_failure_carries_the_error_and_no_number():
    result = BenchmarkResult.failed("latency", "ValueError: no")
    numbers = result.to_dict()
    assert result.is_failed
    assert [numbers[key] for key in ("mean", "std", "median", "min_val", "ci_lower")] == [None] * 5
    assert (numbers["error"], numbers["values"], result.typical) == ("ValueError: no", [], None)
    assert str(result) == "latency: failed, ValueError: no"


def test_a_failure_with_values_is_refused():
    with pytest.raises(SettingError, match="one of the two"):
        BenchmarkResult("latency", [1.0], error="ValueError: no")


def test_an_unknown_interval_is_refused():
    with pytest.raises(SettingError, match="'median' or 'mean'"):
        BenchmarkResult("latency", [1.0], interval_of="mode")


def test_what_it_holds_does_not_change_later():
    values, facts = [1.0, 2.0], {"runs": 2}
    result = BenchmarkResult("latency", values, facts)
    values.append(9.0)
    facts["runs"] = 3
    assert (result.values, result.metadata) == ((1.0, 2.0), {"runs": 2})


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_statistics_are_in_order_and_fit_into_json(values):
    result = BenchmarkResult("x", values, unit="ms")
    assert result.min_val <= result.ci_lower <= result.median <= result.ci_upper <= result.max_val
    assert json.loads(json.dumps(result.to_dict()))["values"] == values
    assert "ms" in str(result)
