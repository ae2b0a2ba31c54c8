import gc
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_sides import ScriptedSide, ToldTime, use_told_time

from tinytorch.errors import MeasurementError
from tinytorch.measure import interleaving as rounds
from tinytorch.measure.interleaving import (
    LONG_CALL_S,
    LOPSIDED,
    TURN_S,
    Pace,
    Reading,
    Round,
    find_pace,
    refine_pace,
    take_round,
)

SECONDS = st.floats(1e-7, 10.0)


def two_sides(first_s=1e-6, second_s=2e-6, **settings):
    clock = ToldTime()
    return (
        ScriptedSide("baseline", lambda: first_s, clock=clock, **settings),
        ScriptedSide("candidate", lambda: second_s, clock=clock, **settings),
    )


def pace(loops=10, pairs=8, calls_before=0):
    return Pace((loops, loops), pairs, calls_before, round_s=0.02, call_s=(1e-6, 2e-6))


def timed_turns(sides, monkeypatch=None, *, seed=0, pairs=40, **settings):
    """Give who was timed, turn by turn, after both have settled."""
    order = []
    for side in sides:
        original = side.time

        def time(loops, *, before=0, _side=side, _original=original):
            order.append((_side.name, loops, before))
            return _original(loops, before=before)

        side.time = time
    take_round(*sides, pace=pace(pairs=pairs, **settings), rng=np.random.default_rng(seed))
    return order[-2 * pairs :]


# ---------------------------------------------------------------- a round


def test_values_are_seconds_per_call_of_their_own_side():
    found = take_round(*two_sides(3e-6, 5e-6), pace=pace(), rng=np.random.default_rng(0))
    assert found.baseline == (3e-6,) * 8
    assert found.candidate == (5e-6,) * 8
    assert (found.displaced, found.turns) == (0, 16)


@pytest.mark.parametrize("seed", range(5))
def test_pairs_are_neighbours_and_their_order_turns_round(seed):
    turns = [name for name, _, _ in timed_turns(two_sides(), seed=seed)]
    pairs = np.reshape([name == "baseline" for name in turns], (-1, 2))
    assert (pairs.sum(axis=1) == 1).all()
    # A B B A or B A A B: who begins one pair does not begin the next.
    begins = pairs[:, 0].reshape(-1, 2)
    assert (begins.sum(axis=1) == 1).all()
    assert 0 < begins[:, 0].sum() < len(begins)


def test_a_steady_drift_meets_both_sides_alike():
    clock = ToldTime()
    sides = [
        ScriptedSide(name, lambda: 1e-6 * (1 + clock.now), clock=clock)
        for name in ("baseline", "candidate")
    ]
    found = take_round(*sides, pace=pace(loops=1000, pairs=20), rng=np.random.default_rng(0))
    assert found.candidate[-1] > 1.01 * found.candidate[0]
    # Within A B B A the drift cancels in the mean; in the ratio up to its square.
    assert np.mean(found.candidate) / np.mean(found.baseline) == pytest.approx(1, abs=1e-4)


def test_both_sides_make_the_same_number_of_calls():
    turns = timed_turns(two_sides(), loops=7, calls_before=1)
    assert {(loops, before) for _, loops, before in turns} == {(7, 1)}


def test_both_give_back_their_memory_before_either_builds():
    sides = two_sides()
    log = []
    for side in sides:
        side.release = lambda name=side.name: log.append(("release", name))
        side.build = lambda name=side.name: log.append(("build", name))
    take_round(*sides, pace=pace(), rng=np.random.default_rng(0))
    assert [what for what, _ in log] == ["release", "release", "build", "build"]


def test_who_builds_first_is_up_to_chance():
    def first_builder(seed):
        sides, log = two_sides(), []
        for side in sides:
            side.on_build = lambda name=side.name: log.append(name)
        take_round(*sides, pace=pace(), rng=np.random.default_rng(seed))
        return log[0]

    assert {first_builder(seed) for seed in range(30)} == {"baseline", "candidate"}


def test_what_cannot_be_built_anew_is_not_built():
    sides = two_sides(can_rebuild=False)
    take_round(*sides, pace=pace(), rng=np.random.default_rng(0))
    assert not any(event == ("build",) for side in sides for event in side.events)


def test_what_was_just_built_is_called_before_it_counts():
    side, other = two_sides()
    take_round(side, other, pace=pace(), rng=np.random.default_rng(0))
    after_build = side.events[side.events.index(("build",)) + 1 :]
    assert len([event for event in after_build if event[0] == "time"]) == 8 + 1


def test_time_that_others_had_the_core_is_taken_off():
    clock = ToldTime()
    disturbed = ScriptedSide("candidate", lambda: 1e-6, clock=clock, lost_s=lambda s: 5 * s)
    quiet = ScriptedSide("baseline", lambda: 1e-6, clock=clock)
    found = take_round(quiet, disturbed, pace=pace(), rng=np.random.default_rng(0))
    assert found.candidate == pytest.approx(found.baseline)
    assert found.displaced == 8


@pytest.mark.parametrize(
    "reading", [Reading(0.0), Reading(-1e-3), Reading(math.nan), Reading(math.inf), Reading(1, 1)]
)
def test_a_clock_that_cannot_be_right_gives_no_verdict(reading):
    first, second = two_sides()
    second.time = lambda loops, *, before=0: reading
    with pytest.raises(MeasurementError, match=r"calls of candidate.*set back or is too coarse"):
        take_round(first, second, pace=pace(), rng=np.random.default_rng(0))


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20))
def test_the_ratio_of_a_round_is_the_median_of_neighbours(pairs):
    baseline, candidate = zip(*pairs, strict=True)
    found = Round(baseline, candidate)
    ratios = sorted(math.log(second / first) for first, second in pairs)
    middle = (ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2
    assert found.log_ratio == pytest.approx(middle, abs=1e-12)
    means = math.fsum(candidate) / math.fsum(baseline)
    assert found.log_mean_ratio == pytest.approx(math.log(means), abs=1e-9)
    swapped = Round(candidate, baseline)
    assert swapped.log_ratio == pytest.approx(-found.log_ratio, abs=1e-12)


def test_seconds_are_kept_with_as_many_digits_as_clocks_have():
    sides = two_sides(1 / 3 * 1e-6, 2 / 3 * 1e-6)
    found = take_round(*sides, pace=pace(loops=3), rng=np.random.default_rng(0))
    assert found.baseline[0] == 3.333333e-07
    assert found.candidate[0] == 6.666667e-07


def test_a_heap_of_garbage_is_collected_between_rounds_only(monkeypatch):
    collected = []
    monkeypatch.setattr(rounds.gc, "collect", lambda: collected.append(True))
    monkeypatch.setattr(rounds.gc, "get_count", lambda: (rounds.GARBAGE_ALLOWED + 1, 0, 0))
    take_round(*two_sides(), pace=pace(), rng=np.random.default_rng(0))
    assert collected == [True]
    monkeypatch.setattr(rounds.gc, "get_count", lambda: (10, 0, 0))
    take_round(*two_sides(), pace=pace(), rng=np.random.default_rng(0))
    assert collected == [True]
    assert gc.isenabled()


# ---------------------------------------------------------------- the pace


def found_pace(monkeypatch, *sides, budget_s=2.0):
    use_told_time(monkeypatch, sides[0].clock)
    return find_pace(*sides, budget_s=budget_s)


@pytest.mark.parametrize("call_s", [1e-8, 1e-6, 3e-5])
def test_a_turn_is_long_enough_for_the_faster_side(call_s, monkeypatch):
    found = found_pace(monkeypatch, *two_sides(call_s, 2 * call_s))
    # Twice: a last step may be rounded up.
    assert found.loops[0] == found.loops[1]
    assert TURN_S <= found.loops[0] * call_s < 2 * TURN_S + call_s


def test_a_turn_hides_the_clock_of_either_side(monkeypatch):
    clock = ToldTime()
    coarse = ScriptedSide("a", lambda: 1e-5, clock=clock, least_turn_s=0.01)
    fine = ScriptedSide("b", lambda: 1e-5, clock=clock)
    assert found_pace(monkeypatch, fine, coarse).loops[0] * 1e-5 >= 0.01


def test_a_slow_function_is_called_once_in_a_turn(monkeypatch):
    found = found_pace(monkeypatch, *two_sides(0.3, 0.4))
    assert (found.loops, found.pairs, found.calls_before) == ((1, 1), 1, 0)


def test_a_far_slower_side_makes_fewer_calls_in_a_turn(monkeypatch):
    found = found_pace(monkeypatch, *two_sides(1e-6, 2 * LOPSIDED * 1e-6))
    assert found.loops[0] > found.loops[1]
    lopsided = found_pace(monkeypatch, *two_sides(1e-6, 5e-3))
    assert lopsided.loops[0] * 1e-6 >= TURN_S
    assert lopsided.loops[1] == 1


class EmptiesCaches(ScriptedSide):
    """A side whose first call after the other one ran takes longer."""

    warms_itself = False

    def __init__(self, *arguments, last, cold=1.0, **settings):
        super().__init__(*arguments, **settings)
        self.last, self.cold, self.warm_s = last, cold, self.call_s
        self.call_s = self.after_the_other

    def after_the_other(self):
        factor = self.cold if self.last[0] is not self else 1.0
        self.last[0] = self
        return factor * self.warm_s()


@pytest.mark.parametrize(("cold", "calls_before"), [(1.0, 0), (1.01, 0), (1.05, 1), (3.0, 1)])
def test_a_call_before_each_turn_fills_caches_that_matter(monkeypatch, cold, calls_before):
    clock, last = ToldTime(), [None]
    sides = [
        EmptiesCaches(name, lambda: 2 * TURN_S, clock=clock, last=last, cold=factor)
        for name, factor in (("a", 1.0), ("b", cold))
    ]
    assert found_pace(monkeypatch, *sides).calls_before == calls_before


def test_many_calls_in_a_turn_need_none_before(monkeypatch):
    clock, last = ToldTime(), [None]
    sides = [
        EmptiesCaches(name, lambda: TURN_S / 100, clock=clock, last=last, cold=2.0) for name in "ab"
    ]
    assert found_pace(monkeypatch, *sides).calls_before == 0


def test_long_calls_are_not_made_twice(monkeypatch):
    clock, last = ToldTime(), [None]
    sides = [
        EmptiesCaches(name, lambda: 2 * LONG_CALL_S, clock=clock, last=last, cold=2.0)
        for name in "ab"
    ]
    assert found_pace(monkeypatch, *sides).calls_before == 0


def test_seconds_per_call_are_those_of_each_side(monkeypatch):
    found = found_pace(monkeypatch, *two_sides(2e-6, 7e-6))
    assert found.call_s == pytest.approx((2e-6, 7e-6))


def test_one_disturbed_reading_is_not_believed(monkeypatch):
    clock = ToldTime()
    calls = []

    def call_s():
        calls.append(1)
        return 1e-3 if len(calls) == 2 else 1e-6  # the first reading, after one call

    sides = ScriptedSide("a", call_s, clock=clock), ScriptedSide("b", lambda: 1e-6, clock=clock)
    assert found_pace(monkeypatch, *sides).call_s[0] == pytest.approx(1e-6, rel=0.05)


def test_what_is_known_to_be_slow_is_not_called_to_find_the_pace(monkeypatch):
    sides = two_sides(0.8, 0.9, can_rebuild=False)
    for side, seconds in zip(sides, (0.8, 0.9), strict=True):
        side.slow_call_s = seconds
    found = found_pace(monkeypatch, *sides, budget_s=2.0)
    assert (found.loops, found.pairs, found.call_s) == ((1, 1), 1, (0.8, 0.9))
    assert not any(event[0] == "time" for side in sides for event in side.events)


def test_a_reading_that_takes_much_of_the_budget_is_believed(monkeypatch):
    sides = two_sides(0.2, 0.2)
    found_pace(monkeypatch, *sides, budget_s=2.0)
    calls = [sum(event[0] == "time" for event in side.events) for side in sides]
    assert calls == [2, 2]  # one to warm up


@pytest.mark.parametrize(
    ("warms_itself", "can_rebuild", "calls"),
    [(True, True, 1), (False, True, 2), (True, False, 1), (False, False, 1)],
)
def test_long_calls_are_repeated_only_where_memory_is_new(warms_itself, can_rebuild, calls):
    sides = two_sides(0.8, 0.8)
    sides[1].warms_itself, sides[1].can_rebuild = warms_itself, can_rebuild
    slow = Pace((1, 1), 1, 0, round_s=1.6, call_s=(0.8, 0.8))
    take_round(*sides, pace=slow, rng=np.random.default_rng(0))
    assert sum(event[0] == "time" for event in sides[1].events) == calls


def test_measuring_takes_at_least_as_long_as_building(monkeypatch):
    clock = ToldTime()
    sides = [ScriptedSide(name, lambda: 1e-6, clock=clock, build_s=0.03) for name in ("a", "b")]
    found = found_pace(monkeypatch, *sides, budget_s=10.0)
    measuring = found.pairs * sum(found.loops) * 1e-6
    assert measuring == pytest.approx(0.06, rel=0.1)
    assert found.round_s > 0.06 + measuring


def test_finished_functions_need_shorter_rounds(monkeypatch):
    built = found_pace(monkeypatch, *two_sides())
    finished = found_pace(monkeypatch, *two_sides(can_rebuild=False))
    assert finished.pairs < built.pairs
    assert finished.round_s < built.round_s


def rounds_with(rng, *, noise, layout, pairs=20, count=8):
    """Give rounds whose pairs spread by `noise` around ratios that spread by `layout`."""
    found = []
    for _ in range(count):
        ratios = np.exp(rng.normal(rng.normal(0, layout), noise, pairs))
        found.append(Round((1e-4,) * pairs, tuple(1e-4 * ratios)))
    return found


PACE = Pace((1, 1), 20, 0, round_s=0.0, call_s=(1e-4, 1e-4), fixed_s=2e-3).with_pairs(20)


def test_where_layout_matters_more_than_noise_rounds_get_shorter(rng):
    refined = refine_pace(PACE, rounds_with(rng, noise=0.01, layout=0.03), budget_s=2.0)
    assert 2 <= refined.pairs < PACE.pairs
    assert refined.round_s == pytest.approx(2e-3 + refined.pairs * 2e-4)


def test_where_noise_matters_more_than_layout_rounds_get_longer(rng):
    refined = refine_pace(PACE, rounds_with(rng, noise=0.3, layout=0.001), budget_s=2.0)
    assert refined.pairs > PACE.pairs
    assert refined.round_s <= 2.0 / 40 + 2e-4


def test_the_chosen_number_of_pairs_is_the_best_for_the_time(rng):
    noise, layout = 0.05, 0.01
    found = [
        refine_pace(PACE, rounds_with(rng, noise=noise, layout=layout, count=400), budget_s=2.0)
        for _ in range(5)
    ]
    pairs = np.arange(1, 200)
    # What one round tells, times what it takes: the smaller, the sharper for the time.
    costs = (layout**2 + np.pi / 2 * noise**2 / pairs) * (PACE.fixed_s + pairs * PACE.pair_s)
    for each in found:
        assert costs[each.pairs - 1] < 1.05 * costs.min()


def test_rounds_that_all_agree_and_finished_functions_keep_their_pace(rng):
    same = [Round((1e-4,) * 4, (1e-4,) * 4)] * 8
    assert refine_pace(PACE, same, budget_s=2.0) == PACE
    finished = replace(PACE, fixed_s=0.0)
    assert refine_pace(finished, rounds_with(rng, noise=0.3, layout=0.0), budget_s=2.0) == finished


def test_a_clock_that_was_set_back_once_does_not_stop_calibration(monkeypatch):
    first, second = two_sides()
    honest, readings = first.time, []

    def time(loops, *, before=0):
        readings.append(loops)
        return Reading(-5.0) if len(readings) == 2 else honest(loops, before=before)

    first.time = time
    found = found_pace(monkeypatch, first, second)
    assert found.call_s[0] == pytest.approx(1e-6)
    assert all(later <= 10 * earlier for earlier, later in pairwise(readings))


# ---------------------------------------------------------------- cold caches


def cold_sides(untimed_s=0.004, **settings):
    sides = two_sides(1e-5, 2e-5, **settings)
    for side in sides:
        side.untimed_call_s, side.warms_itself = untimed_s, False
    return sides


def test_with_cold_caches_a_turn_is_one_call(monkeypatch):
    found = found_pace(monkeypatch, *cold_sides())
    assert (found.loops, found.calls_before) == ((1, 1), 0)


def test_emptying_caches_is_part_of_what_a_round_takes(monkeypatch):
    found = found_pace(monkeypatch, *cold_sides())
    assert found.untimed_s == pytest.approx(0.008)
    assert found.pair_s == pytest.approx(0.008 + 3e-5)
    assert found.round_s >= found.pairs * 0.008


def test_what_was_built_is_not_called_often_with_cold_caches(monkeypatch):
    sides = cold_sides()
    found = found_pace(monkeypatch, *sides)
    for side in sides:
        side.events.clear()
    take_round(*sides, pace=found, rng=np.random.default_rng(0))
    settling = next(event for event in sides[0].events if event[0] == "time")
    assert settling[1] <= 5
