from dataclasses import replace

import pytest
from example_optimizations import inconclusive
from reported_optimizations import ROUNDED, UNUSABLE, timed, without_evidence

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.outputs import compare_outputs
from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.optimization_words import (
    TONES,
    accuracy_change,
    accuracy_text,
    attempt_phrases,
    interval_text,
    share_text,
    speed_text,
)
from tinytorch.reporting.terminal import STYLES
from tinytorch.transforms.plan import GOALS
from tinytorch.tuning.attempt import OUTCOMES


def changed(attempt, **changes):
    """Give the same attempt with another comparison."""
    return replace(attempt, comparison=replace(attempt.comparison, **changes))


def test_every_outcome_has_a_look():
    assert OUTCOMES.keys() == TONES.keys()
    assert set(TONES.values()) <= STYLES.keys()


def test_all_that_became_better_is_said_the_goal_first():
    attempt = timed("a", ratio=0.5, memory=0.5, size=0.25, lost=2)
    by_time = attempt_phrases(attempt, "latency")
    assert by_time[0].startswith("2.00x faster (1.99x to 2.01x)")
    assert by_time[1:] == [
        "2.00x smaller in parameters and live tensors",
        "4.00x smaller on disk",
        "as accurate (75.00% to 74.90%)",
    ]
    assert attempt_phrases(attempt, "size")[0] == "4.00x smaller on disk"
    assert attempt_phrases(attempt, "memory")[0] == "2.00x smaller in parameters and live tensors"


@pytest.mark.parametrize(
    ("ratio", "spread", "words"),
    [
        (1.25, 0.01, "slower (a speedup of 0.80x"),
        (1.0, 0.002, "as fast (0.999x to 1.001x)"),
        (1.0, 0.2, "inconclusive (interval "),
    ],
)
def test_what_did_not_become_faster_is_said(ratio, spread, words):
    assert attempt_phrases(timed("a", ratio=ratio, spread=spread))[0].startswith(words)


def test_what_grew_is_said_and_what_stayed_is_not():
    phrases = attempt_phrases(timed("a", memory=1.5, size=1.0))
    assert "1.50x as large in parameters and live tensors" in phrases
    assert not any("disk" in each for each in phrases)


@pytest.mark.parametrize("goal", GOALS)
def test_a_goal_always_has_its_word(goal):
    first = attempt_phrases(without_evidence("a", ratio=1.5), goal)[0]
    assert first == {
        "memory": "not smaller in parameters and live tensors",
        "size": "not smaller on disk",
    }.get(goal, attempt_phrases(without_evidence("a", ratio=1.5))[0])


def test_without_an_evaluate_outputs_are_what_is_said():
    attempt = changed(without_evidence("a"), outputs=ROUNDED)
    assert attempt_phrases(attempt)[-1] == "with outputs off by up to 0.001 of the largest"
    same = changed(attempt, outputs=compare_outputs([[1.0]], [[1.0]]))
    assert attempt_phrases(same)[-1] == "with the same outputs"


def test_a_score_that_is_no_accuracy_keeps_its_name():
    kept = compare_accuracy([2.0, 3.0] * 50, [2.0, 3.0] * 50, metric="reward", margin=1.0)
    words = attempt_phrases(changed(without_evidence("a"), accuracy=kept))[-1]
    assert words == "with as good a reward (2.5 to 2.5)"


def test_the_same_scores_of_few_examples_are_no_proof():
    few = compare_accuracy([1, 0], [1, 0])
    words = attempt_phrases(changed(without_evidence("a"), accuracy=few))[-1]
    assert words == "with the same scores (50.00% to 50.00%)"


def test_what_is_not_known_is_a_dash():
    never = UNUSABLE[0]
    assert attempt_phrases(never) == [never.outcome]
    written = (speed_text, interval_text, accuracy_text, accuracy_change)
    assert [write(never) for write in written] == ["-"] * 4
    assert share_text(None) == "-"
    assert share_text(Estimate.counted(0.25)) == "25.0%"


def test_numbers_of_an_attempt_are_those_of_its_comparison():
    attempt = timed("a", ratio=0.4, lost=3)
    assert speed_text(attempt) == "2.50x"
    assert interval_text(attempt) == "2.49x to 2.51x"
    assert accuracy_text(attempt) == "74.85%"
    assert accuracy_change(attempt) == "-0.15 points"


def test_where_scores_do_not_decide_outputs_stand_beside_them():
    tried = inconclusive("int8-static")
    passed = replace(tried, outcome="better")
    passed = replace(passed, comparison=replace(passed.comparison, outputs=ROUNDED))
    scores, outputs = attempt_phrases(passed)[-2:]
    assert scores == "accuracy inconclusive (99.40% to 100.00%, 168 examples)"
    assert outputs == attempt_phrases(without_scores(passed))[-1]


def without_scores(attempt):
    return replace(attempt, comparison=replace(attempt.comparison, accuracy=None))
