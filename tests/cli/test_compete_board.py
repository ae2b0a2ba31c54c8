import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from example_boards import ROUNDS, some_runs
from example_judgements import SPRING, kept_judgement

from tinytorch.cli.compete_board import KINDS
from tinytorch.cli.main import main
from tinytorch.competition import board
from tinytorch.competition import verification as records_folder
from tinytorch.competition.rounds import write_round
from tinytorch.competition.run_files import DamagedFile, keep_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Give a folder in which imaginary runs are found."""
    damaged = (DamagedFile("mlp_sprint/eve/x.json", "its hash does not fit"),)
    found = SimpleNamespace(records=some_runs(), rounds=ROUNDS, damaged=damaged)
    monkeypatch.setattr(records_folder, "read_folder", lambda path: found)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_board_is_shown(folder, kind, capsys):
    assert main(["compete", "board", str(folder), "--kind", kind]) == 0
    captured = capsys.readouterr()
    assert "Katherine" in captured.out
    assert "1 damaged" in captured.err


def test_one_event_leaves_out_the_others(folder, capsys):
    assert main(["compete", "board", str(folder), "--event", "cnn_marathon"]) == 0
    shown = capsys.readouterr().out
    assert "CNN Marathon" in shown
    assert "MLP Sprint" not in shown


def test_an_unknown_event_names_the_known_ones(folder, capsys):
    assert main(["compete", "board", str(folder), "--event", "mlp_sprnt"]) == 2
    assert "did you mean 'mlp_sprint'?" in capsys.readouterr().err


def test_json_is_strict_and_the_same_each_time(folder, capsys):
    texts = []
    for _ in range(2):
        assert main(["compete", "board", str(folder), "--json"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["command"] == "compete board"


def test_files_are_written(folder, capsys):
    files = {name: folder / f"{name}.out" for name in ("html", "csv", "grades")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert main(["compete", "board", str(folder), *options]) == 0
    assert "Katherine" in files["html"].read_text("utf-8")
    for name in ("csv", "grades"):
        rows = list(csv.DictReader(files[name].read_text("utf-8").splitlines()))
        assert any("Katherine" in row.values() for row in rows)


def test_a_table_that_cannot_be_written_is_refused(folder, capsys):
    assert main(["compete", "board", str(folder), "--csv", str(folder / "no" / "x.csv")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_kinds_are_those_of_the_board():
    assert KINDS == board.KINDS


def test_a_run_that_says_it_is_verified_and_is_not_is_listed_below_and_counts_nowhere(
    tmp_path, capsys
):
    signed = replace(SPRING.public(), public_key="ssh-ed25519 AAAA")
    write_round(signed, tmp_path / "rounds" / "spring.json")
    told = kept_judgement(round_name="spring", commitment=SPRING.commitment)
    path = keep_run(told, tmp_path / "mine", status="verified")
    assert main(["compete", "board", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "No runs yet" in shown
    below = shown.partition("Files that do not count")[2]
    assert f"mine/results/{path.name}" in below
    assert "R4: it says that it is verified, but the key of the round 'spring'" in below
