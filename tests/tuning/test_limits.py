import pytest
from example_comparisons import comparison
from example_optimizations import attempt

from tinytorch.comparison.resources import Resources
from tinytorch.errors import SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.interleaving import Round
from tinytorch.tuning.attempt import check_limits, checked_limits


def test_on_a_device_the_memory_of_weights_counts():
    sides = (Resources(), Resources(parameter_bytes=3_000_000, device_peak_bytes=1_000_000))
    one = attempt("a", comparison=comparison(0.5, resources=sides))
    (found,) = check_limits(one, {"memory_mb": 3.5})
    assert (found.found.value, found.verdict) == (4.0, "broken")


def test_a_limit_is_kept_broken_or_not_shown():
    one = attempt("a", time=0.5)  # 0.5 ms, 10 kB of memory, a file of 20 kB
    kept, broken = check_limits(one, {"latency_ms": 0.6, "memory_mb": 0.009})
    assert kept.verdict == "kept"
    assert kept.found.high < 0.6
    assert broken.verdict == "broken"
    assert broken.found == Estimate.counted(0.01)


def test_an_interval_around_the_limit_shows_nothing():
    (check,) = check_limits(attempt("a", time=0.5, spread=0.2), {"latency_ms": 0.5})
    assert check.verdict == "inconclusive"


def test_the_baseline_can_be_asked_too():
    (check,) = check_limits(attempt("a", time=0.5), {"latency_ms": 0.9}, of_baseline=True)
    assert check.verdict == "broken"
    assert check.found.value == pytest.approx(1.0)


def test_what_was_not_measured_is_not_shown():
    (check,) = check_limits(None, {"size_mb": 1})
    assert (check.verdict, check.found) == ("inconclusive", None)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"latency": 5}, "no limit is called 'latency'; there are latency_ms"),
        ({"size_mb": 0}, "size_mb=0 must be a positive number"),
        ({"size_mb": float("nan")}, "must be a positive number"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits, words):
    with pytest.raises(SettingError, match=words):
        checked_limits(limits)


def test_turns_of_one_round_are_not_taken_for_independent():
    """Six rounds with many turns each: their medians span the limit, so nothing is shown."""
    medians = (0.40, 0.41, 0.42, 0.43, 0.44, 0.56)
    rounds = tuple(Round((1e-3,) * 50, (1e-3 * each,) * 50) for each in medians)
    one = attempt("a", comparison=comparison(rounds=rounds))
    (check,) = check_limits(one, {"latency_ms": 0.5})
    assert check.verdict == "inconclusive"
    assert tuple(check.found) == pytest.approx((0.40, 0.56))


def test_a_few_rounds_show_nothing_about_a_limit():
    rounds = tuple(Round((1e-3,) * 50, (4e-4,) * 50) for _ in range(3))
    (check,) = check_limits(attempt("a", comparison=comparison(rounds=rounds)), {"latency_ms": 0.5})
    assert check.verdict == "inconclusive"
    assert check.to_dict()["high"] is None
