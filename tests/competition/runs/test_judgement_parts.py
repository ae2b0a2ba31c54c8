"""Parts of a judgement are checked down to each number."""

import json
import math

import pytest
from example_judgements import kept_entry, some_accuracy, some_heats

from tinytorch.codec import decode
from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.competition.entry import manifest_of
from tinytorch.competition.judgement import Ablation, Heat
from tinytorch.competition.judgement_record import (
    KeptAblation,
    KeptAccuracy,
    KeptEntry,
    KeptHeats,
    problem_of,
)
from tinytorch.competition.rules import Finding, finding
from tinytorch.errors import RecordError, SettingError


def again(part):
    """Write a part as JSON and read it."""
    return decode(type(part), json.loads(json.dumps(part.to_dict(), allow_nan=False)))


def test_scores_of_right_and_wrong_are_one_text():
    found = compare_accuracy([1, 0, 1], [1, 1, 0])
    kept = KeptAccuracy.of(found)
    assert (kept.reference, kept.entry) == ("101", "110")
    assert again(kept).comparison() == found


def test_other_scores_are_kept_to_the_last_bit():
    scores = [-1.1, -1 / 3, 5e-324]
    found = compare_accuracy(scores, scores, metric="log-likelihood")
    assert again(KeptAccuracy.of(found)).comparison() == found


def test_a_score_that_is_no_number_comes_back():
    found = compare_accuracy([0.5, 1], [math.nan, -math.inf])
    found = again(KeptAccuracy.of(found)).comparison()
    assert found.failed == 2
    assert found.candidate_scores[1] == -math.inf


@pytest.mark.parametrize(
    "scores", ["", "102", "1é", 5, None, [1, "1e5"], [1, True], [1, [1]], [10**400]]
)
def test_other_scores_are_refused(scores):
    fields = KeptAccuracy.of(some_accuracy()).to_dict() | {"entry": scores}
    with pytest.raises((RecordError, SettingError, OverflowError)):
        decode(KeptAccuracy, fields).comparison()


def test_an_entry_comes_back():
    entry = kept_entry()
    assert again(KeptEntry(manifest_of(entry), entry.sha256)).entry() == entry


def test_an_entry_with_a_hostile_name_is_refused():
    kept = KeptEntry(manifest_of(kept_entry()) | {"team": "eve\u202e"}, "")
    with pytest.raises(SettingError, match=r"U.202E, which cannot be seen"):
        kept.entry()


def test_a_finding_comes_back():
    found = finding("T3", "a question that came again took no time")
    assert again(found) == found


def test_a_finding_is_fatal_or_a_warning():
    fields = finding("T3", "seen").to_dict() | {"severity": "mild"}
    with pytest.raises(RecordError, match="'mild'"):
        decode(Finding, fields)


@pytest.mark.parametrize("heats", [(), some_heats()])
def test_an_ablation_comes_back(heats):
    found = Ablation("fused-layers", heats, "" if heats else "it does not work without")
    assert again(KeptAblation.of(found)).ablation("mlp_sprint") == found


def test_an_ablation_with_senseless_numbers_says_so_instead():
    heats = (Heat({"p90 latency": 1.0}, {"p90 latency": 0.0}),)
    kept = KeptAblation.of(Ablation("x", heats)).ablation("mlp_sprint")
    assert kept.heats == ()
    assert kept.reason == "p90 latency of the entry is 0.0, which is no positive number"


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({"a": [1.0], "b": [1.0, 2.0]}, "between 1 and 2 values for each heat"),
        ({"a": [1.0], "c": [1.0]}, "measures a, c instead of a, b"),
        ({"a": [1.0], "b": [-1.0]}, "b of the entry is -1.0, which is no positive number"),
        ({"a": [1.0], "b": [math.inf]}, "b of the entry is inf, which is no positive number"),
        ({"a": [1.0], "b": ["1"]}, r"entry.b\[0\]: expected a number, got '1'"),
        ({"a": [1.0], "b": [True]}, r"entry.b\[0\]: expected a number, got True"),
        ({"a": [1.0], "b": [10**400]}, "too large"),
        ({"a": [1.0], "b": 1.0}, "entry.b: expected a list, got 1.0"),
    ],
)
def test_heats_are_positive_numbers_of_all_measures(series, message):
    fields = {"reference": {"a": [1.0], "b": [1.0]}, "entry": series}
    with pytest.raises((RecordError, OverflowError), match=message):
        decode(KeptHeats, fields).heats("heats", names=["a", "b"])


def test_a_usable_heat_has_no_problem():
    assert problem_of(some_heats()[0], ["p90 latency", "peak memory"]) == ""
