from dataclasses import replace

from terminal import shown

from tinytorch.comparison.self_check import SelfCheck, Trial
from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.comparison import render_self_check

QUIET = Trial("same", Estimate(1.001, 0.996, 1.006), 0.4)
OPEN = Trial("inconclusive", Estimate(0.999, 0.98, 1.02), 2.0)
ALARM = Trial("slower", Estimate(1.03, 1.02, 1.04), 0.2)
CHECK = SelfCheck("mlp", (QUIET, OPEN, QUIET), "abc", kept="somewhere")


def test_without_a_false_alarm_the_floor_is_the_usual_one():
    text = shown(render_self_check(replace(CHECK, trials=(QUIET, QUIET))))
    assert text.startswith("no false alarm: believe differences of 0.5% and more here\n")


def test_what_was_not_decided_is_said_first_and_raises_the_floor():
    text = shown(render_self_check(replace(CHECK, trials=(QUIET, OPEN, OPEN))))
    assert text.startswith(
        "no false alarm, 2 of 3 not decided: believe differences of 2.1% and more here\n"
    )


def test_a_floor_that_is_not_kept_is_no_rule_for_the_gate():
    assert "takes no tolerance below it" in shown(render_self_check(CHECK))
    for obstacle in ("", "there is a better one"):
        text = shown(render_self_check(replace(CHECK, kept="", obstacle=obstacle)))
        assert "so `tinytorch gate` does not know it" in text


def test_the_facts_are_those_of_the_trials():
    text = shown(render_self_check(CHECK))
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "trials 3 comparisons of mlp with itself" in rows
    assert "same 2 of 3" in rows
    assert "inconclusive 1 of 3" in rows
    assert "largest difference 0.1%, of estimates" in rows
    assert "kept somewhere" in rows


def test_a_false_alarm_raises_the_floor_and_is_said_first():
    text = shown(render_self_check(replace(CHECK, trials=(QUIET, ALARM))))
    assert text.startswith("identical code was called different in 1 of 2: believe only")
    assert "more than 2% here" in text.splitlines()[0]


def test_every_trial_has_a_row():
    rows = shown(render_self_check(CHECK), 80).splitlines()[2:5]
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert "0.980x to 1.020x" in rows[1]
