import json
from dataclasses import replace

import pytest
from example_boards import accuracy, entry, judgement

from tinytorch.cli import compete_run
from tinytorch.cli.compete_run import exit_code_of
from tinytorch.cli.main import main
from tinytorch.competition import judge as judging
from tinytorch.competition.entry import Technique, write_entry
from tinytorch.competition.judgement_record import judgement_in
from tinytorch.competition.rounds import PRACTICE, new_round, write_round
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import read_record_file
from tinytorch.records.record import parse_record

OPTIONS = ("heats", "ablations", "trust", "seed")


@pytest.fixture
def folder(tmp_path):
    """Give the folder of an entry."""
    made = tmp_path / "mine"
    made.mkdir()
    write_entry(replace(entry(), precision="int8"), made)
    return made


@pytest.fixture
def judge_gives(monkeypatch):
    """Let the judge give what a test says, and keep what it was asked."""
    asked = {}

    def use(**changes):
        def judge(entered, **others):
            asked.update(others, entry=entered)
            seen = judgement(**changes)
            return replace(seen, entry=entered)

        monkeypatch.setattr(judging, "judge", judge)
        return asked

    return use


def kept_in(folder):
    return sorted((folder / "results").glob("*.json")) if (folder / "results").exists() else []


def test_a_run_is_shown_and_kept(folder, judge_gives, capsys):
    asked = judge_gives(speedup=2.0, contributions={"int8-dynamic": 1.9})
    assert main(["compete", "run", str(folder)]) == 0
    captured = capsys.readouterr()
    assert "MLP Sprint" in captured.out
    assert "faster" in captured.out
    (file,) = kept_in(folder)
    assert str(file) in captured.err
    assert judgement_in(read_record_file(file)).score.value == pytest.approx(2.0, rel=0.05)
    assert (asked["heats"], asked["ablations"], asked["trust"], asked["seed"]) == (
        10,
        True,
        False,
        0,
    )
    assert asked["round"] == PRACTICE


def test_every_run_is_kept(folder, judge_gives):
    for day in (1, 2, 3):
        judge_gives(day=day)
        assert main(["compete", "run", str(folder), "--quiet"]) == 0
    assert len(kept_in(folder)) == 3


def test_options_reach_the_judge(folder, judge_gives, tmp_path):
    spring = new_round("spring")
    write_round(spring, tmp_path / "spring.SECRET.json")
    asked = judge_gives()
    arguments = ["--round", str(tmp_path / "spring.SECRET.json"), "--heats", "7", "--no-ablations"]
    assert main(["compete", "run", str(folder), *arguments, "--trust", "--seed", "3"]) == 0
    assert (asked["heats"], asked["ablations"], asked["trust"], asked["seed"]) == (
        7,
        False,
        True,
        3,
    )
    assert asked["round"] == spring


def test_json_holds_the_record_the_score_and_the_file(folder, judge_gives, capsys):
    judge_gives(speedup=3.0)
    assert main(["compete", "run", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(kept_in(folder)[0])
    assert found["score"]["value"] == pytest.approx(3.0, rel=0.05)
    assert parse_record(json.dumps(found["record"])).hash == found["record"]["hash"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"speedup": 2.0}, 0),
        ({"speedup": 1.0}, 3),
        ({"speedup": 0.5}, 3),
        ({"findings": (finding("W2", "busy"),)}, 0),
        ({"findings": (finding("A2", "lost"),), "accuracy": accuracy(lost=100)}, 5),
        ({"findings": (finding("A2", "few"),), "accuracy": accuracy(margin=1e-3)}, 3),
        ({"findings": (finding("T3", "kept"),)}, 1),
        ({"findings": (finding("A2", "lost"), finding("T1", "clock"))}, 1),
        ({"n": 3}, 4),
    ],
)
def test_the_exit_code_tells_rules_then_accuracy_then_speed(changes, code):
    assert exit_code_of(judgement(**changes)) == code


def test_an_interrupted_run_leaves_nothing(folder, monkeypatch, capsys):
    def judge(entered, **others):
        others["progress"].describe("heat 3 of 10")
        raise KeyboardInterrupt

    monkeypatch.setattr(judging, "judge", judge)
    assert main(["compete", "run", str(folder)]) == 130
    assert "nothing was stored" in capsys.readouterr().err
    assert kept_in(folder) == []


def test_what_is_no_entry_is_not_judged(tmp_path, judge_gives, capsys):
    asked = judge_gives()
    assert main(["compete", "run", str(tmp_path)]) == 2
    assert "E1" in capsys.readouterr().err
    assert asked == {}


def test_what_check_refuses_is_no_run(tmp_path, judge_gives, capsys):
    made = tmp_path / "pruned"
    assert main(["compete", "new", str(made), "--event", "mlp_sprint", "--team", "A"]) == 0
    manifest = json.loads((made / "entry.json").read_text())
    manifest["techniques"] = ["pruned-sparse"]
    (made / "entry.json").write_text(json.dumps(manifest))
    asked = judge_gives()
    assert main(["compete", "run", str(made)]) == 1
    told = capsys.readouterr()
    assert "E5" in told.out
    assert "nothing was stored" in told.err
    assert asked == {}
    assert kept_in(made) == []


def test_code_that_nobody_trusts_is_no_run(tmp_path, judge_gives, capsys):
    made = tmp_path / "coded"
    assert (
        main(["compete", "new", str(made), "--event", "mlp_sprint", "--team", "A", "--code"]) == 0
    )
    asked = judge_gives()
    assert main(["compete", "run", str(made)]) == 2
    assert "E6: the entry is Python code, model.py:make" in capsys.readouterr().err
    assert (asked, kept_in(made)) == ({}, [])


def test_a_part_that_is_missing_here_is_not_held_against_the_entry(
    folder, judge_gives, monkeypatch, capsys
):
    named = "tinytorch.competition.techniques.missing_parts"
    monkeypatch.setattr(named, lambda technique: ("fast",))
    asked = judge_gives()
    assert main(["compete", "run", str(folder)]) == 2
    assert "pip install '.[fast]'" in capsys.readouterr().err
    assert (asked, kept_in(folder)) == ({}, [])


def test_a_technique_that_nobody_knows_is_no_run(folder, judge_gives, capsys):
    write_entry(replace(entry(), techniques=(Technique("nonsense"),)), folder)
    asked = judge_gives()
    assert main(["compete", "run", str(folder), "--quiet"]) == 1
    assert "E3" in capsys.readouterr().out
    assert asked == {}


def test_a_folder_that_cannot_keep_the_run_is_refused_before_judging(
    folder, judge_gives, monkeypatch, capsys
):
    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tinytorch.cli.options.TemporaryFile", refuse)
    asked = judge_gives()
    assert main(["compete", "run", str(folder)]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert asked == {}


def test_a_page_that_cannot_be_written_is_refused_before_judging(folder, judge_gives, capsys):
    asked = judge_gives()
    assert main(["compete", "run", str(folder), "--html", str(folder / "no" / "x.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert asked == {}


def test_the_number_of_heats_is_that_of_the_judge():
    assert compete_run.HEATS == judging.HEATS


def test_a_page_is_written(folder, judge_gives, tmp_path):
    judge_gives()
    assert main(["compete", "run", str(folder), "--html", str(tmp_path / "run.html")]) == 0
    assert "MLP Sprint" in (tmp_path / "run.html").read_text("utf-8")


def test_a_file_below_the_current_folder_is_named_from_there(
    folder, judge_gives, monkeypatch, capsys
):
    monkeypatch.chdir(folder.parent)
    judge_gives()
    assert main(["compete", "run", "mine"]) == 0
    assert "mine/results/" in capsys.readouterr().err
