"""The progress line: silent in files, patient on terminals."""

import io

import pytest

from tinytorch.core import files as progress
from tinytorch.core.files import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """A clock that goes when it is told to."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "monotonic", clock)
    return clock


def test_nothing_is_written_when_the_stream_is_no_terminal(clock):
    stream = io.StringIO()
    line = ProgressLine(10, stream)
    for _ in range(10):
        clock.now += 100
        line.advance("text")
    line.close()
    assert stream.getvalue() == ""
    assert line.done == 10


def test_nothing_is_written_while_the_work_is_short(clock):
    stream = Terminal()
    line = ProgressLine(10, stream)
    for _ in range(10):
        clock.now += 0.19
        line.advance("text")
    line.close()
    assert stream.getvalue() == ""


def test_after_two_seconds_the_line_shows_how_far_the_work_is(clock):
    stream = Terminal()
    line = ProgressLine(4, stream)
    line.advance("early")
    clock.now += 2
    line.advance("loss 0.5")
    assert stream.getvalue() == "\r[" + 12 * "#" + 12 * "." + "]  50% loss 0.5\x1b[K"


def test_the_line_is_not_drawn_more_than_ten_times_a_second(clock):
    stream = Terminal()
    line = ProgressLine(1000, stream)
    clock.now += 2
    for _ in range(200):
        line.advance()
        clock.now += 0.01
    # Two seconds, with a drawing at the start; sums of hundredths are not exact.
    assert 19 <= stream.getvalue().count("\r") <= 21


def test_close_clears_what_was_drawn_once(clock):
    stream = Terminal()
    line = ProgressLine(1, stream)
    clock.now += 2
    line.advance()
    assert "] 100% " in stream.getvalue()
    drawn = stream.getvalue()
    line.close()
    line.close()
    assert stream.getvalue() == drawn + "\r\x1b[K"


def test_work_without_steps_or_with_more_than_announced_is_drawn_as_done(clock):
    stream = Terminal()
    line = ProgressLine(0, stream)
    clock.now += 2
    line.advance()
    clock.now += 1
    line.advance()
    assert stream.getvalue().count("[" + 24 * "#" + "] 100%") == 2


def test_the_usual_stream_is_the_one_for_errors(clock, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    line = ProgressLine(2)
    clock.now += 3
    line.advance("here")
    assert "here" in stream.getvalue()
