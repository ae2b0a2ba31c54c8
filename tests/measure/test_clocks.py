import time

import pytest

from tinytorch.measure.timing import CPU_TIME, WALL, ColdClock, StandardClock, reading_overhead


class Hand:
    """A clock's hand that moves by a step at every look, and when told to."""

    def __init__(self, step_ns=0):
        self.now, self.step_ns = 0, step_ns

    def __call__(self):
        self.now += self.step_ns
        return self.now


def clock_with(hand, resolution_s=1e-9):
    return StandardClock("test", hand, resolution_s)


@pytest.mark.parametrize("loops", [1, 2, 7])
def test_the_function_is_called_once_per_loop(loops):
    calls = []
    assert WALL.time(lambda: calls.append(1), loops) > 0
    assert len(calls) == loops


def test_the_time_is_of_all_calls_together():
    hand = Hand()

    def work():
        hand.now += 500

    assert clock_with(hand).time(work, 1) == pytest.approx(500e-9)
    assert clock_with(hand).time(work, 4) == pytest.approx(2000e-9)


def test_waiting_takes_wall_time_but_no_processor_time():
    wall = WALL.time(lambda: time.sleep(0.05), 1)
    cpu = CPU_TIME.time(lambda: time.sleep(0.05), 1)
    assert wall >= 0.05
    assert cpu < 0.05


def test_the_overhead_is_what_the_clock_shows_for_nothing():
    assert reading_overhead(clock_with(Hand(step_ns=30))) == pytest.approx(30e-9)


def test_the_overhead_is_at_least_what_the_clock_can_tell_apart():
    assert reading_overhead(clock_with(Hand(), resolution_s=1e-6)) == 1e-6


@pytest.mark.parametrize("clock", [WALL, CPU_TIME])
def test_the_clocks_of_the_system_know_themselves(clock):
    assert 0 < clock.resolution_s <= 0.02
    assert reading_overhead(clock) >= clock.resolution_s


# ---------------------------------------------------------------- with cold caches


def test_cold_calls_are_timed_one_by_one_without_what_empties_the_caches():
    hand, log = Hand(), []

    def work():
        hand.now += 500
        log.append("call")

    def flush():
        hand.now += 1_000_000
        log.append("flush")

    cold = ColdClock(clock_with(hand), flush)
    assert cold.time(work, 3) == pytest.approx(1500e-9)
    assert log == ["flush", "call"] * 3


def test_a_cold_clock_is_the_same_clock_otherwise():
    cold = ColdClock(WALL, lambda: None)
    assert (cold.name, cold.resolution_s) == (WALL.name, WALL.resolution_s)
    assert cold.is_disturbed_by_host


def test_reading_a_cold_clock_needs_no_cold_caches():
    flushed = []
    assert reading_overhead(ColdClock(WALL, lambda: flushed.append(1))) > 0
    assert flushed == []
