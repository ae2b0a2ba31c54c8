import pytest
from example_comparisons import comparison
from example_optimizations import attempt
from example_optimizations import measured as example

from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.tuning.attempt import BETTER, INACCURATE, NO_GAIN, WORSE
from tinytorch.tuning.ranking import best_of, choose, next_best, outcome_at


@pytest.mark.parametrize(
    ("goal", "compared", "outcome"),
    [
        ("latency", example(0.5), BETTER),
        ("throughput", example(1.5), WORSE),
        ("latency", example(1.0, spread=0.002), NO_GAIN),
        ("latency", example(1.0, spread=0.2), INCONCLUSIVE),
        ("memory", example(1.5, memory=0.5), BETTER),
        ("memory", example(0.5, memory=1.5), WORSE),
        ("size", example(0.5, size=1.0), NO_GAIN),
        ("size", comparison(0.5), INCONCLUSIVE),
    ],
)
def test_a_goal_has_its_own_objective(goal, compared, outcome):
    assert outcome_at(goal, compared) == outcome


def test_the_best_is_acceptable_and_better():
    quick = attempt("quick", time=0.1, outcome=INACCURATE)
    good, worse = attempt("good", time=0.5), attempt("worse", time=1.5, outcome=WORSE)
    assert best_of([quick, good, worse], goal="latency", limits={}) is good
    assert best_of([quick, worse], goal="latency", limits={}) is None


def test_limits_are_conditions():
    fast, small = attempt("fast", time=0.3, size=1.0), attempt("small", time=0.5, size=0.2)
    assert best_of([fast, small], goal="latency", limits={"size_mb": 0.01}) is small
    assert best_of([fast, small], goal="latency", limits={"size_mb": 0.001}) is None


def test_what_alone_keeps_to_a_limit_is_taken_though_it_is_slower():
    small = attempt("small", time=1.2, size=0.2, outcome=WORSE)
    assert best_of([small], goal="latency", limits={"size_mb": 0.01}) is small
    assert best_of([small], goal="latency", limits={"size_mb": 1}) is None


def test_a_stack_not_shown_to_be_faster_than_another_does_not_come_before_it():
    alone = attempt("int8", time=0.5)
    against = comparison(0.99, spread=0.1, baseline_name="int8")
    stack = attempt("int8", "threads", time=0.49, against_best=against)
    assert best_of([alone, stack], goal="latency", limits={}) is alone
    faster = attempt(
        "int8", "threads", time=0.4, against_best=comparison(0.8, baseline_name="int8")
    )
    assert best_of([alone, faster], goal="latency", limits={}) is faster
    # Where the other one breaks a limit, there is nothing that it would have to be faster than.
    small = attempt("int8", "threads", time=0.49, size=0.2, against_best=against)
    assert best_of([alone, small], goal="latency", limits={"size_mb": 0.01}) is small


def test_of_equal_sizes_the_faster_one_is_taken():
    slow, fast = attempt("slow", time=0.9, size=0.25), attempt("fast", time=0.5, size=0.25)
    assert best_of([slow, fast], goal="size", limits={}) is fast
    smaller = attempt("smaller", time=2.0, size=0.2)
    assert best_of([slow, fast, smaller], goal="size", limits={}) is smaller


@pytest.mark.parametrize("outcome", [NO_GAIN, INCONCLUSIVE, WORSE, INACCURATE, "broken", "failed"])
def test_what_a_fresh_comparison_does_not_confirm_is_not_chosen(outcome):
    first, second = attempt("first", time=0.5), attempt("second", time=0.8)
    again = attempt("first", time=1.0, outcome=outcome)
    assert next_best([first, second], [again], goal="latency", limits={}) is second
    assert choose([first, second], [again], goal="latency", limits={}) is None
    confirmed = [again, attempt("second", time=0.85)]
    assert choose([first, second], confirmed, goal="latency", limits={}) is second
    again = attempt("first", time=0.7)
    assert choose([first, second], [again], goal="latency", limits={}) is first


def test_a_limit_must_be_kept_when_measured_again():
    first = attempt("first", time=0.5)
    again = attempt("first", time=0.7)
    assert choose([first], [again], goal="latency", limits={"latency_ms": 0.6}) is None
    assert choose([first], [again], goal="latency", limits={"latency_ms": 0.8}) is first
