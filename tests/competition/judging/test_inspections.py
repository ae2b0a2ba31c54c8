"""The judge finds what is wrong with answers, and finds nothing where nothing is wrong."""

from dataclasses import replace

import numpy as np
import pytest
from example_legs import DECATHLON, SPRINT, an_entry, legs

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.competition.events import PROMPT
from tinytorch.competition.heats import Seen
from tinytorch.competition.inspections import LIKELY, TOLERANCES, inspect
from tinytorch.competition.sandbox.contender import Usage


def found(*, event=SPRINT, entry=None, accuracy=None, floor_s=0.0, **changes):
    entry = entry or an_entry(event.name)
    seen = Seen(event, entry, legs(event, **changes), accuracy, floor_s)
    return {each.rule: each for each in inspect(seen)}


def usage(**changes):
    usual = {"cpu_s": 0.5, "peak_bytes": 1, "processes": 1}
    return Usage(**{**usual, **changes})


@pytest.mark.parametrize("event", [SPRINT, DECATHLON], ids=lambda each: each.name)
@pytest.mark.parametrize("division", ["closed", "open", "learner"])
def test_nothing_is_found_where_nothing_is_wrong(event, division):
    entry = an_entry(event.name, division=division, code="model.py:make")
    assert found(event=event, entry=entry) == {}


def test_an_answer_that_is_not_finite_is_none():
    only = found(change=lambda outputs: np.where(outputs > 30, np.nan, outputs))
    assert list(only) == ["A1"]
    assert "nan" in only["A1"].seen


def test_an_answer_of_another_shape_is_none():
    assert "(1, 9)" in found(change=lambda outputs: outputs[:, :9])["A1"].seen


def test_a_text_of_other_letters_is_no_text():
    assert "A1" in found(event=DECATHLON, write=lambda prompt: np.full(48, -1))


def test_a_text_that_is_too_short_is_no_text():
    assert "A1" in found(event=DECATHLON, write=lambda prompt: np.zeros(10, np.int64))


def test_lost_accuracy_is_told_with_its_numbers():
    scores = np.ones(1000)
    lost = scores.copy()
    lost[:50] = 0
    accuracy = compare_accuracy(scores, lost, margin=0.01)
    text = found(accuracy=accuracy)["A2"].seen
    assert "1.0000 became 0.9500" in text
    assert accuracy.evidence in text


def test_accuracy_that_is_not_shown_to_be_kept_is_not_kept():
    accuracy = compare_accuracy(np.ones(50), np.ones(50), margin=0.001)
    assert "A2" in found(accuracy=accuracy)


def test_kept_accuracy_is_no_finding():
    accuracy = compare_accuracy(np.ones(5000), np.ones(5000), margin=0.01)
    assert found(accuracy=accuracy) == {}


def test_constant_answers_are_found():
    assert "A3" in found(change=lambda outputs: np.ones_like(outputs))


def test_lower_precision_than_declared_is_found():
    def rounded(outputs):
        return outputs.astype(np.float16).astype(np.float32)

    assert "A4" in found(change=rounded)
    assert "A4" not in found(entry=an_entry(precision="float16"), change=rounded)


def test_texts_that_are_not_scored_are_read_as_precisely():
    """Short texts make the prefill and a part of the processor time, and have no targets."""

    def shorten(outputs):
        return outputs if outputs.shape[1] > PROMPT else 1.3 * outputs[:, ::-1]

    assert found(event=DECATHLON, change=shorten).keys() == {"A4"}


def test_precision_is_free_where_weights_are():
    def rounded(outputs):
        return np.round(outputs)

    assert found(entry=an_entry(division="open"), change=rounded) == {}


def test_each_precision_has_its_tolerances():
    assert TOLERANCES.keys() == LIKELY.keys()


@pytest.mark.parametrize("strange", [np.inf, 1e200, True], ids=["infinite", "huge", "truth"])
def test_an_answer_is_of_usual_numbers(strange):
    assert list(found(change=lambda outputs: np.full(outputs.shape, strange))) == ["A1"]


def test_hidden_time_is_found_in_code():
    entry = an_entry(code="model.py:make")
    text = found(entry=entry, inner_s=1e-6, outside_s=90e-6)["T1"].seen
    assert "own account shows 0.999 us" in text


def test_hidden_time_of_some_calls_is_found():
    """Less than half of the calls: the median of all shows nothing."""
    heats = [(leg, _hiding(leg, every=3)) for leg, _ in legs(inner_s=300e-6)]
    seen = Seen(SPRINT, an_entry(code="model.py:make"), heats, None)
    assert "T1" in {each.rule for each in inspect(seen)}


def _hiding(leg, *, every):
    """Claim that some of the calls took no time."""
    given = [
        replace(each, answer=replace(each.answer, round_trip_s=400e-6, inner_s=0.0))
        if place % every == 0
        else each
        for place, each in enumerate(leg.given)
    ]
    return replace(leg, given=tuple(given))


def test_a_slow_socket_is_no_hidden_time():
    entry = an_entry(code="model.py:make")
    assert "T1" not in found(entry=entry, outside_s=34e-6)


def test_impossible_speed_is_found():
    assert "T2" in found(inner_s=0.1e-6, floor_s=0.5e-6)
    assert "T2" not in found(inner_s=1e-6, floor_s=0.5e-6)


def test_the_machine_is_at_least_as_fast_as_the_reference_was():
    assert "T2" not in found(inner_s=10e-6, floor_s=30e-6)


@pytest.mark.parametrize(("division", "is_found"), [("closed", 1), ("learner", 1), ("open", 0)])
def test_kept_answers_are_found(division, is_found):
    assert ("T3" in found(entry=an_entry(division=division), again_s=2e-6)) == is_found


def test_a_little_less_time_is_not_a_kept_answer():
    assert "T3" not in found(again_s=18.5e-6)


def test_work_without_a_question_is_found():
    assert "100%" in found(idle_cpu_s=0.05)["T4"].seen


def test_a_changed_question_is_found():
    assert "T5" in found(is_intact=False)


def test_further_processes_are_found():
    assert "3 processes" in found(usage=usage(processes=3))["T6"].seen


def test_learners_use_no_other_framework():
    loaded = usage(modules=("numpy", "torch"))
    assert "E7" in found(entry=an_entry(division="learner"), usage=loaded)
    assert "E7" not in found(usage=loaded)
