import gc
import threading
from dataclasses import dataclass, field

import pytest

from tinytorch.errors import SettingError
from tinytorch.measure import timing
from tinytorch.measure.timing import calibrate_loops, gc_paused, measure_time, warm_up


@dataclass
class ScriptedClock:
    """A clock that shows a given time for each call, after those of a script, and calls nothing."""

    seconds: float = 1e-3
    script: list[float] = field(default_factory=list)
    overhead_s: float = 1e-7
    name: str = "scripted"
    resolution_s: float = 1e-9
    is_disturbed_by_host: bool = False
    loops: list[int] = field(default_factory=list)

    def time(self, function, loops):
        if function.__name__ == "_nothing":
            return self.overhead_s
        function()
        self.loops.append(loops)
        return self.script.pop(0) if self.script else self.seconds * loops


def nothing():
    pass


def test_explicit_runs_give_exactly_so_many_values_of_one_call():
    calls = []
    samples = measure_time(lambda: calls.append(1), name="append", runs=7, warmup=3)
    assert (samples.name, samples.count, samples.loops, samples.unit) == ("append", 7, 1, "s")
    assert len(calls) == 10


def test_values_are_seconds_per_call():
    samples = measure_time(nothing, runs=4, warmup=0, inner_loops=5, clock=ScriptedClock(2e-3))
    assert samples.values == pytest.approx((2e-3,) * 4)
    assert samples.loops == 5


def test_without_runs_the_budget_decides():
    samples = measure_time(nothing, budget_s=0.02, min_runs=3, max_runs=10_000)
    assert 3 <= samples.count <= 10_000
    few = measure_time(nothing, budget_s=1e-9, min_runs=3)
    many = measure_time(nothing, budget_s=60, max_runs=6)
    assert (few.count, many.count) == (3, 6)


def test_fast_functions_get_enough_loops_to_hide_the_clock():
    clock = ScriptedClock(seconds=1e-6, overhead_s=1e-7)
    samples = measure_time(nothing, clock=clock, budget_s=0.01, max_runs=5)
    assert clock.overhead_s <= 0.001 * samples.loops * clock.seconds
    assert samples.loops < 1000  # and not absurdly many


def test_slow_functions_get_one_loop():
    assert calibrate_loops(nothing, ScriptedClock(seconds=1e-2)) == 1


def test_one_disturbed_reading_does_not_end_the_calibration():
    # Both readings look long enough, but they differ: one of them met a disturbance.
    clock = ScriptedClock(seconds=1e-6, overhead_s=1e-7, script=[1e-2, 2e-4])
    assert calibrate_loops(nothing, clock) >= 100


def test_a_very_slow_function_is_not_called_twice_to_calibrate():
    clock = ScriptedClock(seconds=10.0)
    assert calibrate_loops(nothing, clock) == 1
    assert len(clock.loops) == 1


def test_a_clock_that_stands_still_ends_the_calibration():
    assert calibrate_loops(nothing, ScriptedClock(seconds=0.0)) > 1


def test_warm_up_ends_when_two_readings_agree():
    clock = ScriptedClock(script=[5.0, 2.0, 1.0, 1.01, 9.0])
    assert warm_up(nothing, clock, budget_s=60) == 4


def test_warm_up_gives_up_on_what_never_settles():
    clock = ScriptedClock(script=[float(2 ** (n % 2)) for n in range(500)])
    assert warm_up(nothing, clock, budget_s=60) == timing.WARMUP_MOST


def test_warm_up_of_a_slow_function_is_one_call():
    assert warm_up(nothing, ScriptedClock(), budget_s=1e-12) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runs": 0}, "runs=0"),
        ({"runs": -3}, "runs=-3"),
        ({"warmup": -1}, "warmup=-1"),
        ({"inner_loops": 0}, "inner_loops=0"),
        ({"min_runs": 0}, "min_runs=0"),
        ({"min_runs": 9, "max_runs": 8}, "max_runs=8 is less than min_runs=9"),
        ({"budget_s": 0}, "budget_s=0"),
        ({"budget_s": float("nan")}, "budget_s=nan"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, message):
    with pytest.raises(SettingError, match=message):
        measure_time(nothing, **settings)


def test_the_collector_is_off_while_measuring_and_back_afterwards():
    seen = []
    measure_time(lambda: seen.append(gc.isenabled()), runs=3)
    assert not any(seen)
    assert gc.isenabled()


def test_the_collector_comes_back_when_the_function_fails():
    with pytest.raises(ZeroDivisionError):
        measure_time(lambda: 1 / 0, runs=1)
    assert gc.isenabled()


def test_pauses_nest():
    with gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_pauses_in_two_threads_end_with_the_last():
    inside, leave = threading.Event(), threading.Event()

    def pause():
        with gc_paused():
            inside.set()
            leave.wait(10)

    with gc_paused():
        thread = threading.Thread(target=pause)
        thread.start()
        assert inside.wait(10)
    still_off = not gc.isenabled()
    leave.set()
    thread.join()
    assert still_off
    assert gc.isenabled()


def test_unstable_values_carry_a_note():
    clock = ScriptedClock(script=[1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
    samples = measure_time(nothing, runs=6, warmup=0, clock=clock)
    assert any("unstable" in note for note in samples.notes)


@pytest.mark.parametrize("is_disturbed", [True, False])
def test_the_clock_says_whether_disturbances_of_the_host_matter(monkeypatch, is_disturbed):
    monkeypatch.setattr(timing, "observe", Doubtful)
    clock = ScriptedClock(is_disturbed_by_host=is_disturbed)
    samples = measure_time(nothing, runs=6, warmup=0, clock=clock)
    assert samples.notes == (("others used the machine",) if is_disturbed else ())


class Doubtful:
    """Counters that always see a disturbance."""

    def doubts_since(self, earlier):
        return ("others used the machine",)
