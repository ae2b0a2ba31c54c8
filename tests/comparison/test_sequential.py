import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part
from scripted_sides import ScriptedSide, ToldTime, use_told_time

from tinytorch.comparison.sequential import (
    NARROWEST,
    Rule,
    estimate_ratio,
    time_until_known,
)
from tinytorch.errors import MeasurementError, SettingError
from tinytorch.measure import interleaving as rounds
from tinytorch.measure.estimate import INCONCLUSIVE, SAME, SLOWER, time_verdict
from tinytorch.measure.interleaving import FEWEST, FIRST

stats = require_part("scipy.stats")

FLOOR, BAND = 0.005, 0.01
CALL_S = 0.005


@pytest.fixture
def clock(monkeypatch):
    told = ToldTime()
    use_told_time(monkeypatch, told)
    return told


def simulated_sides(clock, rng, *, ratio=1.0, layout=0.015, noise=0.005, **settings):
    """Give two sides: where they lie in memory moves each, until it is built again; noise on top.

    These are made-up times to judge the statistics by; nothing here is a measurement.
    """

    def side(name, factor):
        place = [0.0]

        def build():
            place[0] = layout * rng.standard_normal()

        def call_s():
            return CALL_S * factor * math.exp(place[0] + noise * rng.standard_normal())

        return ScriptedSide(name, call_s, clock=clock, on_build=build, **settings)

    return side("baseline", 1.0), side("candidate", ratio)


def is_decided(ratio):
    return time_verdict(ratio, floor=FLOOR, band=BAND) != INCONCLUSIVE


def timed(sides, rng, *, is_known=is_decided, **settings):
    return time_until_known(*sides, Rule(**settings), is_known=is_known, rng=rng)


def ratio_of(found):
    return estimate_ratio([each.log_ratio for each in found.rounds], found.alpha)


# ---------------------------------------------------------------- what the whole procedure promises


def simulated(clock, rng, trials, **truth):
    found = [ratio_of(timed(simulated_sides(clock, rng, **truth), rng)) for _ in range(trials)]
    verdicts = [time_verdict(each, floor=FLOOR, band=BAND) for each in found]
    return found, verdicts


@pytest.mark.slow
@pytest.mark.parametrize("trials", [pytest.param(300), pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ratio", [1.0, 1.006, 1.02])
def test_intervals_hold_however_the_looks_went(clock, rng, ratio, trials):
    found, _ = simulated(clock, rng, trials, ratio=ratio)
    missed = sum(not each.low <= ratio <= each.high for each in found)
    # So many of them come up in one of a million runs where each misses with 5%.
    assert missed <= stats.binom.isf(1e-6, trials, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("trials", [pytest.param(300), pytest.param(4000, marks=pytest.mark.slow)])
def test_identical_sides_are_rarely_called_different(clock, rng, trials):
    _, verdicts = simulated(clock, rng, trials)
    alarms = sum(verdict not in (SAME, INCONCLUSIVE) for verdict in verdicts)
    assert alarms <= stats.binom.isf(1e-6, trials, 0.05)


@pytest.mark.parametrize("ratio", [0.9, 1.1])
def test_a_tenth_is_found_every_time_and_at_the_first_look(clock, rng, ratio):
    for _ in range(20):
        found = timed(simulated_sides(clock, rng, ratio=ratio, layout=0.005), rng)
        assert time_verdict(ratio_of(found), floor=FLOOR, band=BAND) == (
            SLOWER if ratio > 1 else "faster"
        )
        assert len(found.rounds) == FIRST


def test_sides_that_differ_by_less_than_the_floor_are_never_judged_at_length(clock, rng):
    sides = simulated_sides(clock, rng, ratio=1.003, layout=0.001, noise=0.001)
    found = timed(sides, rng, is_known=lambda ratio: False)
    assert time_verdict(ratio_of(found), floor=FLOOR, band=BAND) == SAME


# ---------------------------------------------------------------- when it stops


def test_it_stops_at_the_first_look_that_knows(clock, rng):
    seen = []

    def known_at_third(ratio):
        seen.append(ratio)
        return len(seen) == 3

    found = timed(simulated_sides(clock, rng), rng, is_known=known_at_third)
    assert len(seen) == 3
    assert seen[-1] == ratio_of(found)
    assert all(before.low <= each.value <= before.high for before, each in itertools.pairwise(seen))


def test_an_answer_that_never_comes_ends_with_the_budget(clock, rng):
    sides = simulated_sides(clock, rng)
    found = timed(sides, rng, is_known=lambda ratio: False, budget_s=3.0)
    # A round more or less.
    assert found.seconds_used == pytest.approx(3.0, abs=2 * found.pace.round_s)
    assert clock.now == pytest.approx(found.seconds_used)


@pytest.mark.parametrize("budget_s", [1e-6, 0.05])
def test_however_small_the_budget_there_are_enough_rounds_for_an_interval(clock, rng, budget_s):
    found = timed(simulated_sides(clock, rng, ratio=2.0), rng, budget_s=budget_s)
    assert len(found.rounds) == FEWEST
    ratio = ratio_of(found)
    assert 1.5 < ratio.low < 2 < ratio.high < 2.5


def test_rounds_that_take_longer_than_expected_still_give_an_interval(clock, rng):
    first, second = simulated_sides(clock, rng, ratio=2.0)
    builds = []

    def slower_and_slower():
        builds.append(1)
        first.build_s = 0.0 if len(builds) == 1 else 0.3

    first.on_build = slower_and_slower
    found = timed((first, second), rng, budget_s=2.0)
    assert FEWEST <= len(found.rounds) < FIRST
    ratio = ratio_of(found)
    assert 1.5 < ratio.low < ratio.high < 2.5


def test_slow_first_calls_do_not_cost_the_budget(clock, rng):
    first, second = simulated_sides(clock, rng, ratio=1.02)
    usual, calls = first.call_s, []

    def call_s():
        calls.append(1)
        return 0.3 if len(calls) < 4 else usual()

    first.call_s = call_s
    found = timed((first, second), rng, is_known=lambda ratio: False, budget_s=4.0)
    assert found.seconds_used > 2.0


@pytest.mark.parametrize("fast_s", [2e-8, 1e-6])
def test_a_lopsided_pair_does_not_take_many_times_the_budget(clock, rng, fast_s):
    sides = [
        ScriptedSide(name, lambda seconds=seconds: seconds, clock=clock)
        for name, seconds in (("baseline", fast_s), ("candidate", 5e-3))
    ]
    found = timed(sides, rng, budget_s=1.0)
    assert time_verdict(ratio_of(found), floor=FLOOR, band=BAND) == SLOWER
    assert found.seconds_used < 3.0


def test_nobody_asks_before_the_first_look(clock, rng):
    counts = []
    sides = simulated_sides(clock, rng)

    def count_rounds(ratio):
        counts.append(sum(event == ("build",) for event in sides[0].events) - 1)
        return False

    timed(sides, rng, is_known=count_rounds)
    assert counts[0] == FIRST
    assert counts == sorted(set(counts))


def test_the_same_seed_takes_turns_in_the_same_order(clock):
    def order(seed):
        sides = [ScriptedSide(name, lambda: CALL_S, clock=clock) for name in ("a", "b")]
        log = []
        for side in sides:
            side.on_build = lambda name=side.name: log.append(name)
        timed(sides, np.random.default_rng(seed), is_known=lambda ratio: False, budget_s=0.5)
        return log

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_every_round_is_built_anew(clock, rng):
    sides = simulated_sides(clock, rng)
    found = timed(sides, rng)
    builds = [sum(event == ("build",) for event in side.events) for side in sides]
    assert builds == [len(found.rounds) + 1] * 2  # one more to find the pace


def test_a_side_that_raises_in_the_middle_is_not_judged(clock, rng):
    first, second = simulated_sides(clock, rng)
    calls = []

    def call_s():
        calls.append(1)
        return -1.0 if len(calls) > 20 else CALL_S

    second.call_s = call_s
    with pytest.raises(MeasurementError, match="candidate"):
        timed((first, second), rng)


def test_a_watcher_is_told_how_far_it_is(clock, rng):
    told = []

    class Watcher:
        def describe(self, text):
            told.append(text)

        def advance(self, steps=1):
            told.append("step")

    sides = simulated_sides(clock, rng)
    found = time_until_known(*sides, Rule(), is_known=is_decided, rng=rng, progress=Watcher())
    assert told[-1] == f"candidate against baseline: round {len(found.rounds)}"


# ---------------------------------------------------------------- the estimate


@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=40), st.sampled_from([0.05, 0.005]))
def test_no_interval_is_narrower_than_a_tenth_of_a_percent(log_ratios, alpha):
    found = estimate_ratio(log_ratios, alpha)
    assert found.low < found.value < found.high
    assert math.log(found.high) - math.log(found.low or 1e-300) >= NARROWEST * (1 - 1e-9)


@given(st.lists(st.floats(-0.5, 0.5), min_size=6, max_size=40))
def test_swapped_sides_have_the_inverse_ratio(log_ratios):
    found = estimate_ratio(log_ratios, 0.05)
    swapped = estimate_ratio([-each for each in log_ratios], 0.05)
    assert swapped.value == pytest.approx(1 / found.value)
    assert (swapped.low, swapped.high) == pytest.approx((1 / found.high, 1 / found.low))


def test_too_few_rounds_leave_both_ends_open():
    found = estimate_ratio([0.1, 0.2], 0.05)
    assert tuple(found) == (0.0, math.inf)
    assert found.value == pytest.approx(math.exp(0.15))
    assert (found.coverage, found.n) == (0.95, 2)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"floor": -0.1}, "floor"),
        ({"floor": 1.0}, "floor"),
        ({"floor": math.nan}, "floor"),
        ({"band": 0.0}, "band"),
        ({"band": math.nan}, "band"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.4}, "confidence"),
        ({"confidence": math.nan}, "confidence"),
        ({"budget_s": 0.0}, "budget_s"),
        ({"budget_s": math.inf}, "budget_s"),
        ({"budget_s": math.nan}, "budget_s"),
        ({"precision": 0.0}, "precision"),
        ({"precision": math.nan}, "precision"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, name):
    with pytest.raises(SettingError, match=f"{name}="):
        Rule(**settings)


def test_settings_at_their_edges_are_fine():
    assert Rule(floor=0.0, band=0.5, confidence=0.5, budget_s=1e-9, precision=1e-9).floor == 0
    assert Rule().budget_s / 20 > rounds.ROUND_S


def test_somebody_may_look_after_every_round(clock, rng):
    looks = []
    found = time_until_known(
        *simulated_sides(clock, rng),
        Rule(),
        is_known=is_decided,
        rng=rng,
        between=lambda: looks.append(clock.now),
    )
    assert len(looks) == len(found.rounds)
    assert looks == sorted(looks)


def test_the_narrowest_interval_is_a_tenth_of_a_percent_wide():
    found = estimate_ratio([0.2] * 20, 0.05)
    assert math.log(found.high / found.low) == pytest.approx(NARROWEST, rel=1e-9)


@pytest.mark.parametrize("elsewhere", [(), (0,), (1,), (0, 1)])
def test_what_disturbs_counts_as_ours_only_where_both_compute_here(
    clock, rng, elsewhere, monkeypatch
):
    asked = []

    class Observed:
        def doubts_since(self, before, *, is_computing):
            asked.append(is_computing)
            return ()

    monkeypatch.setattr("tinytorch.comparison.sequential.observe", Observed)
    sides = simulated_sides(clock, rng)
    for number in (0, 1):
        monkeypatch.setattr(sides[number], "runs_here", number not in elsewhere, raising=False)
    timed(sides, rng)
    assert asked == [not elsewhere]
