import io
import json
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from tinytorch import __version__
from tinytorch.cli import console
from tinytorch.cli.console import BarProgress, Output, SilentProgress
from tinytorch.codec import encode

PLAIN = Output("probe")
AS_JSON = Output("probe", as_json=True)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


class Clock:
    """A clock that moves when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def use_terminal(monkeypatch):
    # Not a fixture: pytest puts its own stderr back between the fixtures and the test.
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def printed_json(capsys, payload):
    AS_JSON.result(payload, "for people")
    return json.loads(capsys.readouterr().out)


def test_people_get_the_renderable(capsys):
    PLAIN.result({"hidden": 1}, "for people")
    assert capsys.readouterr().out == "for people\n"


def test_machines_get_one_object_with_command_and_version(capsys):
    assert printed_json(capsys, {"x": 1}) == {"command": "probe", "version": __version__, "x": 1}


def test_a_layer_name_in_brackets_survives(capsys):
    table = Table("layer")
    table.add_row("blocks[0].mlp")
    PLAIN.result({}, table)
    PLAIN.result({}, "blocks[0] :key:")
    shown = capsys.readouterr().out
    assert "blocks[0].mlp" in shown
    assert "blocks[0] :key:" in shown


def test_a_long_path_is_not_wrapped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    path = "/".join(["folder"] * 20)
    PLAIN.result({}, f"report in {path}")
    assert capsys.readouterr().out == f"report in {path}\n"


def test_no_color_is_honoured(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", coloured)
    PLAIN.result({}, Text("slow", style="red"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", plain)
    PLAIN.result({}, Text("slow", style="red"))
    assert "\x1b[31m" in coloured.getvalue()
    assert plain.getvalue() == "slow\n"


@dataclass(frozen=True)
class Point:
    x: float
    label: str


class Verdict(Enum):
    FASTER = "faster"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (np.float64("inf"), None),
        (np.float32("nan"), None),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array([[1.0, np.nan]]), [[1.0, None]]),
        (np.array(3), 3),
        ({"a": {"b": (1, float("inf"))}}, {"a": {"b": [1, None]}}),
        ({1: "x"}, {"1": "x"}),
        (Point(float("nan"), "p"), {"x": None, "label": "p"}),
        (Verdict.FASTER, "faster"),
        (Path("a") / "b", str(Path("a") / "b")),
        (None, None),
        ("ratio 2×", "ratio 2×"),
    ],
)
def test_values_find_their_form_in_json(capsys, value, expected):
    assert printed_json(capsys, {"value": value})["value"] == expected


@given(st.recursive(st.floats() | st.integers() | st.text(), st.lists, max_leaves=10))
def test_json_never_holds_what_json_lacks(value):
    ready = encode({"value": value})
    json.dumps(ready, allow_nan=False)
    assert set(ready) == {"value"}


def test_an_unknown_type_is_our_mistake():
    with pytest.raises(TypeError, match="complex"):
        AS_JSON.result({"value": 1j}, "for people")


def test_a_payload_may_not_rename_the_command():
    with pytest.raises(AssertionError, match="belong to every result"):
        AS_JSON.result({"command": "other"}, "for people")


def test_messages_go_to_stderr_in_both_forms(capsys):
    PLAIN.say("hello")
    AS_JSON.say("hello")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\nhello\n")


def test_quiet_silences_messages_but_not_results(capsys):
    quiet = Output("probe", quiet=True)
    quiet.say("hello")
    quiet.result({}, "answer")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("answer\n", "")


def test_progress_is_silent_without_a_terminal(capsys):
    with PLAIN.progress("working", 3) as progress:
        progress.describe("still working")
        progress.advance(3)
    assert isinstance(progress, SilentProgress)
    assert capsys.readouterr().err == ""


def test_progress_is_silent_when_quiet(monkeypatch):
    terminal = use_terminal(monkeypatch)
    with Output("probe", quiet=True).progress("working", 3) as progress:
        progress.advance()
    assert isinstance(progress, SilentProgress)
    assert terminal.getvalue() == ""


def test_what_reports_no_progress_is_named_on_a_terminal_and_disappears(monkeypatch):
    screen = use_terminal(monkeypatch)
    with PLAIN.waiting("loading bert"):
        assert screen.getvalue() == "loading bert"
    assert screen.getvalue().endswith("\r" + " " * len("loading bert") + "\r")


def test_a_wait_is_silent_without_a_terminal(capsys):
    with PLAIN.waiting("loading bert"):
        pass
    assert capsys.readouterr().err == ""


def test_short_work_shows_no_bar(monkeypatch):
    terminal = use_terminal(monkeypatch)
    with PLAIN.progress("working", 3) as progress:
        progress.describe("still working")
        progress.advance()
    assert isinstance(progress, BarProgress)
    assert terminal.getvalue() == ""


def test_long_work_shows_what_is_done(monkeypatch):
    terminal = use_terminal(monkeypatch)
    clock = Clock()
    progress = BarProgress("working", 40, clock=clock)
    progress.advance(5)
    assert terminal.getvalue() == ""
    clock.now += 65
    progress.describe("layer [3]")
    progress.close()
    assert "layer [3]" in terminal.getvalue()
    assert "5/40" in terminal.getvalue()
    assert "0:01:05" in terminal.getvalue()  # since the work began, not since the bar is there


def test_the_bar_is_not_redrawn_at_every_step(monkeypatch):
    terminal = use_terminal(monkeypatch)
    clock = Clock()
    progress = BarProgress("working", 1000, clock=clock)
    clock.now += console.BAR_APPEARS_AFTER_S
    progress.advance()
    drawn = terminal.getvalue()
    for _ in range(100):
        progress.advance()
    assert terminal.getvalue() == drawn
    clock.now += console.BAR_REDRAWS_EVERY_S
    progress.advance()
    assert "102/1000" in terminal.getvalue()
    progress.close()


def test_the_cursor_comes_back_when_the_work_fails(monkeypatch):
    terminal = use_terminal(monkeypatch)
    monkeypatch.setattr(console, "BAR_APPEARS_AFTER_S", 0.0)

    def fail_midway():
        with PLAIN.progress("working", 3) as progress:
            progress.advance()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_midway()
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert hide in terminal.getvalue()
    assert terminal.getvalue().rindex(show) > terminal.getvalue().rindex(hide)


def test_a_result_printed_under_a_bar_stays_on_stdout(capsys, monkeypatch):
    terminal = use_terminal(monkeypatch)
    monkeypatch.setattr(console, "BAR_APPEARS_AFTER_S", 0.0)
    with PLAIN.progress("working") as progress:
        progress.advance()
        PLAIN.result({}, "answer")
    assert capsys.readouterr().out == "answer\n"
    assert "answer" not in terminal.getvalue()
