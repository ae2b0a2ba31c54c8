"""Parts of a judgement are checked down to each number."""

import math

import pytest
from example_judgements import kept_entry, some_accuracy, some_heats

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.competition.judgement import Ablation, Heat
from tinytorch.competition.judgement_record import (
    ablation_fields,
    ablation_of,
    accuracy_fields,
    accuracy_of,
    checked,
    entry_fields,
    entry_of,
    finding_fields,
    finding_of,
    heats_of,
    problem_of,
)
from tinytorch.competition.rules import finding
from tinytorch.errors import RecordError, SettingError


def test_scores_of_right_and_wrong_are_one_text():
    fields = accuracy_fields(compare_accuracy([1, 0, 1], [1, 1, 0]))
    assert (fields["reference"], fields["entry"]) == ("101", "110")
    assert accuracy_of(fields) == compare_accuracy([1, 0, 1], [1, 1, 0])


def test_other_scores_are_kept_to_the_last_bit():
    scores = [-1.1, -1 / 3, 5e-324]
    found = compare_accuracy(scores, scores, metric="log-likelihood")
    assert accuracy_of(accuracy_fields(found)) == found


def test_a_score_that_is_no_number_comes_back():
    found = accuracy_of(accuracy_fields(compare_accuracy([0.5, 1], [math.nan, -math.inf])))
    assert found.failed == 2
    assert found.candidate_scores[1] == -math.inf


@pytest.mark.parametrize(
    "scores", ["", "102", "1é", 5, None, [1, "1e5"], [1, True], [1, [1]], [10**400]]
)
def test_other_scores_are_refused(scores):
    fields = accuracy_fields(some_accuracy()) | {"entry": scores}
    with pytest.raises((RecordError, SettingError), match=r"accuracy|scores"):
        accuracy_of(fields)


def test_an_entry_comes_back():
    assert entry_of(entry_fields(kept_entry())) == kept_entry()


def test_an_entry_with_a_hostile_name_is_refused():
    fields = entry_fields(kept_entry())
    fields["manifest"]["team"] = "eve\u202e"
    with pytest.raises(SettingError, match=r"U.202E, which cannot be seen"):
        entry_of(fields)


def test_a_finding_comes_back():
    found = finding("T3", "a question that came again took no time")
    assert finding_of(finding_fields(found)) == found


def test_a_finding_is_fatal_or_a_warning():
    with pytest.raises(RecordError, match="'mild' is neither fatal nor a warning"):
        finding_of(finding_fields(finding("T3", "seen")) | {"severity": "mild"})


@pytest.mark.parametrize("heats", [(), some_heats()])
def test_an_ablation_comes_back(heats):
    found = Ablation("fused-layers", heats, "" if heats else "it does not work without")
    assert ablation_of(ablation_fields(found), event="mlp_sprint") == found


def test_an_ablation_with_senseless_numbers_says_so_instead():
    heats = (Heat({"p90 latency": 1.0}, {"p90 latency": 0.0}),)
    kept = ablation_of(ablation_fields(Ablation("x", heats)), event="mlp_sprint")
    assert kept.heats == ()
    assert kept.reason == "p90 latency of the entry is 0.0, which is no positive number"


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({"a": [1.0], "b": [1.0, 2.0]}, "between 1 and 2 values for each heat"),
        ({"a": [1.0], "c": [1.0]}, "measures a, c instead of a, b"),
        ({"a": [1.0], "b": [-1.0]}, "b of the entry is -1.0, which is no positive number"),
        ({"a": [1.0], "b": ["1"]}, "b is str, not a number"),
        ({"a": [1.0], "b": [True]}, "b is bool, not a number"),
        ({"a": [1.0], "b": [10**400]}, "too large a number"),
        ({"a": [1.0], "b": 1.0}, "float, not a list of numbers"),
    ],
)
def test_heats_are_positive_numbers_of_all_measures(series, message):
    fields = {"reference": {"a": [1.0], "b": [1.0]}, "entry": series}
    with pytest.raises(RecordError, match=message):
        heats_of(fields, "heats", names=["a", "b"])


def test_a_usable_heat_has_no_problem():
    assert problem_of(some_heats()[0], ["p90 latency", "peak memory"]) == ""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (5, "x: int, not an object"),
        ({}, r"x: without \['a'\] and with \[\]"),
        ({"a": 1, "b": 2}, r"with \['b'\]"),
        ({"a": True}, "x: a is bool, not a number"),
        ({"a": "1"}, "x: a is str, not a number"),
        ({"a": math.inf}, "x: a is inf, not a finite number"),
    ],
)
def test_fields_are_exactly_those_that_are_known(fields, message):
    with pytest.raises(RecordError, match=message):
        checked(fields, {"a": float}, "x")
