"""Clocks of ranks are compared by answers over a socket."""

from time import perf_counter_ns

import pytest

from tinytorch.scale.clocks import ClockServer, ask_clock, offset_at
from tinytorch.scale.rank_file import Clock


@pytest.fixture
def server():
    found = ClockServer()
    yield found
    found.close()


def test_the_same_clock_is_zero_ahead_within_the_error(server):
    clock = ask_clock(("127.0.0.1", server.port))
    assert abs(clock.offset) <= clock.error + 1


def test_a_shifted_clock_is_found_within_the_error(server):
    shift = 123_456_789_000
    clock = ask_clock(("127.0.0.1", server.port), read=lambda: perf_counter_ns() - shift)
    assert abs(clock.offset - shift / 1000) <= clock.error + 1


def test_a_drift_between_two_answers_is_even():
    clocks = [Clock(1000, 10.0, 1.0), Clock(3000, 30.0, 1.0)]
    assert offset_at(clocks, 2000) == pytest.approx(20.0)
    assert offset_at(clocks[:1], 2000) == 10.0
    assert offset_at([], 2000) == 0.0


def test_nobody_answers():
    server = ClockServer()
    server.close()
    with pytest.raises(OSError):  # noqa: PT011 - refused or reset, as the system likes
        ask_clock(("127.0.0.1", server.port))
