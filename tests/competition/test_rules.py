"""The table of rules."""

import pytest

from tinytorch.competition.rules import RULES, doubt, finding


def test_every_rule_says_what_to_do():
    assert all(rule.title and rule.fix for rule in RULES.values())


def test_a_finding_carries_the_rule_and_its_fix():
    found = finding("A3", "all answers are the same")
    assert (found.rule, found.fix, found.is_fatal) == ("A3", RULES["A3"].fix, True)
    assert finding("A3", "same", "think").fix == "think"


def test_doubts_are_not_fatal():
    assert not finding("W2", "busy").is_fatal


def test_any_rule_may_be_only_doubted():
    found = doubt("A2", "it seems lost")
    assert (found.rule, found.is_fatal, found.fix) == ("A2", False, RULES["A2"].fix)


def test_there_are_no_findings_without_a_rule():
    with pytest.raises(KeyError):
        finding("Z9", "something")
