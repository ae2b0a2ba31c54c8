"""What a process uses is seen from outside."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tinytorch.competition.sandbox.contender import Limits
from tinytorch.competition.sandbox.contender_process import Watch, descendants
from tinytorch.measure.child_process import end_child, start_child

SCRIPT = """
import subprocess, sys
held, started = [], []
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""


class Watched:
    """A process that does what it is told, and the watch over it."""

    def __init__(self) -> None:
        self.child = start_child(
            [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.run("pass")
        self.watch = Watch(self.child.pid)

    def run(self, line: str) -> None:
        self.child.stdin.write(line + "\n")  # type: ignore[union-attr]
        self.child.stdout.readline()  # type: ignore[union-attr]


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.watch.close()
    end_child(made.child)


def test_memory_counts_from_the_beginning_of_the_watch(watched: Watched) -> None:
    before = watched.watch.held_bytes()
    watched.run("held.append(b'x' * (32 << 20))")
    watched.run("held.clear()")
    usage = watched.watch.usage()
    assert watched.watch.held_bytes() < before + (8 << 20)
    if sys.platform == "linux":
        assert 31 << 20 < usage.peak_bytes < 48 << 20


def test_processor_time_grows_with_work_alone(watched: Watched) -> None:
    watched.run("sum(range(1000000))")
    before = watched.watch.cpu_s()
    assert before > 0
    watched.run("sum(range(1000000))")
    assert watched.watch.cpu_s() > before


def test_processes_and_packages_are_counted(watched: Watched) -> None:
    assert watched.watch.usage().processes == 1
    watched.run("started.append(subprocess.Popen(['sleep', '60']))")
    watched.run("import numpy")
    usage = watched.watch.usage(["told"])
    assert usage.processes == 2
    assert "told" in usage.modules
    if sys.platform == "linux":
        assert "numpy" in usage.modules


def test_limits_hold_for_all_processes_together(watched: Watched) -> None:
    assert watched.watch.broken_limit(Limits()) == ""
    other = "[sys.executable, '-c', 'print(flush=True); input()'], stdout=subprocess.PIPE"
    # What has only just begun holds hardly anything yet.
    watched.run(f"started.append(subprocess.Popen({other})); started[-1].stdout.readline()")
    assert "processes" in watched.watch.broken_limit(Limits())
    assert watched.watch.broken_limit(Limits(processes=2)) == ""
    held = watched.watch.held_bytes()
    assert "MiB" in watched.watch.broken_limit(Limits(processes=2, memory_bytes=held + 100_000))
    assert "threads" in watched.watch.broken_limit(Limits(processes=2, threads=1))


def test_what_is_gone_uses_nothing() -> None:
    watched = Watched()
    end_child(watched.child)
    assert watched.watch.held_bytes() == 0
    assert descendants(watched.child.pid) == []
    watched.watch.close()
    watched.watch.close()
