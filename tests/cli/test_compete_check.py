import json

import pytest
from example_boards import entry

from tinytorch.cli.main import main
from tinytorch.competition import entry_checks
from tinytorch.competition.entry import read_entry, write_entry
from tinytorch.competition.rules import finding


@pytest.fixture
def folder(tmp_path):
    """Give the folder of an entry."""
    write_entry(entry(), tmp_path)
    return tmp_path


@pytest.fixture
def check_finds(monkeypatch):
    """Let the check find what a test says, and keep what it was asked."""
    asked = {}

    def use(*findings):
        def check_entry(entered, *, limits, **others):
            assert not limits.unconfined
            asked.update(others)
            return findings

        monkeypatch.setattr(entry_checks, "check_entry", check_entry)
        return asked

    return use


def test_an_entry_without_findings_passes(folder, check_finds, capsys):
    asked = check_finds()
    assert main(["compete", "check", str(folder)]) == 0
    captured = capsys.readouterr()
    assert "No rule violations found" in captured.out
    assert f"next: tinytorch compete run {folder}" in captured.err
    assert asked == {"trust": False, "run": True}


def test_a_fatal_finding_fails_and_says_what_to_do(folder, check_finds, capsys):
    check_finds(finding("E5", "low-rank is no quantization"))
    assert main(["compete", "check", str(folder)]) == 1
    captured = capsys.readouterr()
    assert "E5" in captured.out
    assert "low-rank is no quantization" in captured.out
    assert "enter the open division" in " ".join(captured.out.split())
    assert "next" not in captured.err


def test_a_doubt_does_not_fail(folder, check_finds):
    check_finds(finding("W1", "no namespaces"))
    assert main(["compete", "check", str(folder)]) == 0


def test_trust_and_reading_alone_are_handed_on(folder, check_finds, capsys):
    asked = check_finds()
    assert main(["compete", "check", str(folder), "--trust", "--no-run"]) == 0
    assert asked == {"trust": True, "run": False}
    assert "--trust" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", '{"format": "x"}', "{" * 10_000])
def test_what_is_no_entry_is_a_finding(tmp_path, text, capsys):
    (tmp_path / "entry.json").write_text(text, "utf-8")
    assert main(["compete", "check", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["rule"] for each in found["findings"]] == ["E1"]
    assert not found["passed"]


def test_json_has_the_hash_of_the_entry(folder, check_finds, capsys):
    check_finds()
    assert main(["compete", "check", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entry_sha256"] == read_entry(folder).sha256
