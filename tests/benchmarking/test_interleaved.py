import gc

import numpy as np
import pytest

from tinytorch.benchmarking.performance import FEWEST_ROUNDS, time_in_turns


class Tape:
    """A clock without time: every call takes what its name says, and is written down."""

    name, resolution_s, is_disturbed_by_host = "tape", 1e-9, False

    def __init__(self):
        self.now, self.heard = 0.0, []

    def time(self, function, loops):
        before = self.now
        start = len(self.heard)
        for _ in range(loops):
            function()
        self.heard[start:] = [(f"timed {self.heard[start]}", loops)] if self.heard[start:] else []
        return self.now - before

    def function(self, name, seconds):
        def call():
            self.now += seconds
            self.heard.append(name)

        return call


@pytest.fixture
def tape():
    return Tape()


def test_every_round_calls_every_function_in_random_order(tape):
    functions = {name: tape.function(name, 1.0) for name in "abc"}
    rng = np.random.default_rng(5)
    times = time_in_turns(functions, rounds=40, warmup=0, clock=tape, rng=rng)
    turns = [heard[0] for heard in tape.heard if isinstance(heard, tuple)]
    rounds = [tuple(turns[start : start + 3]) for start in range(0, len(turns), 3)]
    assert len(rounds) == 40
    assert all(sorted(each) == ["timed a", "timed b", "timed c"] for each in rounds)
    assert len(set(rounds)) == 6, "all orders occur"
    assert all(samples.values == (1.0,) * 40 for samples in times.samples.values())


def test_a_turn_among_others_begins_with_a_call_that_is_not_timed(tape):
    functions = {"a": tape.function("a", 1.0), "b": tape.function("b", 2.0)}
    time_in_turns(functions, rounds=1, warmup=0, clock=tape)
    assert sorted(map(str, tape.heard)) == sorted(
        map(str, ["a", ("timed a", 1), "b", ("timed b", 1)])
    )
    alone = Tape()
    time_in_turns({"a": alone.function("a", 1.0)}, rounds=2, warmup=0, clock=alone)
    assert alone.heard == [("timed a", 1)] * 2


def test_warm_up_calls_are_not_values(tape):
    times = time_in_turns({"a": tape.function("a", 1.0)}, rounds=2, warmup=3, clock=tape)
    assert tape.heard == ["a"] * 3 + [("timed a", 1)] * 2
    assert times.samples["a"].count == 2


def test_a_budget_makes_long_turns_and_enough_of_them(tape):
    functions = {"fast": tape.function("fast", 1e-5), "slow": tape.function("slow", 5e-4)}
    samples = time_in_turns(functions, budget_s=0.5, clock=tape).samples
    assert samples["fast"].loops * 1e-5 >= 0.9e-3
    assert samples["slow"].loops * 5e-4 >= 0.9e-3
    assert samples["fast"].count == samples["slow"].count > 100
    assert samples["slow"].median / samples["fast"].median == pytest.approx(50, rel=1e-6)


def test_a_small_budget_still_gives_an_interval(tape):
    samples = time_in_turns({"a": tape.function("a", 10.0)}, budget_s=0.1, clock=tape).samples["a"]
    assert samples.count == FEWEST_ROUNDS
    assert samples.median_interval().coverage > 0.95


def test_who_raises_leaves_and_the_others_go_on(tape):
    calls = iter(range(100))

    def tires():
        if next(calls) > 6:
            raise RuntimeError("enough")

    functions = {"good": tape.function("good", 1.0), "tires": tires, "bad": lambda: 1 / 0}
    times = time_in_turns(functions, rounds=9, warmup=1, clock=tape)
    assert set(times.samples) == {"good"}
    assert times.samples["good"].count == 9
    assert times.failures == {
        "bad": "ZeroDivisionError: division by zero",
        "tires": "RuntimeError: enough",
    }


def test_values_that_do_not_stay_carry_a_note(tape):
    def slower():
        tape.now += 1.0 + len(tape.heard)
        tape.heard.append("slower")

    assert "unstable" in time_in_turns({"a": slower}, rounds=20, clock=tape).samples["a"].notes[0]


def test_nothing_to_time_is_no_time():
    assert time_in_turns({}).samples == {}


def test_garbage_is_collected_again_afterwards():
    seen = []
    time_in_turns({"a": lambda: seen.append(gc.isenabled())}, rounds=3, warmup=1)
    assert (seen, gc.isenabled()) == ([False] * 4, True)
