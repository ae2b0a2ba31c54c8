import json

import pytest

from tinytorch.cli.compete import ACTIONS
from tinytorch.cli.main import build_parser, main

NEEDED = {
    "new": ["f", "--event", "mlp_sprint", "--team", "t"],
    "check": ["f"],
    "run": ["f"],
    "submit": ["f", "--to", "s"],
    "board": ["s"],
    "verify": ["s"],
    "round": ["show", "r.json"],
    "key": ["k"],
    "rules": [],
}


def test_help_lists_every_action_with_its_summary(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["compete", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {summary}" in shown for name, (_, summary) in ACTIONS.items())
    assert "not affiliated with MLCommons" in shown


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_has_the_common_options(name):
    words = ["compete", name, *NEEDED[name], "--json", "--quiet", "--seed", "7"]
    options = build_parser("compete").parse_args(words)
    assert (options.action, options.json, options.quiet, options.seed) == (name, True, True, 7)


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_without_an_action_the_usage_is_wrong(words, capsys):
    assert main(["compete", *words]) == 2
    assert "ACTION" in capsys.readouterr().err


def test_an_unknown_action_names_the_known_ones(capsys):
    assert main(["compete", "win"]) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in ACTIONS)


@pytest.mark.slow
def test_an_entry_goes_all_the_way_to_a_verified_place_on_the_board(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    judging = ["--heats", "6", "--no-ablations", "--quiet"]
    new = ["compete", "new", "mine", "--event", "mlp_sprint", "--team", "Ada", "--code"]
    assert main([*new, "--quiet"]) == 0
    assert main(["compete", "check", "mine", "--quiet"]) == 1  # nobody trusts it yet
    assert main(["compete", "check", "mine", "--trust", "--quiet"]) == 0
    # How fast it is, is a matter of the machine; that it is valid is not.
    assert main(["compete", "run", "mine", "--trust", *judging]) in (0, 3)
    assert main(["compete", "submit", "mine", "--to", "submissions", "--quiet"]) == 0
    assert main(["compete", "round", "new", "spring", "--to", "submissions", "--quiet"]) == 0
    (submitted,) = tmp_path.glob("submissions/mlp_sprint/*/*")
    again = ["--rerun", "--round", "spring.SECRET.json", "--trust", *judging]
    assert main(["compete", "verify", str(submitted), *again]) in (0, 3)
    reveal = ["compete", "round", "reveal", "spring.SECRET.json", "--to", "submissions"]
    assert main([*reveal, "--quiet"]) == 0
    assert main(["compete", "verify", "submissions", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["compete", "board", "submissions", "--json"]) == 0
    (contest,) = json.loads(capsys.readouterr().out)["contests"]
    assert [place["team"] for place in contest["verified"]["speed"]] == ["Ada"]
    assert contest["unverified"]["speed"] == []
