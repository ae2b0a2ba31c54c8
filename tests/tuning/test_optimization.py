import json
from dataclasses import replace

import pytest
from example_comparisons import comparison
from example_optimizations import attempt, inconclusive, optimization

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.errors import RecordError, SettingError
from tinytorch.transforms.plan import Gain
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BROKEN,
    FAILED,
    INACCURATE,
    NOT_TRIED,
    SKIPPED,
    Settings,
)
from tinytorch.tuning.optimization import Contribution, Optimization


def test_json_gives_it_back():
    one = optimization(
        attempt("a", time=0.5),
        attempt("b", outcome=FAILED, reason="OSError: no"),
        advice=(Advice("rule", "title", ("50%",), "a"),),
        ablation=(Contribution("a", comparison(0.9)), Contribution("b", None, "why")),
        settings=Settings(limits={"size_mb": 1}),
        notes=("note",),
    )
    again = Optimization.from_dict(json.loads(json.dumps(one.to_dict())))
    assert again == one
    assert again.recommended.name == "a"


def test_another_schema_is_refused():
    with pytest.raises(RecordError, match=r"Optimization\.schema: expected 1.* got 99"):
        Optimization.from_dict({"schema": 99})


def test_conclusions():
    one = optimization(
        attempt("a", time=0.5),
        attempt("b", outcome=FAILED),
        advice=(Advice("rule", "title", ("50%",), "b"), Advice("other", "title", ("1",))),
        settings=Settings(limits={"latency_ms": 0.7}),
    )
    assert [each.name for each in one.helped] == ["a"]
    assert one.front == ("a",)
    assert [each.verdict for each in one.limit_checks] == ["kept"]
    assert one.outcome_of(one.advice[0]).outcome == FAILED
    assert one.outcome_of(one.advice[1]) is None
    assert one.attempt("a") is one.attempts[0]
    with pytest.raises(SettingError, match="under the name 'c'; there are 'a', 'b'"):
        one.attempt("c")


def test_where_nothing_helps_limits_are_those_of_the_model_as_it_is():
    one = optimization(
        attempt("a", time=1.5, outcome="worse"), settings=Settings(limits={"latency_ms": 1.1})
    )
    assert one.recommended is None
    (check,) = one.limit_checks
    assert (check.verdict, check.found.value) == ("kept", pytest.approx(1.0))


def test_the_best_at_the_goal_comes_first_and_what_was_never_ranked_last():
    tried = (
        attempt("failed", outcome=FAILED),
        attempt("slow", outcome="worse", time=1.5, size=0.1),
        attempt("odd", outcome="inaccurate", time=0.1),
        attempt("fast", time=0.5),
    )
    names = [each.name for each in optimization(*tried).ranked]
    assert names == ["fast", "slow", "failed", "odd"]
    by_size = optimization(*tried, settings=Settings(goal="size"))
    assert by_size.recommended.name == "fast"  # the other is not better at the goal
    assert [each.name for each in by_size.ranked][:2] == ["fast", "slow"]


def test_a_prediction_is_that_of_the_suggestion():
    gain = Gain(2.0, 1.0, 3.0, basis="bytes")
    advice = (Advice("one", "title", (), "a"), Advice("other", "title", (), "a", gain))
    found = optimization(attempt("a", time=0.5), attempt("a", "b", time=0.5), advice=advice)
    assert [found.predicted(each) for each in found.attempts] == [gain, None]


def test_what_is_recommended_has_the_numbers_of_its_fresh_comparison():
    tried, again = attempt("int8", time=0.5), attempt("int8", time=0.6)
    found = optimization(tried, attempt("half", time=0.8), confirmations=(again,))
    assert found.chosen is tried
    assert found.recommended is found.confirmation is again
    assert found.ranked[0] is tried
    assert found.refuted == ()
    assert Optimization.from_dict(found.to_dict()) == found


def test_without_a_fresh_comparison_the_attempt_itself_is_recommended():
    tried = attempt("int8", time=0.5)
    found = optimization(tried)
    assert found.recommended is tried
    assert found.confirmation is None


def test_what_is_not_confirmed_is_named_and_not_recommended():
    tried, again = attempt("int8", time=0.9), attempt("int8", time=1.0, outcome="no gain")
    found = optimization(tried, confirmations=(again,))
    assert found.recommended is None
    assert found.refuted == ((tried, again),)


def test_limits_are_checked_where_nothing_was_chosen_for_it():
    tried, again = attempt("int8", time=0.5), attempt("int8", time=0.7)
    found = optimization(
        tried, confirmations=(again,), settings=Settings(limits={"latency_ms": 0.8})
    )
    assert found.limit_checks[0].found.value == pytest.approx(0.7)


# ---------------------------------------------------------------- what cannot be told


def test_an_inconclusive_accuracy_is_ranked_after_what_is_as_good_and_never_recommended():
    quick, quicker = inconclusive("quick", time=0.4), inconclusive("quicker", time=0.2)
    found = optimization(attempt("failed", outcome=FAILED), quick, quicker, attempt("a", time=0.8))
    assert [each.name for each in found.ranked] == ["a", "quicker", "quick", "failed"]
    assert found.recommended.name == "a"
    assert found.inconclusive == (quicker, quick)
    assert not {"quick", "quicker"} & set(found.front)
    assert found.to_dict()["inconclusive"] == ["quicker", "quick"]
    assert Optimization.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_what_is_slower_is_no_open_question_whatever_its_accuracy():
    slow, open_time = inconclusive("slow", time=1.5), inconclusive("open", time=0.97, spread=0.3)
    assert optimization(slow, open_time).inconclusive == (open_time,)


@pytest.mark.parametrize(
    ("outcomes", "was_judged"),
    [
        ([], False),
        ([FAILED, FAILED], False),
        ([NOT_TRIED], False),
        ([FAILED, SKIPPED], False),
        ([SKIPPED, NOT_TRIED], True),
        ([FAILED, INACCURATE], True),
        ([FAILED, BROKEN], True),
        ([FAILED, ACCURACY_INCONCLUSIVE], True),
    ],
)
def test_nothing_is_known_where_all_attempts_failed(outcomes, was_judged):
    tried = [attempt(str(place), outcome=each) for place, each in enumerate(outcomes)]
    assert optimization(*tried).was_judged is was_judged


def test_what_lost_more_than_the_margin_comes_last_among_the_inconclusive():
    kept, lost = inconclusive("kept", time=0.8), inconclusive("lost", time=0.2)
    scores = lost.comparison.accuracy
    swapped = compare_accuracy([1] * 168, [0] * 3 + [1] * 165, margin=scores.margin)
    assert swapped.verdict == scores.verdict
    lost = replace(lost, comparison=replace(lost.comparison, accuracy=swapped))
    assert optimization(lost, kept).inconclusive == (kept, lost)
