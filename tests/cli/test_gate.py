import json
import sys
from types import SimpleNamespace

import pytest
from example_gates import every_verdict
from git_projects import BENCH, project, write

from tinytorch.cli.main import main
from tinytorch.records import gate as module
from tinytorch.records.gate_result import GateResult

GITHUB = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")


@pytest.fixture(autouse=True)
def _nobody_watches(monkeypatch):
    for name in GITHUB:
        monkeypatch.delenv(name, raising=False)
    checked = SimpleNamespace(known_floor=lambda: None)
    monkeypatch.setitem(sys.modules, "tinytorch.comparison.self_check", checked)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = project(tmp_path / "project")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TINYTORCH_RECORDS", str(tmp_path / "records.sqlite"))
    return folder


@pytest.fixture
def gate_is(folder, monkeypatch):
    """Let the gate find what a test says, and keep what it was asked."""
    asked = {}

    def use(result=None):
        def run_gate(against, settings, **others):
            asked.update(others, against=against, settings=settings)
            for row in (result or every_verdict()).results:
                others["on_result"](row)
            return result or every_verdict()

        monkeypatch.setattr(module, "run_gate", run_gate)
        return asked

    return use


@pytest.mark.parametrize(
    ("start", "code"), [(0, 1), (1, 1), (2, 5), (3, 4), (4, 3), (5, 0), (6, 0)]
)
def test_the_worst_verdict_is_the_exit_code(gate_is, start, code):
    gate_is(GateResult("main", "here", every_verdict().results[start:]))
    assert main(["gate", "--against", "main", "x:y"]) == code


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(gate_is, folder):
    text = "[tool.tinytorch.gate]\ntargets = ['a:b']\ntolerance = '3%'\nmargin = 0.5\n"
    (folder / "pyproject.toml").write_text(text, "utf-8")
    asked = gate_is()
    main(["gate", "--against", "main", "--tolerance", "7%", "--budget", "4", "--seed", "9"])
    settings = asked["settings"]
    assert settings.targets == ("a:b",)
    assert (settings.tolerance, settings.margin) == (0.07, 0.5)
    assert (settings.budget_s, settings.timeout_s) == (4.0, 120.0)
    assert (asked["seed"], asked["save"], asked["candidate"]) == (9, True, None)
    main(["gate", "--against", "x", "c:d", "--no-save", "--candidate", "v2", "--store", "s"])
    assert asked["settings"].targets == ("c:d",)
    assert (asked["save"], asked["candidate"], asked["store"]) == (False, "v2", "s")


def test_json_alone_is_on_stdout(gate_is, capsys):
    gate_is()
    assert main(["gate", "--against", "main", "x:y", "--json"]) == 1
    captured = capsys.readouterr()
    fields = json.loads(captured.out)
    assert fields["command"] == "gate"
    assert fields["verdict"] == "failed"
    assert len(fields["targets"]) == 7
    assert "bench.py:slower: regression" in captured.err


def test_files_are_written(gate_is, folder, capsys):
    gate_is()
    main(["gate", "--against", "main", "x:y", "--markdown", "out/m.md", "--junit", "out/j.xml"])
    assert (folder / "out" / "m.md").read_text("utf-8").startswith("### ❌ The gate fails")
    assert (folder / "out" / "j.xml").read_text("utf-8").startswith("<?xml version=")
    assert "::error" not in capsys.readouterr().err


def test_markdown_can_go_to_stdout(gate_is, capsys):
    gate_is()
    main(["gate", "--against", "main", "x:y", "--markdown", "-"])
    assert capsys.readouterr().out.startswith("### ❌ The gate fails")
    assert main(["gate", "--against", "main", "x:y", "--markdown", "-", "--json"]) == 2


def test_a_file_that_cannot_be_written_is_refused_before_measuring(gate_is, folder, capsys):
    asked = gate_is()
    (folder / "file").write_text("", "utf-8")
    assert main(["gate", "--against", "main", "x:y", "--junit", "file/j.xml"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert asked == {}


def test_github_gets_its_summary_and_annotations(gate_is, tmp_path, monkeypatch, capsys):
    gate_is()
    summary = tmp_path / "summary.md"
    summary.write_text("before\n", "utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    main(["gate", "--against", "main", "x:y", "--json", "--quiet"])
    captured = capsys.readouterr()
    assert summary.read_text("utf-8").startswith("before\n### ❌")
    assert captured.err.count("::error ") == 4
    assert json.loads(captured.out)["verdict"] == "failed"


def test_a_summary_that_cannot_be_written_does_not_change_the_verdict(
    gate_is, tmp_path, monkeypatch, capsys
):
    gate_is(GateResult("main", "here", every_verdict().results[5:]))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert main(["gate", "--against", "main", "x:y"]) == 0
    assert "was not written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "main", "x:y", "--tolerance", "5"], "5 percent is '5%'"),
        (["--against", "main", "x:y", "--tolerance", "0.1%"], "below 0.5%"),
        (["--against", "main", "x:y", "--budget", "soon"], "'soon'"),
        (["--against", "main", "x:y", "--budget", "0"], "budget_s=0.0"),
        (["--against", "mian", "x:y"], "did you mean main?"),
        (["--against", "main"], "there is nothing to measure"),
        (["--against", "main", "none.py:make"], "is not there, on no side"),
        (["x:y"], "name the baseline: --against main"),
    ],
)
def test_wrong_usage_is_explained(folder, capsys, words, message):
    assert main(["gate", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_candidate_that_raises_is_found_for_real(folder, capsys):
    write(folder, bench="def make():\n    raise ValueError('broken')\n", fresh=BENCH)
    code = main(["gate", "--against", "main", "bench.py:make", "fresh.py:make", "--no-save"])
    assert code == 1
    shown = capsys.readouterr().out
    assert "broken" in shown
    assert "1 failed, 1 new" in shown
