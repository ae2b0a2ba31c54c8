import json
import os
import signal
import subprocess
import sys
import time

import pytest
from example_suites import write_suite

from tinytorch.cli.console import ExitCode
from tinytorch.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("TINYTORCH_RECORDS", raising=False)
    return tmp_path


@pytest.mark.slow
def test_a_sweep_runs_and_goes_on_after_its_end_with_a_new_one(folder, capsys):
    file = write_suite(folder, "fine [1]", "broken [1]", scenarios='["comparison"]')
    assert main(["sweep", str(file), "--checks", "0", "--json"]) == ExitCode.FAILED
    payload = json.loads(capsys.readouterr().out)
    (found,) = payload["machines"].values()
    assert [each["failure"] is None for each in found] == [True, False]
    assert found[0]["comparison"]["time_ratio"] > 0
    assert found[0]["comparison"]["verdict"]
    assert payload["is_complete"]
    page = folder / "page.html"
    assert main(["sweep", str(file), "--checks", "0", "--html", str(page)]) == ExitCode.FAILED
    text, messages = capsys.readouterr()
    assert "1 trial failed" in text
    assert "is complete; a new one begins" in messages
    assert "fine" in page.read_text("utf-8")


def test_trials_are_listed_without_running(folder, capsys):
    file = write_suite(folder, "fine [1, 8]", "broken [1]")
    assert main(["sweep", str(file), "--list", "--json", "--only", "fine"]) == ExitCode.FINE
    trials = json.loads(capsys.readouterr().out)["trials"]
    assert [each["settings"]["batch_size"] for each in trials] == [1, 8]
    assert not (folder / ".tinytorch").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--address", "here:1"],
        ["--gpus", "1"],
        ["--on", "ray", "--slots", "2"],
        ["--checks", "-1"],
        ["--slots", "100000"],
        ["--list", "--html", "x.html"],
    ],
)
def test_options_that_do_not_fit_are_refused_and_leave_nothing(folder, options):
    file = write_suite(folder, "fine [1]")
    assert main(["sweep", str(file), *options]) == ExitCode.USAGE
    assert not (folder / ".tinytorch").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
def test_an_interrupted_sweep_shows_what_is_finished_and_goes_on(folder, capsys):
    file = write_suite(folder, "fine [1]", "waits [1]")
    # In the background of a shell SIGINT is ignored, and programs inherit that from us.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from tinytorch.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "sweep", str(file), "--checks", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        while not (folder / "is_waiting").exists():
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=60)
    assert child.returncode == ExitCode.INTERRUPTED
    payload = json.loads(output)
    assert not payload["is_complete"]
    (found,) = payload["machines"].values()
    assert len(found) == 1
    assert main(["sweep", str(file), "--checks", "0", "--timeout", "0.1", "--json"]) in (0, 1)
    again = json.loads(capsys.readouterr().out)
    assert again["run"] == payload["run"]
    assert again["is_complete"]
