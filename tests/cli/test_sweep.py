import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from example_suites import write_suite

from tinytorch.benchmarking.suite_run import EntryAnswer
from tinytorch.cli.console import ExitCode
from tinytorch.cli.main import main
from tinytorch.cli.sweep import EXECUTORS, SHOWN_SLOTS
from tinytorch.codec import encode
from tinytorch.errors import Failure, Note
from tinytorch.measure.executor import DISTURBED, SlotReport, TrialResult


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


class InstantExecutor:
    """Answers each call at once, in this process; the second one fails, the first is disturbed."""

    reports = True

    def __init__(self, arrival):
        self.arrival, self.calls, self.closed = arrival, [], 0
        self.slots = [SlotReport("slot", "here", (0,), {"fingerprint": "c0ffee"})]
        self.running = {f"slot {n}": f"trial {n}" for n in range(SHOWN_SLOTS + 2)}

    def submit(self, call):
        self.calls.append(call)

    def wait(self, timeout_s=None):
        done, self.calls = self.calls, []
        answer = encode(EntryAnswer())
        return [
            TrialResult(
                *(call.key, None if n else answer, Failure("the wires are crossed") if n else None),
                *("slot", "c0ffee", 1.25, () if n else (Note("somebody is busy", DISTURBED),)),
            )
            for n, call in enumerate(done)
        ]

    def close(self):
        self.closed += 1


@pytest.fixture
def executors(monkeypatch):
    """Replace what runs trials, and give all that were made."""
    made = []

    def make(options, arrival):
        made.append(InstantExecutor(arrival))
        return made[-1]

    monkeypatch.setitem(EXECUTORS, "local", make)
    return made


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_sweep_shows_its_progress_and_its_results(
    folder, executors, capsys, monkeypatch, is_terminal
):
    file = write_suite(folder, "fine [1, 8]")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    command = ["sweep", str(file), "--checks", "3", "--budget", "0.5", "--json"]
    assert main(command) == ExitCode.FAILED
    shown, messages = capsys.readouterr()
    payload = json.loads(shown)
    (found,) = payload["machines"].values()
    assert [each["failure"] is None for each in found] == [True, False]
    assert payload["is_complete"]
    (executor,) = executors
    assert executor.arrival.arguments["checks"] == 3
    assert executor.closed
    lines = [line for line in messages.splitlines() if " of 2: " in line]
    assert [line.startswith(f"{n} of 2: ") for n, line in enumerate(lines, 1)] == (
        [] if is_terminal else [True, True]
    )
    assert [("disturbed" in line, "wires" in line) for line in lines] == (
        [] if is_terminal else [(True, False), (False, True)]
    )


def test_an_interrupted_sweep_shows_what_is_finished(folder, executors, capsys, monkeypatch):
    file = write_suite(folder, "fine [1]", "broken [1]")
    wait = InstantExecutor.wait

    def one_and_stop(executor, timeout_s=None):
        if not executor.calls:
            raise KeyboardInterrupt
        first, executor.calls = executor.calls[:1], executor.calls[1:]
        rest, executor.calls = executor.calls, first
        found = wait(executor)
        executor.calls = rest[1:]
        return found

    monkeypatch.setattr(InstantExecutor, "wait", one_and_stop)
    assert main(["sweep", str(file), "--json"]) == ExitCode.INTERRUPTED
    payload = json.loads(capsys.readouterr().out)
    (found,) = payload["machines"].values()
    assert len(found) == 1
    assert not payload["is_complete"]
    assert executors[0].closed


def test_a_sweep_without_any_result_shows_none(folder, executors, capsys, monkeypatch):
    def stop(executor, timeout_s=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(InstantExecutor, "wait", stop)
    file = write_suite(folder, "fine [1]")
    assert main(["sweep", str(file), "--json"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().out == ""


def test_the_executor_of_this_machine_has_a_slot_for_each_group_of_cores(monkeypatch):
    made = []
    monkeypatch.setattr(
        "tinytorch.measure.executor.LocalExecutor", lambda groups, arrival: made.append(groups)
    )
    monkeypatch.setattr("tinytorch.measure.executor.usable_core_numbers", lambda: (0, 1, 2, 3))
    for slots in (None, 2):
        EXECUTORS["local"](SimpleNamespace(slots=slots), None)
    assert [len(groups) for groups in made] == [0, 2]
    assert sorted(core for group in made[1] for core in group) == [0, 1, 2, 3]


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
