import pytest
from example_optimizations import attempt
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.measure.estimate import Estimate
from tinytorch.tuning.attempt import INACCURATE, SAME_BYTES, Measured
from tinytorch.tuning.ranking import dominates, front_of

values = st.builds(
    lambda value, doubt: Estimate(value, value - doubt, value + doubt),
    st.floats(0.1, 2),
    st.floats(0, 0.1),
)
points = st.builds(Measured, values, values, values, values)


def test_what_is_beaten_in_everything_is_not_on_the_front():
    better = attempt("better", time=0.4, memory=0.5)
    worse = attempt("worse", time=0.8, memory=0.6)
    assert front_of([worse, better]) == ("better",)


def test_a_trade_keeps_both_and_the_model_as_it_is():
    fast = attempt("fast", time=0.5, memory=2.0)
    small = attempt("small", time=1.5, memory=0.5)
    assert front_of([fast, small]) == ("", "fast", "small")


def test_what_is_not_as_good_has_no_place():
    assert front_of([attempt("quick", time=0.1, outcome=INACCURATE)]) == ("",)


def test_a_difference_that_is_not_shown_beats_nobody():
    vague = attempt("vague", time=0.97, spread=0.2)
    assert front_of([vague]) == ("", "vague")


@given(points, points)
def test_two_never_dominate_each_other(one, other):
    assert not (dominates(one, other) and dominates(other, one))
    assert not dominates(one, one)


@given(points, points, points)
def test_domination_is_passed_on(first, second, third):
    if dominates(first, second) and dominates(second, third):
        assert first.time.value <= third.time.value
        assert not dominates(third, first)


def point(time=1.0, memory=1.0, size=1.0, accuracy=0.9, *, doubt=0.0):
    made = (Estimate(each, each - doubt, each + doubt) for each in (time, memory, size, accuracy))
    return Measured(*made)


def test_better_accuracy_alone_dominates():
    assert dominates(point(accuracy=0.95), point())
    assert not dominates(point(), point(accuracy=0.95))
    assert not dominates(point(accuracy=0.95, time=1.001), point())


@pytest.mark.parametrize("objective", ["memory", "size"])
def test_bytes_may_differ_by_a_little(objective):
    little, more = 1 + SAME_BYTES / 2, 1 + 2 * SAME_BYTES
    # As good within the slack, so that the faster one dominates; better only beyond it.
    assert dominates(point(time=0.5, **{objective: little}), point())
    assert not dominates(point(time=0.5, **{objective: more}), point())
    assert not dominates(point(), point(**{objective: little}))
    assert dominates(point(), point(**{objective: more}))


def test_time_has_no_slack():
    slower = 1 + SAME_BYTES / 2
    assert not dominates(point(memory=0.5, time=slower), point())
    assert dominates(point(), point(time=slower))


def test_exactly_equal_times_are_as_good():
    assert dominates(point(memory=0.5), point())
    assert not dominates(point(), point(memory=0.5))
    assert not dominates(point(), point())


def test_the_limit_of_the_slack_itself_is_as_good():
    assert dominates(point(time=0.5, memory=1 + SAME_BYTES), point())
