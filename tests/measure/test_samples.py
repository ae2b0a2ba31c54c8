import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.errors import SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Outliers, Samples, values_needed

stats = require_part("scipy.stats")

NUMBERS = st.floats(-1e9, 1e9, allow_subnormal=False)
VALUES = st.lists(NUMBERS, min_size=1, max_size=60)
CONFIDENCES = st.floats(0.01, 0.999)


def test_statistics_are_those_of_numpy(rng):
    values = rng.lognormal(size=101)
    samples = Samples("x", tuple(values))
    assert samples.count == 101
    assert samples.median == np.median(values)
    assert samples.mean == pytest.approx(values.mean(), rel=1e-14)  # the order of adding
    assert samples.std == pytest.approx(values.std(ddof=1), rel=1e-14)
    assert (samples.minimum, samples.maximum) == (values.min(), values.max())
    for q in (0, 1, 50, 95, 99, 99.9, 100):
        assert samples.percentile(q) == np.percentile(values, q)


def test_one_value_is_enough():
    samples = Samples("x", (2.5,))
    assert (samples.median, samples.mean, samples.std) == (2.5, 2.5, 0.0)
    assert samples.median_interval() == Estimate(2.5, 2.5, 2.5, 0.0, 1)
    assert samples.outliers.total == 0
    assert not samples.stability.is_stable
    assert samples.stability.note == "too few values (1) to judge stability"


def test_the_median_leads_where_one_value_is_far_off():
    samples = Samples("x", (10.1, 10.4, 10.5, 10.6, 45.2))
    assert samples.median == 10.5
    assert samples.mean > 17


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_refused(wrong):
    with pytest.raises(SettingError, match=r"samples of 'x' hold -?(nan|inf) at position 1"):
        Samples("x", (1.0, wrong))


def test_nothing_measured_is_refused():
    with pytest.raises(SettingError, match="without a value; measure at least once"):
        Samples("x", ())


def test_loops_begin_at_one():
    with pytest.raises(SettingError, match="loops=0"):
        Samples("x", (1.0,), loops=0)


@pytest.mark.parametrize("q", [-1, 100.5, math.nan])
def test_a_percentile_outside_of_the_scale_is_refused(q):
    with pytest.raises(SettingError, match="percentile="):
        Samples("x", (1.0,)).percentile(q)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, math.nan])
def test_a_confidence_that_nobody_can_have_is_refused(confidence):
    with pytest.raises(SettingError, match="confidence"):
        Samples("x", (1.0,)).median_interval(confidence)


@given(VALUES, CONFIDENCES)
def test_the_interval_holds_the_median(values, confidence):
    samples = Samples("x", tuple(values))
    interval = samples.median_interval(confidence)
    assert interval.low <= samples.median <= interval.high
    assert 0 <= interval.coverage <= 1


@given(st.integers(1, 400), CONFIDENCES)
def test_the_interval_is_the_narrowest_that_scipy_would_allow(count, confidence):
    samples = Samples("x", tuple(range(count)))
    interval = samples.median_interval(confidence)
    left_out = int(interval.low)
    assert interval.high == count - 1 - left_out
    # It misses when at most `left_out` values lie below the median, or at most so many above.
    coverage = 1 - 2 * stats.binom.cdf(left_out, count, 0.5)
    assert interval.coverage == pytest.approx(max(0, coverage), abs=1e-12)
    narrower = 1 - 2 * stats.binom.cdf(left_out + 1, count, 0.5)
    assert narrower < confidence + 1e-9
    assert interval.coverage >= confidence or left_out == 0


def test_many_values_cost_no_accuracy():
    samples = Samples("x", tuple(range(20_001)))
    interval = samples.median_interval(0.95)
    expected = 1 - 2 * stats.binom.cdf(int(interval.low), 20_001, 0.5)
    assert interval.coverage == pytest.approx(expected, abs=1e-9)
    assert 0.95 <= interval.coverage < 0.952


@pytest.mark.parametrize("count", [6, 15, 40])
def test_the_interval_covers_the_truth_as_often_as_it_says(rng, count):
    trials = 4000
    draws = rng.exponential(size=(trials, count))
    intervals = [Samples("x", tuple(row)).median_interval(0.9) for row in draws]
    covered = np.mean([each.low <= math.log(2) <= each.high for each in intervals])
    claimed = intervals[0].coverage
    # Four standard errors of a share of 4000 trials.
    assert abs(covered - claimed) < 4 * math.sqrt(claimed * (1 - claimed) / trials)


def test_too_few_values_span_everything_and_say_their_coverage():
    assert Samples("x", (3.0, 1.0, 2.0)).median_interval(0.95) == Estimate(2.0, 1.0, 3.0, 0.75, 3)


@given(VALUES, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_matters_only_for_drift(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    one, other = Samples("x", tuple(values)), Samples("x", tuple(shuffled))
    for name in ("median", "mean", "std", "minimum", "maximum", "outliers"):
        assert getattr(one, name) == getattr(other, name)
    assert one.median_interval() == other.median_interval()
    assert one.percentile(90) == other.percentile(90)
    assert one.stability.relative_spread == other.stability.relative_spread


@given(VALUES)
def test_outliers_are_counted_once_and_never_dropped(values):
    samples = Samples("x", tuple(values))
    assert 0 <= samples.outliers.total <= len(values) / 2
    assert samples.count == len(values)


def test_outliers_lie_beyond_the_fences_of_tukey():
    # Quartiles 10 and 20: mild fences at -5 and 35, severe ones at -20 and 50.
    values = (10.0,) * 30 + (20.0,) * 30 + (-21.0, -6.0, -5.0, 35.0, 36.0, 49.0, 51.0)
    assert Samples("x", values).outliers == Outliers(1, 1, 2, 1)


def test_steady_values_are_stable(rng):
    stability = Samples("x", tuple(1 + 0.01 * rng.standard_normal(100))).stability
    assert stability.is_stable
    assert stability.relative_spread == pytest.approx(0.01, rel=0.3)  # the error of 100 draws
    assert stability.note.startswith("stable")


def test_a_drift_is_seen_with_its_sign(rng):
    values = np.linspace(1.0, 1.2, 100) + 0.001 * rng.standard_normal(100)
    up, down = Samples("x", tuple(values)).stability, Samples("x", tuple(values[::-1])).stability
    assert not up.is_stable
    assert up.drift > 0.05
    assert down.drift < -0.05
    assert "drift by +" in up.note
    assert "drift by -" in down.note


def test_a_wide_spread_is_unstable(rng):
    stability = Samples("x", tuple(rng.uniform(1, 2, size=200))).stability
    assert not stability.is_stable
    assert "spread" in stability.note


def test_values_around_zero_have_no_relative_spread():
    assert Samples("x", (0.0,) * 5).stability.relative_spread == 0
    assert Samples("x", (-1.0, -1.0, 0.0, 1.0, 1.0)).stability.relative_spread == math.inf


def test_another_unit_keeps_everything_else():
    samples = Samples("x", (1.0, 2.0), loops=3, notes=("busy",))
    assert samples.scaled(1e3, "ms") == Samples("x", (1e3, 2e3), "ms", 3, ("busy",))


def test_notes_add_up():
    samples = Samples("x", (1.0,)).with_notes("a").with_notes("b", "c")
    assert samples.notes == ("a", "b", "c")


@given(VALUES)
def test_samples_survive_a_dictionary(values):
    samples = Samples("x", tuple(values), "B", 2, ("note",))
    assert Samples.from_dict(samples.to_dict()) == samples


def test_values_become_plain_numbers(rng):
    samples = Samples("x", rng.standard_normal(3))
    assert all(type(value) is float for value in samples.values)
    assert hash(samples) == hash(Samples.from_dict(samples.to_dict()))


# ---------------------------------------------------------------- intervals of percentiles

PERCENTILES = st.floats(0.1, 99.9)


@given(st.integers(1, 500), PERCENTILES, CONFIDENCES)
def test_the_interval_of_a_percentile_is_the_narrowest_that_scipy_would_allow(count, q, confidence):
    interval = Samples("x", tuple(range(count))).percentile_interval(q, confidence)
    allowed, below = (1 - confidence) / 2, stats.binom(count, q / 100)
    missed = 0.0
    if interval.low > -math.inf:  # it misses when at most `low` values lie below
        missed += below.cdf(interval.low)
        assert below.cdf(interval.low) <= allowed * (1 + 1e-9)
    assert below.cdf(max(interval.low, -1) + 1) > allowed * (1 - 1e-9)
    if interval.high < math.inf:  # it misses when more than `high` values lie below
        missed += below.sf(interval.high)
        assert below.sf(interval.high) <= allowed * (1 + 1e-9)
    assert below.sf(min(interval.high, count) - 1) > allowed * (1 - 1e-9)
    assert interval.coverage == pytest.approx(1 - missed, abs=1e-9)
    assert interval.coverage >= confidence - 1e-9


@given(st.integers(6, 300), st.floats(0.5, 0.96))
def test_the_interval_of_the_fiftieth_percentile_is_that_of_the_median(count, confidence):
    samples = Samples("x", tuple(range(count)))
    one, other = samples.percentile_interval(50, confidence), samples.median_interval(confidence)
    assert (one.low, one.high) == (other.low, other.high)
    assert one.coverage == pytest.approx(other.coverage, abs=1e-9)


@given(st.integers(0, 2**32 - 1), PERCENTILES, st.integers(0, 200))
def test_an_interval_holds_its_percentile_once_there_are_enough_values(seed, q, more):
    values = np.random.default_rng(seed).lognormal(size=values_needed(q) + more)
    samples = Samples("x", tuple(values))
    interval = samples.percentile_interval(q)
    assert interval.low <= samples.percentile(q) <= interval.high


@pytest.mark.parametrize(("q", "needed"), [(99, 368), (99.9, 3688), (90, 36), (50, 6), (10, 36)])
def test_an_end_is_infinite_until_there_are_enough_values(q, needed):
    assert values_needed(q) == needed
    for count, is_enough in ((needed, True), (needed - 1, False)):
        interval = Samples("x", tuple(range(count))).percentile_interval(q)
        assert (math.isfinite(interval.low) and math.isfinite(interval.high)) is is_enough


@given(PERCENTILES, CONFIDENCES)
def test_so_many_values_are_needed_and_no_fewer(q, confidence):
    needed = values_needed(q, confidence)
    rarer = min(q, 100 - q) / 100
    assert (1 - rarer) ** needed <= (1 - confidence) / 2 * (1 + 1e-9)
    assert needed == 1 or (1 - rarer) ** (needed - 1) > (1 - confidence) / 2 * (1 - 1e-9)


@pytest.mark.parametrize(("count", "q"), [(50, 90), (400, 99), (1000, 99), (40, 25)])
def test_the_interval_of_a_percentile_covers_the_truth_as_often_as_it_says(rng, count, q):
    trials = 1000
    draws = rng.lognormal(sigma=1.5, size=(trials, count))
    intervals = [Samples("x", tuple(row)).percentile_interval(q) for row in draws]
    truth = stats.lognorm(1.5).ppf(q / 100)
    covered = np.mean([each.low <= truth <= each.high for each in intervals])
    claimed = intervals[0].coverage
    # Four standard errors of a share of 1000 trials.
    assert abs(covered - claimed) < 4 * math.sqrt(claimed * (1 - claimed) / trials)


def test_values_that_repeat_are_covered_at_least_as_often(rng):
    draws = rng.integers(0, 5, size=(1000, 60))
    intervals = [Samples("x", tuple(row)).percentile_interval(90) for row in draws]
    assert np.mean([each.low <= 4 <= each.high for each in intervals]) >= 0.95


def test_many_values_have_an_interval_too():
    interval = Samples("x", tuple(range(200_000))).percentile_interval(99.9)
    below = stats.binom(200_000, 0.999)
    expected = below.sf(interval.low) - below.sf(interval.high)
    assert interval.coverage == pytest.approx(expected, abs=1e-9)
    assert 0.95 <= interval.coverage < 0.955


@pytest.mark.parametrize("q", [0, 100, -1, math.nan])
def test_the_ends_of_the_scale_have_no_interval(q):
    for ask in (values_needed, Samples("x", (1.0,)).percentile_interval):
        with pytest.raises(SettingError, match="percentile="):
            ask(q)


@pytest.mark.parametrize("confidence", [0, 1, math.nan])
def test_no_percentile_has_a_confidence_that_nobody_can_have(confidence):
    for ask in (values_needed, Samples("x", (1.0,)).percentile_interval):
        with pytest.raises(SettingError, match="confidence"):
            ask(99, confidence)


def test_two_values_have_a_deviation():
    assert Samples("latency", (1.0, 3.0)).std == pytest.approx(math.sqrt(2))


def test_a_drift_is_from_the_first_half_to_the_last():
    # The last half of twenty values are ten, five of them 1 and five 2.
    drift = Samples("latency", (1.0,) * 15 + (2.0,) * 5).stability.drift
    assert drift == pytest.approx(0.5)


def test_of_two_bad_values_the_first_is_named():
    with pytest.raises(SettingError, match="nan at position 1"):
        Samples("latency", (1.0, math.nan, 2.0, math.inf))
