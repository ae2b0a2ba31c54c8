import pytest
from example_comparisons import comparison, contradictory
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.comparison.comparison import EXPECTATIONS, is_met, is_met_by
from tinytorch.errors import SettingError
from tinytorch.measure.estimate import Estimate, time_verdict

LIMITS = {"floor": 0.005, "band": 0.01}
ratios = st.lists(st.floats(0.5, 2), min_size=3, max_size=3).map(
    lambda ends: Estimate(sorted(ends)[1], min(ends), max(ends))
)


@pytest.mark.parametrize(
    ("low", "high", "faster", "same", "not_slower"),
    [
        (0.7, 0.8, True, False, True),
        (1.2, 1.3, False, False, False),
        (0.997, 1.003, False, True, True),
        (0.98, 1.003, None, None, True),
        (0.999, 1.03, False, None, None),
        (0.9, 1.1, None, None, None),
        (1.006, 1.009, False, False, False),
    ],
)
def test_intervals_show_refute_or_leave_open(low, high, faster, same, not_slower):
    ratio = Estimate((low + high) / 2, low, high)
    found = [is_met(name, ratio, **LIMITS) for name in EXPECTATIONS]
    assert found == [faster, same, not_slower]


@given(ratios)
def test_expectations_never_contradict_the_verdict(ratio):
    verdict = time_verdict(ratio, **LIMITS)
    if verdict == "faster":
        assert is_met("faster", ratio, **LIMITS) is True
        assert is_met("not-slower", ratio, **LIMITS) is True
    if verdict == "slower":
        assert [is_met(name, ratio, **LIMITS) for name in EXPECTATIONS] == [False] * 3
    if is_met("same", ratio, **LIMITS) is True:
        assert verdict == "same"


def test_an_unknown_expectation_is_refused():
    with pytest.raises(SettingError, match="'better' cannot be expected; one of faster, same"):
        is_met("better", Estimate(1, 1, 1), **LIMITS)


def test_a_finished_comparison_is_judged_by_its_own_floor():
    assert is_met_by("faster", comparison(0.8)) is True
    assert is_met_by("faster", comparison(0.8, floor=0.5)) is False


def test_where_mean_and_typical_calls_disagree_nothing_is_shown():
    assert contradictory().time_ratio < 1
    assert is_met_by("not-slower", contradictory()) is None
