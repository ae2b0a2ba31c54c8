import io
import sys

from example_optimizations import inconclusive
from kept_attempts import UNUSABLE, timed

from tinytorch.cli.console import Output
from tinytorch.cli.optimize import AttemptWatch


class Recorder:
    """Progress that remembers what it was told."""

    def __init__(self):
        self.said, self.steps = [], 0

    def describe(self, text):
        self.said.append(text)

    def advance(self, steps=1):
        self.steps += steps


def watching(goal="latency", limits=None):
    progress = Recorder()
    return AttemptWatch(Output("optimize"), progress, goal=goal, limits=limits or {}), progress


def test_a_line_says_what_came_of_it_and_the_best_so_far(capsys):
    watch, _ = watching()
    for each in (UNUSABLE[2], timed("compiled-kernels", ratio=0.8), timed("int8-dynamic")):
        watch.hear(each)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "threads: failed: RuntimeError: no threads"
    assert lines[1].startswith("compiled-kernels: 1.25x faster (")
    assert lines[1].endswith("; the best so far")
    assert lines[2].startswith("int8-dynamic: 2.00x faster (")
    assert lines[2].endswith("; the best so far")


def test_what_an_earlier_run_has_finished_is_said(capsys):
    watch, _ = watching()
    watch.hear(timed("int8-dynamic", measured_at="2026-05-01 10:00 UTC"))
    assert ", from an earlier run; the best so far" in capsys.readouterr().err


def test_the_goal_decides_what_a_line_says(capsys):
    watch, _ = watching(goal="memory")
    watch.hear(timed("int8-dynamic", ratio=1.2))
    assert capsys.readouterr().err.startswith(
        "int8-dynamic: 2.00x smaller in parameters and live tensors"
    )


def test_what_breaks_a_limit_is_not_the_best(capsys):
    watch, _ = watching(limits={"latency_ms": 1e-6})
    watch.hear(timed("int8-dynamic"))
    assert "best" not in capsys.readouterr().err


def test_the_bar_says_what_is_tried_and_how_good_the_best_is(monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    watch, progress = watching()
    watch.describe("compiled-kernels")
    watch.hear(timed("compiled-kernels", ratio=0.8))
    watch.advance()
    watch.describe("int8-dynamic (best: compiled-kernels)")
    watch.describe("int8-dynamic against baseline: round 12")
    assert progress.said == [
        "compiled-kernels",
        "int8-dynamic ... best: 1.25x faster",
        "int8-dynamic: round 12 ... best: 1.25x faster",
    ]
    assert progress.steps == 1
    assert stream.getvalue() == ""


def test_an_inconclusive_accuracy_is_said_and_is_never_the_best(capsys):
    watch, _ = watching()
    tried = inconclusive("int8-static")
    watch.hear(tried)
    line = capsys.readouterr().err
    assert line.startswith("int8-static: 2.50x faster (")
    assert f"; accuracy inconclusive: {tried.reason}" in line
    assert "best:" not in line
