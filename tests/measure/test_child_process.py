import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tinytorch.errors import SettingError
from tinytorch.measure.child_process import (
    end_child,
    how_it_ended,
    last_words,
    run_command,
    start_child,
)


def python(code):
    return [sys.executable, "-c", code]


def is_gone(pid):
    """Wait until a process is gone, or dead and not buried."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_a_command_gives_its_code_and_all_that_it_has_printed(tmp_path):
    code, output = run_command(
        "pwd; echo $A >&2; cat; exit 3", folder=tmp_path, environment={**os.environ, "A": "b"}
    )
    assert (code, output) == (3, f"{tmp_path}\nb\n")


@pytest.mark.skipif(os.name == "nt", reason="process groups work differently there")
def test_what_a_command_has_started_ends_with_it(tmp_path):
    code, output = run_command("sleep 600 & echo $!", folder=tmp_path, environment=os.environ)
    assert code == 0
    assert is_gone(int(output))


def test_a_child_sees_the_end_of_its_stdin_only_when_we_are_gone():
    code = "import sys; print('ready', flush=True); sys.stdin.read(); print('alone', flush=True)"
    child = start_child(python(code), stdout=subprocess.PIPE)
    assert child.stdout.readline().strip() == b"ready"
    assert child.poll() is None
    child.stdin.close()
    assert child.stdout.readline().strip() == b"alone"
    end_child(child)
    assert child.stdout.closed


def test_a_command_that_is_not_there_is_named():
    with pytest.raises(
        SettingError, match="/nowhere/python cannot be started for the baseline: No"
    ):
        start_child(["/nowhere/python"], purpose="for the baseline")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with code 0"),
        (-int(signal.SIGSEGV), "was killed by SIGSEGV"),
        (-int(signal.SIGKILL), "was killed by SIGKILL; the machine may have run out of memory"),
        (-99, "was killed by signal 99"),
    ],
)
def test_the_end_of_a_process_in_words(code, words):
    assert how_it_ended(code) == words


def test_last_words_are_one_line_from_the_end():
    assert last_words("a\n b  c \n\n") == "a / b c"
    assert last_words("x" * 700) == "x" * 600
    assert last_words("abcdef", limit=2) == "ef"
