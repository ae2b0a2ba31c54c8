import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from tinytorch.benchmarking.suite_file import Entry, SingleStream
from tinytorch.benchmarking.suite_run import run_entry
from tinytorch.measure.child_process import TIMED_OUT, Child, ChildError, owned_folder
from tinytorch.measure.executor import FOLDERS

FACTORIES = """
import os, signal, subprocess, sys, time
import numpy as np

def fine():
    print("hello", flush=True)
    return (lambda x: x), np.ones((2, 3))
def raises(): raise ValueError("the wires are crossed")
def leaves():
    print("going", file=sys.stderr, flush=True)
    os._exit(3)
def killed(): os.kill(os.getpid(), signal.SIGKILL)
def crashes(): os.kill(os.getpid(), signal.SIGSEGV)
def no_memory(): raise MemoryError("no room")
def exits(): raise SystemExit(4)
def hangs():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open("pids", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(600)
"""


@pytest.fixture
def entry(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(FACTORIES, "utf-8")
    monkeypatch.chdir(tmp_path)
    return lambda name: Entry(
        f"tiny.py:{name}", SingleStream(queries=10), budget_s=0.02, folder=str(tmp_path)
    )


def is_alive(pid):
    """Say whether a process runs; one that is dead and not yet buried does not."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition):
    """Wait for something that happens for sure, however slow the machine is."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_entry_is_measured_in_another_process(entry, capfd):
    answer = run_entry(entry("fine"), timeout_s=60)
    assert answer.failure is None
    assert answer.samples["latency"].count == 10
    assert answer.environment["fingerprint"]
    assert capfd.readouterr() == ("", "")


def test_packages_of_the_working_folder_are_found(entry, tmp_path):
    (tmp_path / "working_models.py").write_text(FACTORIES, "utf-8")
    found = run_entry(Entry("working_models:fine", SingleStream(), budget_s=0.01), timeout_s=60)
    assert found.failure is None


@pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "ValueError: the wires are crossed"),
        ("leaves", "its process ended with code 3; it said: going"),
        ("killed", "killed by SIGKILL; the machine may have run out of memory"),
        ("crashes", "killed by SIGSEGV"),
        ("no_memory", "MemoryError: no room"),
        ("exits", "SystemExit: 4"),
    ],
)
def test_a_failure_has_a_reason_and_no_numbers(entry, name, reason):
    answer = run_entry(entry(name), timeout_s=60)
    assert reason in answer.failure
    assert answer.samples == {}


@pytest.mark.skipif(os.name == "nt", reason="process groups work differently there")
def test_what_hangs_is_ended_with_all_that_it_started(entry, tmp_path, monkeypatch):
    # The time runs out once the target has started its child, however long that takes.
    def wait(child, timeout_s, while_waiting):
        wait_for(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
        raise ChildError(TIMED_OUT, "gave no answer within 5 s and was ended")

    monkeypatch.setattr(Child, "_next_line", wait)
    answer = run_entry(entry("hangs"), timeout_s=5)
    assert "gave no answer within 5 s and was ended" in answer.failure
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    wait_for(lambda: not any(map(is_alive, pids)))
    assert len(pids) == 2


def test_a_real_timeout_ends_it_too(entry):
    answer = run_entry(entry("hangs"), timeout_s=0.05)
    assert "gave no answer within 0.05 s" in answer.failure


@pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
def test_a_killed_parent_takes_its_worker_and_that_ones_children_along(entry, tmp_path):
    code = (
        "import sys; sys.path[:] = sys.argv[1:];"
        "from tinytorch.benchmarking.suite_file import Entry;"
        "from tinytorch.benchmarking.suite_file import SingleStream;"
        "from tinytorch.benchmarking.suite_run import run_entry;"
        "run_entry(Entry('tiny.py:hangs', SingleStream(), folder='.'), timeout_s=600)"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "-c", code, *sys.path], env=environment)
    file = tmp_path / "pids"
    wait_for(lambda: file.exists() and file.read_text())
    assert len(list(temporary.iterdir())) == 1
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    pids = [int(word) for word in file.read_text().split()]
    wait_for(lambda: not any(map(is_alive, pids)))
    assert parent.returncode == -signal.SIGKILL
    assert list(temporary.iterdir()) == []


def test_what_a_killed_suite_has_left_is_removed_at_the_next_start(entry, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with owned_folder(FOLDERS) as folder:
        name = folder.name
    left = tmp_path / name.replace(f"-{os.getpid()}-", "-999999999-")
    left.mkdir()
    run_entry(entry("raises"), timeout_s=60)
    assert list(tmp_path.glob("tinytorch-*")) == []


def test_a_missing_interpreter_is_said_at_once(entry, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ValueError, match="/nowhere/python cannot be started"):
        run_entry(entry("fine"), timeout_s=60)
