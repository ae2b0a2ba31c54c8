import os
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from tinytorch.measure import interleaving as displacement
from tinytorch.measure.interleaving import DISPLACED_SHARE, Stopwatch
from tinytorch.measure.timing import WALL

counts_waits = pytest.mark.skipif(
    displacement._usage is None, reason="this system does not count how often a thread waits"
)


@dataclass
class System:
    """What the counters of a system show while a turn runs."""

    computing_ns: int = 0
    of_all_ns: int = 0
    waits: int = 0


@dataclass
class TellingClock:
    """A clock that shows what it is told; meanwhile the system counts something."""

    system: System
    seconds: float = 1e-3
    computing_s: float = 1e-3
    by_others_s: float = 0.0
    waits: int = 0
    is_disturbed_by_host: bool = True
    name: str = "telling"
    resolution_s: float = 1e-9
    calls: list = field(default_factory=list)

    def time(self, function, loops):
        for _ in range(loops):
            self.calls.append(function())
        self.system.computing_ns += round(self.computing_s * 1e9)
        self.system.of_all_ns += round((self.computing_s + self.by_others_s) * 1e9)
        self.system.waits += self.waits
        return self.seconds


@pytest.fixture
def reading(monkeypatch):
    """Time a turn on a system with told counters, on which a reading costs nothing."""
    system = System()
    monkeypatch.setattr(displacement, "thread_time_ns", lambda: system.computing_ns)
    monkeypatch.setattr(displacement, "process_time_ns", lambda: system.of_all_ns)
    monkeypatch.setattr(displacement, "_waits", lambda: system.waits)
    monkeypatch.setattr(displacement, "_are_waits_counted", lambda: True)
    monkeypatch.setattr(Stopwatch, "_reading_cost", lambda self: 0.0)

    def take(**settings):
        clock = TellingClock(system, **settings)
        return Stopwatch(clock).time(lambda: None, 3)

    return take


def test_time_without_the_processor_and_without_waiting_was_lost(reading):
    assert reading(seconds=1e-3, computing_s=4e-4).lost_s == pytest.approx(6e-4)
    assert reading(seconds=1e-3, computing_s=4e-4).seconds == 1e-3


def test_who_waits_by_its_own_will_loses_nothing(reading):
    assert reading(seconds=1e-3, computing_s=4e-4, waits=1).lost_s == 0


def test_who_may_have_waited_for_its_own_threads_loses_nothing(reading):
    assert reading(seconds=1e-3, computing_s=4e-4, by_others_s=5e-4).lost_s == 0
    assert reading(seconds=1e-3, computing_s=4e-4, by_others_s=1e-6).lost_s > 0


def test_what_is_within_the_accuracy_of_the_counters_is_nothing(reading):
    assert reading(seconds=1e-3, computing_s=1e-3 * (1 - DISPLACED_SHARE / 2)).lost_s == 0
    assert reading(seconds=1e-3, computing_s=1e-3 * (1 + DISPLACED_SHARE)).lost_s == 0


def test_a_device_is_not_displaced(reading):
    assert reading(computing_s=1e-5, is_disturbed_by_host=False).lost_s == 0


def test_where_nobody_counts_the_time_is_its_own(reading, monkeypatch):
    monkeypatch.setattr(displacement, "_are_waits_counted", lambda: False)
    assert reading(computing_s=1e-5).lost_s == 0


@pytest.mark.parametrize("counted", [False, None])
def test_counters_that_never_move_are_not_believed(monkeypatch, counted):
    monkeypatch.setattr(displacement, "_waits", lambda: None if counted is None else 7)
    assert displacement._are_waits_counted.__wrapped__() is False


def test_a_processor_clock_that_stands_still_is_not_believed(monkeypatch):
    waits = iter(range(100))
    monkeypatch.setattr(displacement, "_waits", lambda: next(waits))
    monkeypatch.setattr(displacement, "thread_time_ns", lambda: 0)
    assert displacement._are_waits_counted.__wrapped__() is False


def test_every_call_is_made():
    calls = []
    assert Stopwatch(WALL).time(lambda: calls.append(1), 17).seconds > 0
    assert len(calls) == 17


def test_a_clock_that_was_set_back_is_passed_on(reading):
    assert reading(seconds=-1.0, computing_s=1e-3).seconds == -1.0
    assert reading(seconds=-1.0, computing_s=1e-3).lost_s == 0


@counts_waits
def test_sleeping_is_time_of_the_function():
    found = Stopwatch(WALL).time(lambda: time.sleep(0.002), 3)
    assert found.seconds >= 0.006
    assert found.lost_s == 0


@counts_waits
def test_waiting_for_a_lock_is_time_of_the_function():
    lock = threading.Lock()

    def wait():
        lock.acquire()
        threading.Timer(0.002, lock.release).start()
        with lock:
            pass

    found = Stopwatch(WALL).time(wait, 2)
    assert found.seconds >= 0.004
    assert found.lost_s == 0


@counts_waits
def test_never_more_is_lost_than_passed():
    watch = Stopwatch(WALL)
    readings = [watch.time(lambda: sum(range(2000)), 5) for _ in range(200)]
    assert all(0 <= each.lost_s < each.seconds for each in readings)


@counts_waits
def test_work_of_a_helper_thread_is_time_of_the_function():
    # On one core, a thread that spins for another one's result is not displaced by others.
    x = np.ones((300, 300))

    def wait_for_helper():
        done = []
        helper = threading.Thread(target=lambda: done.append([x @ x for _ in range(5)]))
        helper.start()
        while not done:
            os.sched_yield()
        helper.join()

    assert Stopwatch(WALL).time(wait_for_helper, 3).lost_s == 0
