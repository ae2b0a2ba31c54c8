"""The judge, with real processes and with entries that never start."""

import dataclasses

import pytest
from example_legs import an_entry

from tinytorch.competition.entry import Technique
from tinytorch.competition.judge import check_confined, judge
from tinytorch.competition.judgement import score_of
from tinytorch.competition.sandbox import bubblewrap
from tinytorch.competition.sandbox.contender import Limits
from tinytorch.errors import MissingPartError, SettingError


def test_too_few_heats_are_refused():
    with pytest.raises(SettingError, match="at least 6"):
        judge(an_entry(), heats=5)


def test_code_needs_trust():
    judged = judge(an_entry(code="model.py:make", techniques=()))
    assert "E6" in {each.rule for each in judged.findings}
    assert judged.heats == ()


def test_code_that_runs_unconfined_is_found_and_data_is_not():
    limits = Limits(unconfined=True)
    (found,) = check_confined(an_entry(code="model.py:make", techniques=()), limits)
    assert (found.rule, found.severity) == ("W1", "warning")
    assert check_confined(an_entry(), limits) == ()


def test_code_is_refused_and_data_is_not_where_there_is_no_sandbox(monkeypatch):
    monkeypatch.setattr(bubblewrap, "why_no_sandbox", lambda: "bubblewrap is missing")
    assert check_confined(an_entry(), Limits()) == ()
    with pytest.raises(MissingPartError, match="bubblewrap is missing; or pass --unconfined"):
        check_confined(an_entry(code="model.py:make", techniques=()), Limits())


@pytest.mark.slow
@pytest.mark.parametrize("event", ["mlp_sprint", "transformer_decathlon"])
def test_an_entry_that_changes_nothing_is_no_better_or_worse(event):
    judged = judge(an_entry(event, techniques=()), heats=6)
    assert judged.is_valid, judged.findings
    # An interval of 95% misses the truth now and then; benchmarks/judge_calibration.py counts.
    assert 0.75 < judged.score.value < 1.33
    assert judged.accuracy.gained in (0, None)
    assert judged.accuracy.difference == 0


@pytest.mark.slow
def test_a_cache_of_keys_and_values_is_shown_to_help():
    entry = an_entry("transformer_decathlon", techniques=(Technique("kv-cache"),))
    judged = judge(entry, heats=6)
    assert judged.is_valid, judged.findings
    assert score_of(judged.heats, ["decode"]).verdict == "faster"
    (removed,) = judged.ablations
    assert score_of(removed.heats, judged.event.scored).value > 1
    assert dataclasses.replace(judged, notes=()).score == judged.score
