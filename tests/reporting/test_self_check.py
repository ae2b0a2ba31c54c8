from dataclasses import replace

import pytest
from document_reading import blocks
from terminal import shown

from tinytorch.comparison.self_check import SelfCheck, Trial
from tinytorch.measure.estimate import INCONCLUSIVE, SAME, Estimate
from tinytorch.reporting.comparison import self_check_document
from tinytorch.reporting.document import Facts
from tinytorch.reporting.forest_plot import ForestPlot
from tinytorch.reporting.terminal import render

QUIET = Trial(SAME, Estimate(1.001, 0.996, 1.006), 0.4)
OPEN = Trial(INCONCLUSIVE, Estimate(0.999, 0.98, 1.02), 2.0)
ALARM = Trial("slower", Estimate(1.03, 1.02, 1.04), 0.2)
CHECK = SelfCheck("mlp", (QUIET, OPEN, QUIET), "abc", kept="somewhere")


def banner(*trials):
    return self_check_document(replace(CHECK, trials=trials)).banner


def facts(check):
    return dict(blocks(self_check_document(check), Facts)[0].pairs)


def test_without_a_false_alarm_the_floor_is_the_usual_one():
    found = banner(QUIET, QUIET)
    assert (found.verdict, found.tone) == ("No false alarm", "good")
    assert found.sentence == "believe differences of 0.5% and more here"


def test_what_was_not_decided_is_said_first_and_raises_the_floor():
    found = banner(QUIET, OPEN, OPEN)
    assert found.sentence.startswith(f"2 of 3 {INCONCLUSIVE}; believe differences of 2.1% and more")


def test_a_false_alarm_raises_the_floor_and_is_said_first():
    found = banner(QUIET, ALARM)
    assert (found.verdict, found.tone) == ("1 of 2 false alarms", "unknown")
    assert found.sentence == "believe only differences of more than 2% here"


@pytest.mark.parametrize("obstacle", ["", "there is a better one"])
def test_a_floor_that_is_not_kept_is_no_rule_for_the_gate(obstacle):
    assert "takes no tolerance below it" in facts(CHECK)["minimum effect"]
    found = facts(replace(CHECK, kept="", obstacle=obstacle))
    assert "so `tinytorch gate` does not know it" in found["minimum effect"]
    assert obstacle in found["kept"]


def test_the_facts_are_those_of_the_trials():
    found = facts(CHECK)
    assert found["trials"] == "3 comparisons of mlp with itself"
    assert found[SAME] == "2 of 3"
    assert found[INCONCLUSIVE] == "1 of 3"
    assert found["largest difference"] == "0.1%, of estimates"
    assert found["kept"] == "somewhere"


def test_every_trial_has_a_row():
    (plot,) = blocks(self_check_document(CHECK), ForestPlot)
    assert [row.label for row in plot.rows] == ["1", "2", "3"]
    assert [row.tone for row in plot.rows] == ["neutral", "unknown", "neutral"]
    assert plot.rows[1].text.endswith("0.980x to 1.020x")
    assert shown(render(self_check_document(CHECK)), 80).splitlines()[4].split()[0] == "1"
