import json
from dataclasses import replace

import pytest
from example_boards import entry, judgement
from parts import require_part

from tinytorch.cli.main import main
from tinytorch.competition.entry import read_entry, write_entry
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import keep_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Give the folder of an entry, beside which submissions are made."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "mine"
    made.mkdir()
    write_entry(entry(), made)
    return made


def ran(folder, **changes):
    seen = replace(judgement(**changes), created_at="2026-03-01T10:00:00Z")
    return keep_run(replace(seen, entry=read_entry(folder)), folder)


def test_an_entry_is_copied_with_all_of_its_runs(folder, capsys):
    for seed in (1, 2):
        ran(folder, seed=seed)
    assert main(["compete", "submit", str(folder), "--to", "submissions", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["added"], found["runs"], found["older"]) == (2, 2, 0)
    assert found["entry_sha256"] == read_entry(found["folder"]).sha256


def test_submitting_again_adds_what_is_new(folder, capsys):
    for seed, words in ((1, "1 run added, 1 in all"), (2, "1 run added, 2 in all")):
        ran(folder, seed=seed)
        assert main(["compete", "submit", str(folder), "--to", "submissions"]) == 0
        captured = capsys.readouterr()
        assert words in captured.out
        assert "next: tinytorch compete board submissions" in captured.err


def test_an_entry_without_runs_is_refused(folder, capsys):
    assert main(["compete", "submit", str(folder), "--to", "submissions"]) == 2
    assert "run the entry first" in capsys.readouterr().err


def test_a_broken_rule_is_submitted_only_anyway(folder, capsys):
    ran(folder, findings=(finding("T3", "kept"),))
    arguments = ["compete", "submit", str(folder), "--to", "submissions"]
    assert main(arguments) == 2
    assert "T3" in capsys.readouterr().err
    assert main([*arguments, "--anyway"]) == 0


def test_a_key_signs_every_run(folder, capsys):
    require_part("cryptography")
    ran(folder)
    assert main(["compete", "key", "k"]) == 0
    assert main(["compete", "submit", str(folder), "--to", "submissions", "--key", "k"]) == 0
    assert "signed" in capsys.readouterr().out
    assert len(list(folder.parent.glob("submissions/*/*/*/results/*.sig"))) == 1
