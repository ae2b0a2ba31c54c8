"""The numbers of a record follow from its raw values."""

from dataclasses import replace

import pytest
from example_judgements import at, kept_entry, kept_judgement, some_heats

from tinytorch.competition.events import EVENTS
from tinytorch.competition.judgement import Ablation
from tinytorch.competition.judgement_record import as_record
from tinytorch.competition.rules import finding
from tinytorch.competition.verification import check_numbers

FATAL = (finding("T3", "a question that came again took no time"),)


@pytest.mark.parametrize("event", sorted(EVENTS))
def test_nothing_is_found_against_a_run_as_it_was(event):
    judgement = kept_judgement(entry=kept_entry(event=event))
    assert check_numbers(as_record(judgement), judgement) == ()


def test_a_run_that_broke_a_rule_may_lack_what_it_did_not_get_to():
    judgement = kept_judgement(findings=FATAL, heats=(), accuracy=None)
    assert check_numbers(as_record(judgement), judgement) == ()


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ({"value": 3.0}, "the score says value 3.0, the heats give"),
        ({"low": 2.5}, "the score says low 2.5"),
        ({"high": "much"}, "the score says high much"),
        ({"n": 60}, "the score says n 60, the heats give 10"),
        ({"rank": 1}, "the score has value, low, high, n, rank instead"),
        (None, "the score says None, the heats give"),
    ],
)
def test_a_score_that_is_not_that_of_the_heats_is_found(score, message):
    judgement = kept_judgement()
    record = as_record(judgement)
    stored = score if score is None else record.details["score"] | score
    changed = replace(record, details=record.details | {"score": stored})
    (found,) = check_numbers(changed, judgement)
    assert found.rule == "R3"
    assert message in found.seen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heats": some_heats(count=5)}, "5 heats without a finding; a run has 6 or more"),
        ({"seconds_used": -1.0}, "it took -1.0 seconds"),
        ({"accuracy": None}, "no answer was scored, and nothing was found"),
        ({"lost": 100}, "do not show that the accuracy is kept, but there is no finding A2"),
        ({"ablations": (Ablation("unknown"),)}, "the techniques ['unknown'] were switched off"),
        ({"ablations": (Ablation("own"), Ablation("own"))}, "['own', 'own'] were switched off"),
    ],
)
def test_what_does_not_fit_together_is_found(changes, message):
    judgement = kept_judgement(**changes)
    (found,) = check_numbers(as_record(judgement), judgement)
    assert message in found.seen


def test_another_margin_than_that_of_the_tier_is_found():
    judgement = kept_judgement()
    wide = replace(judgement, accuracy=replace(judgement.accuracy, margin=0.5))
    (found,) = check_numbers(as_record(wide), wide)
    assert "accuracy may drop by 0.5 in it, but by 0.01 in this tier" in found.seen


def test_lost_accuracy_is_a_finding_in_open_too():
    judgement = kept_judgement(entry=kept_entry(division="open"), lost=100)
    (found,) = check_numbers(as_record(judgement), judgement)
    assert "there is no finding A2" in found.seen


def test_a_moment_that_is_still_to_come_is_found():
    judgement = at(kept_judgement(), "2999-01-01T00:00:00Z")
    (found,) = check_numbers(as_record(judgement), judgement)
    assert "which is still to come" in found.seen
