import gc
import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from tinytorch.comparison.evidence import (
    OF_ROUNDS,
    calls_of_rounds,
    least_tails_s,
    measure_tails,
)
from tinytorch.errors import SettingError
from tinytorch.measure.interleaving import Round


@dataclass
class TellingClock:
    """A clock that shows what a function says it took, and remembers who was called."""

    name: str = "telling"
    resolution_s: float = 1e-9
    is_disturbed_by_host: bool = False
    order: list = field(default_factory=list)

    def time(self, function, loops):
        told = [function() for _ in range(loops)]
        self.order.append((function, loops))
        return sum(each or 1e-9 for each in told)


def test_every_value_is_one_call_of_its_own_function():
    clock = TellingClock()
    one, other = measure_tails(lambda: 1.0, lambda: 2.0, clock=clock, calls=40, budget_s=60)
    assert one.values == (1.0,) * 40
    assert other.values == (2.0,) * 40
    assert (one.loops, one.name, other.name) == (1, "baseline", "candidate")
    assert all(loops == 1 for _, loops in clock.order)


def taken_order(seed):
    clock, first, second = TellingClock(), lambda: 1.0, lambda: 2.0
    measure_tails(first, second, clock=clock, calls=100, budget_s=60, rng=seed)
    warmed = 4  # two agreeing readings of each
    order = [function is second for function, _ in clock.order[warmed : warmed + 200]]
    return np.reshape(order, (100, 2))


def test_calls_are_in_pairs_of_random_order():
    order = taken_order(0)
    assert (order.sum(axis=1) == 1).all()
    # Of 100 fair coins less than 25 or more than 75 come up in one of a million runs.
    assert 25 < order[:, 0].sum() < 75


def test_the_same_seed_gives_the_same_order():
    assert taken_order(1).tolist() == taken_order(1).tolist()
    assert taken_order(1).tolist() != taken_order(2).tolist()


def test_without_a_number_of_calls_they_are_enough_for_the_slowest_percent():
    samples, _ = measure_tails(lambda: 1.0, lambda: 1.0, clock=TellingClock(), budget_s=60)
    assert samples.count == 368
    assert math.isfinite(samples.percentile_interval(99).high)
    assert samples.notes == ()


def test_too_few_calls_are_named_and_have_an_open_end():
    one, _ = measure_tails(lambda: 1.0, lambda: 1.0, clock=TellingClock(), calls=40, budget_s=60)
    assert one.percentile_interval(90).high == 1.0
    assert one.percentile_interval(99).high == math.inf
    assert "p99 (368)" in one.notes[0]
    assert "p90" not in one.notes[0]


def test_a_used_up_budget_ends_it_with_a_few_values():
    one, other = measure_tails(lambda: 1.0, lambda: 1.0, clock=TellingClock(), budget_s=1e-9)
    assert one.count == other.count == 5


def test_calls_that_are_too_short_for_the_clock_are_named():
    one, other = measure_tails(lambda: 5e-8, lambda: 1.0, clock=TellingClock(), budget_s=60)
    assert any("clock overhead" in note for note in one.notes)
    assert not any("reading the clock" in note for note in other.notes)


def test_garbage_is_not_collected_in_between_and_again_afterwards():
    seen = []
    measure_tails(lambda: seen.append(gc.isenabled()), lambda: 1.0, calls=3, budget_s=60)
    assert not any(seen)
    assert gc.isenabled()


def test_a_function_that_raises_is_not_measured():
    with pytest.raises(ZeroDivisionError):
        measure_tails(lambda: 1 / 0, lambda: 1.0)
    assert gc.isenabled()


def test_the_real_clock_works():
    one, other = measure_tails(lambda: sum(range(1000)), lambda: None, calls=10, budget_s=60)
    assert (one.count, other.count) == (10, 10)
    assert one.minimum > 0


@pytest.mark.parametrize("settings", [{"calls": 0}, {"budget_s": 0.0}, {"budget_s": math.nan}])
def test_settings_that_measure_nothing_are_refused(settings):
    with pytest.raises(SettingError, match="it must be"):
        measure_tails(lambda: 1.0, lambda: 1.0, **settings)


# ---------------------------------------------------------------- calls that rounds have made


def test_calls_of_rounds_are_those_of_all_turns_of_each_side():
    rounds = [Round((1.0, 2.0), (3.0, 4.0)), Round((5.0,), (6.0,))]
    one, other = calls_of_rounds(rounds, names=("old", "new"))
    assert (one.name, one.values) == ("old", (1.0, 2.0, 5.0))
    assert (other.name, other.values) == ("new", (3.0, 4.0, 6.0))
    assert one.notes[0] == OF_ROUNDS
    assert "n=3" in one.notes[1]


def test_the_least_time_is_that_of_the_fewest_calls():
    clock = TellingClock()
    made = []

    def call():
        made.append(0.5)
        return 0.5

    measure_tails(call, call, clock=clock, budget_s=1e-9)
    assert sum(made) == least_tails_s((0.5, 0.5))
