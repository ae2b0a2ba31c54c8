import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.benchmarking.suite_run import dominates, pareto_front
from tinytorch.errors import SettingError

POINTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12)
DIRECTIONS = st.tuples(st.booleans(), st.booleans())


def better(first, second, lower):
    return first < second if lower else first > second


@given(POINTS, DIRECTIONS)
def test_the_front_is_those_that_nobody_beats(points, directions):
    named = {str(index): point for index, point in enumerate(points)}
    front = pareto_front(named, lower_is_better=directions)
    for name, point in named.items():
        beaten = any(
            not any(better(p, o, low) for o, p, low in zip(other, point, directions, strict=True))
            and any(better(o, p, low) for o, p, low in zip(other, point, directions, strict=True))
            for other in points
        )
        assert (name in front) is not beaten
    assert front, "somebody is always best"


@given(POINTS, DIRECTIONS)
def test_nobody_beats_himself_or_one_who_beats_him(points, directions):
    for first in points:
        assert not dominates(first, first, lower_is_better=directions)
        for second in points:
            both = [
                dominates(first, second, lower_is_better=directions),
                dominates(second, first, lower_is_better=directions),
            ]
            assert both != [True, True]


def test_equal_points_are_both_on_the_front_and_the_best_comes_first():
    points = {"b": (2.0, 0.9), "a": (1.0, 0.8), "c": (2.0, 0.9), "d": (3.0, 0.9)}
    assert pareto_front(points, lower_is_better=(True, False)) == ["a", "b", "c"]
    assert pareto_front({}, lower_is_better=(True,)) == []


def test_every_objective_has_a_direction():
    with pytest.raises(SettingError, match="'a' has 2 objectives"):
        pareto_front({"a": (1.0, 2.0)}, lower_is_better=(True,))
