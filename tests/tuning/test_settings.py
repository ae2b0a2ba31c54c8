import pytest

from tinytorch.errors import SettingError
from tinytorch.tuning.attempt import Settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"goal": "speed"}, "goal='speed'; there are latency, throughput, memory, size"),
        ({"max_accuracy_drop": -1}, "max_accuracy_drop=-1; it must be zero or a positive number"),
        ({"max_output_error": float("nan")}, "max_output_error=nan"),
        ({"budget_s": 0}, "budget_s=0; it must be a positive number"),
        ({"seed": -1}, "seed=-1"),
        ({"limits": {"time": 1}}, "no limit is called 'time'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, words):
    with pytest.raises(SettingError, match=words):
        Settings(**changes)


def test_limits_are_numbers():
    assert Settings(limits={"size_mb": 1}).limits == {"size_mb": 1.0}


@pytest.mark.parametrize(
    ("goal", "timing"),
    [("latency", "latency"), ("throughput", "throughput"), ("memory", "latency")],
)
def test_the_goal_says_which_calls_decide(goal, timing):
    assert Settings(goal=goal).timing == timing


def test_single_calls_are_timed_too_where_they_are_limited_and_sustained_ones_decide():
    limits = {"latency_ms": 5.0}
    assert Settings(goal="throughput", limits=limits).needs_latency_beside
    assert not Settings(goal="latency", limits=limits).needs_latency_beside
    assert not Settings(goal="throughput").needs_latency_beside
