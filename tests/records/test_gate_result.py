import json
import re

import pytest
from example_gates import comparison, every_verdict, interval, timed
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.comparison.accuracy import AccuracyComparison, compare_accuracy
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.interleaving import Round
from tinytorch.records.gate_result import ACCURACY, SEVERITY, GateResult, TargetResult

RATIOS = st.floats(0.1, 10)


@given(RATIOS, RATIOS, RATIOS, st.floats(0.005, 0.9))
def test_only_an_interval_on_one_side_of_the_tolerance_decides(one, two, three, tolerance):
    low, value, high = sorted((one, two, three))
    found = TargetResult("x", tolerance, ratio=interval(value, low, high)).time_verdict
    assert (found == "regression") == (low > 1 + tolerance)
    assert (found == "passed") == (high <= 1 + tolerance)
    assert found in ("regression", "passed", "inconclusive")


@pytest.mark.parametrize(
    ("row", "verdict", "reason"),
    [
        (timed(ratio=1.5), "regression", r"\+50.0% time .*beyond the tolerance of 5.0%"),
        (timed(ratio=9.0), "regression", "9 times the time"),
        (timed(ratio=1.0), "passed", ""),
        (timed(ratio=0.8), "passed", "faster: -20.0% time"),
        (timed(ratio=1.03), "passed", r"slower: \+3.0% time"),
        (timed(ratio=1.05, spread=0.1), "inconclusive", "reaches over the tolerance"),
        (timed(obstacle="no evaluate"), "inconclusive", "no evaluate"),
        (timed(ratio=2.0, obstacle="no evaluate"), "regression", "no evaluate"),
        (TargetResult("x", 0.05, obstacle="another machine"), "inconclusive", "another machine"),
        (TargetResult("x", 0.05, problem="clock"), "invalid", "clock"),
        (TargetResult("x", 0.05, is_new=True), "new", "does not have it"),
        (TargetResult("x", 0.05, candidate_error="candidate fails"), "failed", "candidate fails"),
        (
            TargetResult("x", 0.05, baseline_error="baseline fails"),
            "inconclusive",
            "baseline fails",
        ),
        (
            TargetResult("x", 0.05, baseline_error="baseline: 1", candidate_error="candidate: 2"),
            "invalid",
            "candidate: 2; baseline: 1",
        ),
    ],
)
def test_the_verdict_follows_from_what_was_seen(row, verdict, reason):
    assert row.verdict == verdict
    assert re.search(reason, row.reason)


def test_lost_accuracy_is_less_severe_than_lost_time_and_more_than_doubt():
    worse = compare_accuracy([1] * 400, [0] * 400)
    assert timed(accuracy=worse).verdict == "accuracy"
    assert timed(accuracy=worse).reason.startswith("accuracy worse: 1 to 0")
    assert timed(ratio=2.0, accuracy=worse).verdict == "regression"
    assert timed(ratio=1.05, spread=0.1, accuracy=worse).verdict == "accuracy"


def test_few_examples_show_nothing_unless_outputs_are_the_same():
    few = compare_accuracy([1, 0] * 5, [1, 0] * 5)
    assert timed(accuracy=few).verdict == "inconclusive"
    assert timed(accuracy=few, has_same_outputs=True).verdict == "passed"
    other = compare_accuracy([1, 0] * 5, [0, 1] * 5)
    assert timed(accuracy=other, has_same_outputs=True).verdict == "inconclusive"


def test_rare_slow_calls_do_not_pass():
    fast = (0.001,) * 9
    rounds = tuple(Round((0.001,) * 10, (*fast, 0.02 + index * 1e-5)) for index in range(9))
    found = comparison(rounds=rounds)
    row = TargetResult("x", 0.05, ratio=found.ratio, comparison=found)
    assert found.contradiction
    assert row.verdict == "inconclusive"
    assert "rare slow calls" in row.reason


def test_the_worst_verdict_is_that_of_the_gate():
    gate = every_verdict()
    assert [row.verdict for row in gate.results] == list(SEVERITY)
    for start, verdict in enumerate(SEVERITY):
        assert GateResult("a", "b", gate.results[start:]).verdict == verdict


def test_a_gate_without_targets_does_not_pass():
    assert GateResult("a", "b", ()).verdict == "inconclusive"


def test_the_summary_counts_the_worst_first():
    rows = (timed(), timed(ratio=0.5), timed(ratio=2.0))
    assert GateResult("a", "b", rows).summary == "1 regression, 2 passed (1 faster)"


def test_the_summary_counts_no_speedups_where_there_are_none():
    assert GateResult("a", "b", (timed(ratio=1.0), timed(ratio=1.0))).summary == "2 passed"


def test_everything_has_a_form_in_json():
    fields = json.loads(json.dumps(every_verdict().to_dict(), allow_nan=False))
    assert fields["verdict"] == "failed"
    assert [each["verdict"] for each in fields["targets"]] == list(SEVERITY)
    assert fields["targets"][1]["time_ratio"]["value"] == pytest.approx(1.5, rel=1e-3)
    assert len(fields["targets"][1]["comparison"]["rounds"]) == 9


def test_what_is_an_obstacle_stands_in_the_reason_of_lost_accuracy():
    lost = AccuracyComparison((1.0,) * 500, (0.0,) * 500)
    found = TargetResult("x", 0.05, accuracy=lost, obstacle="the machine was busy")
    assert found.verdict == ACCURACY
    assert found.reason.endswith("the machine was busy")


def test_from_twice_the_time_on_it_is_times():
    assert "2 times" in TargetResult("x", 0.05, ratio=Estimate(2.0, 1.9, 2.1)).reason
    assert "+99.0%" in TargetResult("x", 0.05, ratio=Estimate(1.99, 1.9, 2.1)).reason
