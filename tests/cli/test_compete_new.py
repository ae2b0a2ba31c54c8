import json

import pytest

from tinytorch.cli.compete_new import TIERS
from tinytorch.cli.main import main
from tinytorch.competition.entry import read_entry
from tinytorch.competition.events import EVENTS
from tinytorch.competition.events import TIERS as KNOWN_TIERS


@pytest.mark.parametrize("event", EVENTS)
def test_an_entry_is_written_for_each_event(event, tmp_path, capsys):
    folder = tmp_path / "mine"
    assert main(["compete", "new", str(folder), "--event", event, "--team", "Ada"]) == 0
    entry = read_entry(folder)
    assert (entry.event, entry.team, entry.division, entry.tier) == (event, "Ada", "closed", 0.99)
    assert entry.techniques
    shown = capsys.readouterr().out
    assert "entry.json" in shown
    assert f"next: tinytorch compete check {folder}" in shown


def test_division_tier_and_code_are_chosen(tmp_path, capsys):
    folder = tmp_path / "mine"
    arguments = ["--event", "mlp_sprint", "--team", "Ada", "--division", "open", "--tier", "99.9%"]
    assert main(["compete", "new", str(folder), *arguments, "--code", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "model.py" in found["files"]
    entry = read_entry(folder)
    assert (entry.division, entry.tier, entry.code) == ("open", 0.999, "model.py:make")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--event", "mlp_sprnt"], "did you mean"),
        (["--event", "mlp_sprint", "--tier", "98"], "no tier '98'; there are 99 and 99.9"),
        (["--event", "mlp_sprint", "--division", "closd"], "closed"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(arguments, words, tmp_path, capsys):
    folder = tmp_path / "mine"
    assert main(["compete", "new", str(folder), "--team", "Ada", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not folder.exists()


def test_nothing_is_overwritten(tmp_path, capsys):
    arguments = ["compete", "new", str(tmp_path / "mine"), "--event", "mlp_sprint", "--team", "Ada"]
    assert main(arguments) == 0
    before = (tmp_path / "mine" / "entry.json").read_bytes()
    assert main(arguments) == 2
    assert (tmp_path / "mine" / "entry.json").read_bytes() == before


def test_the_tiers_are_those_of_the_events():
    assert tuple(TIERS.values()) == KNOWN_TIERS


def test_a_place_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("", "utf-8")
    folder = str(tmp_path / "file" / "mine")
    assert main(["compete", "new", folder, "--event", "mlp_sprint", "--team", "Ada"]) == 2
    assert f"{folder} cannot be written: Not a directory" in capsys.readouterr().err
