import json
import os
import signal
import subprocess
import sys
import time

import pytest
from example_suites import write_suite
from parts import require_part

from tinytorch.benchmarking import suite_run
from tinytorch.cli.console import ExitCode
from tinytorch.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("TINYTORCH_RECORDS", raising=False)
    return tmp_path


@pytest.fixture
def nothing_is_measured(monkeypatch):
    """Make measuring an error, for what must be refused before it."""

    def measure(*_, **__):
        raise AssertionError("measured before the check")

    monkeypatch.setattr(suite_run, "run_entry", measure)


def test_a_suite_runs_and_shows_its_table(folder, capsys):
    file = write_suite(folder, "fine [1, 8]")
    assert main(["bench", str(file), "--verbose"]) == ExitCode.FINE
    text, messages = capsys.readouterr()
    assert messages.startswith("1 of 2: tiny.py:fine/batch 1/default/none/single-stream ...\n")
    assert "Single-stream  One query after the other" in text
    assert "tiny.py:fine/batch 8/default/none" in text
    assert (folder / ".tinytorch" / "records.sqlite").exists()


def test_a_failing_entry_is_reported_and_the_others_go_on(folder, capsys):
    file = write_suite(folder, "broken [1]", "fine [1]")
    assert main(["bench", str(file), "--json"]) == ExitCode.FAILED
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert "the wires are crossed" in entries[0]["failure"]
    assert entries[0]["latency"] is None
    assert entries[1]["failure"] is None
    assert entries[1]["latency"]["p50"]["value_s"] > 0


def test_fail_fast_stops_there(folder, capsys):
    file = write_suite(folder, "broken [1]", "fine [1]")
    assert main(["bench", str(file), "--fail-fast", "--json"]) == ExitCode.FAILED
    payload = json.loads(capsys.readouterr().out)
    assert len(payload["entries"]) == 1
    assert payload["is_complete"] is False


def test_an_entry_that_hangs_is_given_up(folder, capsys):
    file = write_suite(folder, "waits [1]")
    assert main(["bench", str(file), "--timeout", "0.05"]) == ExitCode.FAILED
    assert "gave no answer within 0.05 s and was ended" in capsys.readouterr().out


@pytest.mark.usefixtures("nothing_is_measured")
def test_entries_are_listed_without_running(folder, capsys):
    file = write_suite(folder, "fine [1, 8]", "broken [1]")
    assert main(["bench", str(file), "--list", "--json", "--only", "fine"]) == ExitCode.FINE
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert [entry["settings"]["batch_size"] for entry in entries] == [1, 8]
    assert main(["bench", str(file), "--list"]) == ExitCode.FINE
    assert "3 entries, none run" in capsys.readouterr().out
    assert not (folder / ".tinytorch").exists()


def test_a_picture_is_written(folder, capsys):
    require_part("matplotlib")
    file = write_suite(folder, "fine [1]")
    assert main(["bench", str(file), "--plot", "suite.svg", "--budget", "0.005"]) == ExitCode.FINE
    assert (folder / "suite.svg").read_text("utf-8").startswith("<?xml")
    assert "wrote suite.svg" in capsys.readouterr().err


def test_a_second_run_is_set_against_the_first(folder, capsys):
    file = write_suite(folder, "fine [1]")
    ratios = []
    for _ in range(2):
        assert main(["bench", str(file), "--json", "--store", "mine.sqlite"]) == ExitCode.FINE
        payload = json.loads(capsys.readouterr().out)
        ratios.append(payload["entries"][0]["time_ratio_to_previous"])
    assert ratios[0] is None
    assert ratios[1] > 0
    assert payload["store"].endswith("mine.sqlite")


def test_with_nothing_to_resume_it_says_so_and_begins(folder, capsys):
    file = write_suite(folder, "fine [1]")
    assert main(["bench", str(file), "--resume"]) == ExitCode.FINE
    assert "there is no run of these entries to resume" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "nowhere.toml cannot be read"),
        (["tiny.toml", "--budget", "0"], "--budget 0"),
        (["tiny.toml", "--timeout", "nan"], "--timeout nan"),
        (["tiny.toml", "--plot", "suite.txt"], "suite.txt is no picture"),
        (["tiny.toml", "--only", "gpt"], "no entry fits 'gpt'"),
    ],
)
def test_what_cannot_work_is_one_line(folder, capsys, arguments, message):
    write_suite(folder, "fine [1]")
    assert main(["bench", *arguments]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.usefixtures("nothing_is_measured")
def test_a_wrong_target_late_in_the_file_is_found_before_anything_runs(folder, capsys):
    file = write_suite(folder, "fine [1]", "missing [1]")
    assert main(["bench", str(file)]) == ExitCode.USAGE
    assert "workload 2: target 'tiny.py:missing'" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
def test_ctrl_c_shows_what_is_finished(folder):
    file = write_suite(folder, "fine [1]", "waits [1]")
    # In the background of a shell SIGINT is ignored, and programs inherit that from us.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from tinytorch.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "bench", str(file), "--json", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    while not (folder / "is_waiting").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    shown, messages = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert messages.strip() == "interrupted"
    payload = json.loads(shown)
    assert [entry["name"].split("/")[0] for entry in payload["entries"]] == ["tiny.py:fine"]
    assert payload["is_complete"] is False


def test_a_report_is_written(folder, capsys):
    file = write_suite(folder, "fine [1]")
    assert main(["bench", str(file), "--html", "suite.html"]) == ExitCode.FINE
    assert "wrote suite.html" in capsys.readouterr().err
    assert "tiny.py:fine/batch 1" in (folder / "suite.html").read_text("utf-8")


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--open"], "--open shows the report that --html FILE writes"),
        (["--html", "."], ". is a folder"),
        (["--list", "--html", "x.html"], "--list cannot be combined with --html"),
    ],
)
def test_a_report_that_cannot_be_is_refused_before_measuring(folder, capsys, arguments, message):
    file = write_suite(folder, "fine [1]")
    assert main(["bench", str(file), *arguments]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
