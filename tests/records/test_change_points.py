import numpy as np
import pytest
from scipy import stats

from tinytorch.errors import SettingError
from tinytorch.records.change_points import drifts, find_change_points

NOISE = {
    "gaussian": lambda rng, n: rng.standard_normal(n),
    "heavy tails": lambda rng, n: rng.standard_t(1.5, n),
    "two modes": lambda rng, n: rng.choice([-1.0, 1.0], n) + 0.05 * rng.standard_normal(n),
    "ties": lambda rng, n: rng.integers(0, 4, n).astype(float),
}


def levels(*parts):
    """Give a series of (value, how often) parts."""
    return np.concatenate([np.full(count, float(value)) for value, count in parts])


def places(values, **settings):
    return [change.index for change in find_change_points(values, **settings)]


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize(("length", "trials"), [(12, 150), (50, 100)])
def test_noise_gives_no_more_false_alarms_than_promised(rng, kind, length, trials):
    significance = 0.05
    alarms = sum(
        bool(places(10 + NOISE[kind](rng, length), significance=significance, min_change=0, seed=n))
        for n in range(trials)
    )
    # If each trial raises one with at most this probability, more than so many would be seen in
    # one of a thousand runs of this test; with its fixed numbers it never changes its mind.
    assert alarms <= stats.binom.ppf(0.999, trials, significance)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NOISE)
def test_many_long_series_hold_the_nominal_rate(rng, kind):
    trials, significance = 600, 0.05
    alarms = sum(
        bool(places(10 + NOISE[kind](rng, 150), significance=significance, min_change=0, seed=n))
        for n in range(trials)
    )
    assert alarms <= stats.binom.ppf(0.999, trials, significance)


STEPS = {
    "one": levels((1, 25), (1.15, 15)),
    "one that is fresh": levels((1, 36), (1.2, 4)),
    "two": levels((1, 20), (1.15, 20), (1.3, 20)),
    "two, up and back": levels((1, 25), (1.2, 8), (1, 27)),
    "three": levels((1, 20), (1.15, 20), (1, 20), (1.3, 20)),
    "three in a long series": levels((1, 90), (1.15, 80), (1, 70), (1.2, 60)),
}


@pytest.mark.parametrize("case", STEPS)
def test_real_steps_are_found_within_one_index(rng, case):
    truth = STEPS[case]
    expected = (np.flatnonzero(np.diff(truth)) + 1).tolist()
    trials = 600 // len(truth)
    # The smallest step is five standard deviations high.
    found = [places(truth + 0.03 * rng.standard_normal(len(truth)), seed=n) for n in range(trials)]
    near = [
        all(any(abs(place - each) <= 1 for each in seen) for place in expected) for seen in found
    ]
    # At a true rate of 99%, fewer would be seen once in a thousand times; and so for more than
    # the promised 1% with a false one beside them.
    assert sum(near) >= stats.binom.ppf(0.001, trials, 0.99)
    extra = sum(len(seen) > len(expected) for seen in found)
    assert extra <= stats.binom.ppf(0.999, trials, 0.01)


def test_steps_under_heavy_tails_are_mostly_found(rng):
    truth, hits, trials = STEPS["one"], 0, 40
    for seed in range(trials):
        found = places(truth + 0.02 * rng.standard_t(1.5, len(truth)), seed=seed)
        hits += len(found) == 1 and abs(found[0] - 25) <= 1
    # At a true rate of 90%, fewer would be seen once in a thousand times.
    assert hits >= stats.binom.ppf(0.001, trials, 0.9)


def test_a_true_step_does_not_bring_false_ones_along(rng):
    trials, significance, truth = 120, 0.05, STEPS["one"]
    found = [
        places(truth + 0.02 * rng.standard_normal(40), significance=significance, seed=n)
        for n in range(trials)
    ]
    assert all(found)
    extra = sum(len(seen) > 1 for seen in found)
    assert extra <= stats.binom.ppf(0.999, trials, significance)


def test_the_levels_and_their_ratio_are_given():
    (change,) = find_change_points(levels((2, 10), (3, 10)))
    assert (change.index, change.before, change.after, change.ratio) == (10, 2.0, 3.0, 1.5)
    assert 0 < change.p_value <= 0.01


def test_a_level_of_zero_has_no_ratio():
    (change,) = find_change_points(levels((0, 10), (3, 10)))
    assert (change.before, change.after, change.ratio) == (0.0, 3.0, None)


def test_the_p_values_keep_to_the_significance(rng):
    values = STEPS["three"] + 0.03 * rng.standard_normal(80)
    for significance in (0.05, 0.01, 0.001):
        changes = find_change_points(values, significance=significance)
        assert len(changes) == 3
        assert all(0 < change.p_value <= significance for change in changes)


@pytest.mark.parametrize("outlier", [0.0, 100.0, 1e12, -1e12])
@pytest.mark.parametrize("position", [0, 1, 15, 28, 29])
def test_a_single_outlier_is_no_change(rng, outlier, position):
    values = 1 + 0.01 * rng.standard_normal(30)
    values[position] = outlier
    assert places(values) == []


def test_outliers_do_not_hide_a_step(rng):
    values = levels((1, 20), (1.1, 20)) + 0.01 * rng.standard_normal(40)
    values[[3, 17, 30]] = 50.0, 0.0, 1000.0
    (found,) = places(values)
    assert abs(found - 20) <= 1


def test_three_bad_days_are_not_a_level():
    values = levels((1, 20), (5, 3), (1, 20))
    assert places(values) == []
    assert places(values, min_segment=3) == [20, 23]


@pytest.mark.parametrize("count", range(8))
def test_short_series_give_nothing(count):
    assert places(levels((1, count // 2), (9, count - count // 2))) == []


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-300, 1e300])
def test_constant_values_give_nothing(value):
    assert places([value] * 50) == []


def test_mostly_equal_values_can_change():
    assert places(levels((1, 30), (2, 10))) == [30]
    assert places(levels((1, 30), (1.001, 10))) == [], "less than 1%"
    assert places(levels((1, 30), (1.001, 10)), min_change=0.0005) == [30]


def test_a_change_below_the_least_is_dropped_but_not_the_others(rng):
    values = levels((1, 20), (1.03, 20), (1.5, 20)) + 0.001 * rng.standard_normal(60)
    assert places(values) == [20, 40]
    assert places(values, min_change=0.1) == [40]


def test_the_same_seed_gives_the_same_answer(rng):
    values = STEPS["three"] + 0.1 * rng.standard_normal(80)
    assert find_change_points(values, seed=3) == find_change_points(values.tolist(), seed=3)


def test_the_unit_does_not_matter(rng):
    values = STEPS["two"] + 0.03 * rng.standard_normal(60)
    assert places(values) == places(values * 1e-6) == places(values * 1e6)


def test_a_slow_drift_is_told_from_steps(rng):
    drift = np.linspace(1, 1.5, 60) + 0.01 * rng.standard_normal(60)
    changes = find_change_points(drift)
    assert len(changes) > 1
    assert all(change.after > change.before for change in changes)
    assert drifts(drift, changes)
    steps = STEPS["two"] + 0.01 * rng.standard_normal(60)
    assert not drifts(steps, find_change_points(steps))


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0, 1.0]])
def test_nothing_drifts_in_a_few_equal_values(values):
    assert not drifts(values, ())


@pytest.mark.parametrize(
    ("values", "settings", "words"),
    [
        ([1.0, np.nan], {}, "value nan at position 1"),
        ([[1.0]], {}, "one number per record"),
        ([1.0], {"significance": 0}, "significance=0"),
        ([1.0], {"significance": 1.5}, "significance=1.5"),
        ([1.0], {"min_segment": 1}, "at least 2"),
        ([1.0], {"min_change": -0.1}, "min_change=-0.1"),
        ([1.0], {"min_change": np.nan}, "min_change=nan"),
    ],
)
def test_impossible_settings_are_refused(values, settings, words):
    with pytest.raises(SettingError, match=words):
        find_change_points(values, **settings)


def test_a_drift_is_named_from_three_standard_deviations_on():
    # Of ten values the count of Kendall has a standard deviation of sqrt(125): 11.18.
    rising = np.arange(10.0)

    def swapped(count):
        """Give values of which so many pairs of neighbours have changed places."""
        values = rising.copy()
        for each in range(count):
            values[2 * each : 2 * each + 2] = values[2 * each : 2 * each + 2][::-1]
        return values

    # 45 pairs rise; each swap lets one of them fall, so that five leave an excess of 35: 3.13.
    assert [drifts(swapped(count), ()) for count in range(6)] == [True] * 6
    late = np.concatenate([rising[1:], rising[:1]])  # 9 pairs fall: 27 are 2.4
    assert not drifts(late, ())
    nearly = np.concatenate([rising[5:6], rising[:5], rising[6:]])  # 5 pairs fall: 35 are 3.13
    assert drifts(nearly, ())
    less = np.concatenate([rising[6:7], rising[:6], rising[7:]])  # 6 pairs fall: 33 are 2.95
    assert not drifts(less, ())
