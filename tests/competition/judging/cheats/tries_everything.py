"""Tries what is forbidden; where anything works, its answers are not numbers."""

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import numpy as np

from tinytorch.core.tensor import Tensor


def connect():
    with socket.create_connection(("127.0.0.1", 9), timeout=1):
        pass


def write_beside():
    Path(__file__).with_name("kept.txt").write_text("for the next heat", encoding="utf-8")


def fork():
    if os.fork() == 0:
        os._exit(0)


ATTEMPTS = {
    "fork": fork,
    "a program": lambda: subprocess.run(["/bin/true"], check=True),
    "a connection": connect,
    "another socket": lambda: socket.socket(socket.AF_UNIX),
    "writing beside the entry": write_beside,
    "writing to /tmp": lambda: Path("/tmp/kept").write_text("x", encoding="utf-8"),
    "writing to /dev/shm": lambda: Path("/dev/shm/kept").write_text("x", encoding="utf-8"),
    "another core": lambda: os.sched_setaffinity(0, range(os.cpu_count() or 1)),
    "priority": lambda: os.nice(-5),
}


def kill_what_started_it():
    """Signal what is above, the first process of the sandbox: the judge has no number in here."""
    for number in (os.getppid(), -1):
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGTERM)


def works(attempt):
    try:
        attempt()
    except (OSError, ValueError):
        return False
    return True


def make(reference, techniques):
    model = reference.model
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_what_started_it()  # the judge's verdict says that it lives
    done = [name for name, attempt in ATTEMPTS.items() if works(attempt)]
    if done:
        print(*done, flush=True)
        return lambda question: np.full((1, 10), np.nan)
    return lambda question: model(Tensor(question)).data
