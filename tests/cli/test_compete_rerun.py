import json
from dataclasses import replace

import pytest
from example_boards import accuracy, entry
from example_boards import judgement as imaginary_judgement
from parts import require_sandbox

from tinytorch.cli.main import main
from tinytorch.competition import judge as judging
from tinytorch.competition.entry import read_entry, write_entry
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import keep_run
from tinytorch.errors import MeasurementError

# Questions of a run that broke a rule are not drawn again, which would take a second.
BROKEN_OFF = (finding("T3", "kept"),)
AGAIN = ["compete", "verify", "submissions", "--rerun", "--round", "spring.SECRET.json"]


@pytest.fixture
def submissions(tmp_path, monkeypatch):
    """Give a folder with a round and three entries, one of which is code."""
    require_sandbox()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "tinytorch.competition.rounds.utc_text", lambda moment: "2026-03-01T08:00:00Z"
    )
    folder = tmp_path / "submissions"
    for team in ("Ada", "Grace", "Zoë"):
        place = folder / "mlp_sprint" / team
        place.mkdir(parents=True)
        (place / "model.py").write_text("def make(reference, techniques):\n    return reference\n")
        code = "model.py:make" if team == "Zoë" else None
        write_entry(entry(team, code=code, division="open"), place)
    assert main(["compete", "round", "new", "spring", "--to", "submissions"]) == 0
    return folder


@pytest.fixture
def judged(monkeypatch):
    """Let the judge give imaginary runs, and keep which teams it was asked about."""
    teams = []

    def judge(entered, *, round, **others):
        teams.append(entered.team)
        seen = imaginary_judgement(2.0, accuracy=accuracy(margin=0.0095), findings=BROKEN_OFF)
        origin = {"round_name": round.name, "commitment": round.commitment}
        return replace(seen, entry=entered, created_at="2026-03-02T10:00:00Z", **origin)

    monkeypatch.setattr(judging, "judge", judge)
    return teams


def test_every_entry_of_a_folder_is_judged_but_code_that_nobody_trusts(submissions, judged, capsys):
    assert main(AGAIN) == 1
    captured = capsys.readouterr()
    assert judged == ["Ada", "Grace"]
    assert "2 of 2: mlp_sprint/Grace" in captured.err
    assert "not judged: 1\nmlp_sprint/Zoë\n  E6: the entry is Python code" in captured.out
    assert main([*AGAIN, "--trust"]) == 0
    assert judged == ["Ada", "Grace", "Zoë"]
    assert len(list(submissions.rglob("results/*.json"))) == 3


def test_what_was_judged_in_this_round_is_not_judged_twice(submissions, judged, capsys):
    assert main([*AGAIN, "--trust", "--quiet"]) == 0
    capsys.readouterr()
    assert main([*AGAIN, "--trust", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(judged) == len(found["judged_before"]) == 3
    assert (found["judged"], found["skipped"]) == ([], [])


def test_after_an_interruption_the_same_command_goes_on(submissions, judged, monkeypatch, capsys):
    whole = judging.judge

    def stop_at_grace(entered, **others):
        if entered.team == "Grace":
            raise KeyboardInterrupt
        return whole(entered, **others)

    monkeypatch.setattr(judging, "judge", stop_at_grace)
    assert main([*AGAIN, "--trust"]) == 130
    assert "1 of 3 are judged" in capsys.readouterr().err
    monkeypatch.setattr(judging, "judge", whole)
    assert main([*AGAIN, "--trust"]) == 0
    assert judged == ["Ada", "Grace", "Zoë"]


def test_what_was_changed_is_skipped_and_others_are_judged(submissions, judged, capsys):
    place = submissions / "mlp_sprint" / "Ada"
    seen = imaginary_judgement(2.0, findings=BROKEN_OFF)
    keep_run(replace(seen, entry=read_entry(place)), place).write_text("{}")
    assert main([*AGAIN, "--trust"]) == 4
    captured = capsys.readouterr()
    assert judged == ["Grace", "Zoë"]
    assert "mlp_sprint/Ada\n  R1: " in captured.out
    assert "something was changed" in captured.err


def test_an_entry_that_cannot_be_measured_does_not_stop_the_others(
    submissions, judged, monkeypatch, capsys
):
    whole = judging.judge

    def fail_at_ada(entered, **others):
        if entered.team == "Ada":
            raise MeasurementError("the clock stood still; run again")
        return whole(entered, **others)

    monkeypatch.setattr(judging, "judge", fail_at_ada)
    assert main([*AGAIN, "--trust"]) == 1
    assert "mlp_sprint/Ada\n  the clock stood still" in capsys.readouterr().out
    assert judged == ["Grace", "Zoë"]


def test_a_round_whose_seed_is_not_known_is_refused_before_anything_is_judged(
    submissions, judged, capsys
):
    public = str(submissions / "rounds" / "spring.json")
    assert main([*AGAIN[:-1], public]) == 2
    assert "the organiser's secret file" in capsys.readouterr().err
    assert judged == []


def test_a_folder_without_entries_says_so(submissions, judged, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["compete", "verify", "empty", *AGAIN[3:]]) == 2
    assert "there is no entry in empty" in capsys.readouterr().err
