"""How a search spends its time budget: by a clock that only imaginary attempts move."""

import math
from dataclasses import replace

import pytest
from imaginary_trials import ENTRIES, SPEEDS, ImaginaryTrials
from scripted_sides import ToldTime

from tinytorch.tuning.attempt import BETTER, NOT_TRIED
from tinytorch.tuning.search import LEAST_S, Search, TimeLeft
from tinytorch.tuning.trying import (
    BEYOND_DOUBT,
    CALLS_TO_DROP,
    HOPELESS,
    LEAST_TO_DROP_S,
    slowness_of,
)

ALLOWED = 1.2


class SlowTrials(ImaginaryTrials):
    """Attempts that take their time: `setup_s` by entry, checking, and all that they may time."""

    def __init__(self, speeds=SPEEDS, *, setup_s=None, check_s=1.0, **settings):
        super().__init__(speeds, **settings)
        self.setup_s, self.check_s, self.clock = setup_s or {}, check_s, ToldTime()
        self.limits, self.rebuilt = {}, []

    def attempt(self, entries, *, budget_s, limit_s, best=None, **settings):
        found, built = super().attempt(entries, best=best, **settings)
        self.limits[found.stack] = limit_s
        setup_s = sum(self.setup_s.get(name, 0.5) for name in found.stack)
        return self._taken(found, min(setup_s, limit_s), budget_s), built

    def confirm(self, entries, built=None, *, budget_s, limit_s, **settings):
        found, built = super().confirm(entries, built, budget_s=budget_s, **settings)
        setup_s = sum(self.setup_s.get(name, 0.5) for name in found.stack)
        return self._taken(found, setup_s if setup_s <= limit_s else 0.0, budget_s), built

    def compare_with(self, first, second, *, budget_s, **settings):
        self.clock.now += budget_s
        return super().compare_with(first, second, **settings)

    def _taken(self, found, setup_s, timed_s):
        if found.comparison is None:
            timed_s = 0.0
        else:
            found = replace(found, comparison=replace(found.comparison, seconds_used=timed_s))
        seconds = (
            setup_s
            + self.check_s
            + timed_s
            + sum(each.seconds_used for each in [found.against_best] if each is not None)
        )
        self.clock.now += seconds
        return replace(found, seconds=seconds, setup_s=setup_s)


def searched(trials, names=("int8", "half", "threads", "channels", "compiled"), *, spent=0.0):
    trials.clock.now = spent
    entries = [replace(ENTRIES[name], setup_s=trials.setup_s.get(name, 0.5)) for name in names]
    search = Search(trials, entries, clock=trials.clock, started=0.0)
    search.try_singles()
    search.try_combinations()
    search.try_to_keep_limits()
    search.confirm()
    search.take_apart()
    return search


@pytest.mark.parametrize("budget_s", [15, 30, 60, 120])
@pytest.mark.parametrize("check_s", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("compiling_s", [0.5, 8.0, 25.0])
def test_a_budget_holds_but_for_a_fifth_and_one_set_up(budget_s, check_s, compiling_s):
    trials = SlowTrials(check_s=check_s, setup_s={"compiled": compiling_s}, budget_s=budget_s)
    search = searched(trials, spent=0.05 * budget_s)
    longest = max(each.setup_s for each in search.attempts)
    assert trials.clock.now <= ALLOWED * budget_s + longest
    assert search.confirmations, "there was time for what is reported"


def test_time_for_the_confirmation_is_kept_back():
    trials = SlowTrials(check_s=3.0, budget_s=20)
    search = searched(trials)
    assert search.chosen.stack == ("int8",)
    assert [each.stack for each in search.confirmations] == [("int8",)]
    late = [each for each in search.attempts if each.outcome == NOT_TRIED]
    assert late
    assert all(each.lacked_time for each in late)


@pytest.mark.parametrize(
    ("start_s", "budget_s", "is_fresh"),
    [(2.0, 20, True), (30.0, 20, False), (math.inf, 20, False), (2.0, 4, False)],
)
def test_a_fresh_process_confirms_where_there_is_time_to_start_one(start_s, budget_s, is_fresh):
    trials = SlowTrials(check_s=0.1, budget_s=budget_s)
    trials.start_s = start_s
    search = searched(trials)
    assert [each.stack for each in search.confirmations] == [("int8",)]
    assert trials.was_fresh is is_fresh


@pytest.mark.parametrize("start_s", [1.0, 4.0, 12.0])
def test_starting_a_process_is_part_of_the_budget(start_s):
    trials = SlowTrials(check_s=0.5, budget_s=60)
    trials.start_s = start_s
    search = searched(trials)
    assert trials.was_fresh
    assert trials.clock.now + start_s <= ALLOWED * 60 + max(x.setup_s for x in search.attempts)


def test_scores_that_take_nearly_all_of_it_leave_one_attempt_without_a_confirmation():
    trials = SlowTrials(check_s=12.0, budget_s=20)
    search = searched(trials, spent=4.0)
    outcomes = [each.outcome for each in search.attempts]
    assert outcomes == [BETTER] + [NOT_TRIED] * 4
    assert search.confirmations == []
    assert [note for note in trials.notes if "not compared once more" in note]


def test_what_no_longer_fits_is_not_begun_and_what_is_cheap_still_is():
    trials = SlowTrials(check_s=0.2, setup_s={"compiled": 40.0}, budget_s=30)
    search = searched(trials, ("int8", "compiled", "threads"))
    tried = {each.name: each for each in search.attempts if len(each.stack) == 1}
    assert tried["compiled"].lacked_time
    assert not tried["threads"].lacked_time


def test_setting_up_is_limited_by_what_is_left():
    trials = SlowTrials(check_s=0.2, budget_s=30)
    searched(trials)
    assert max(trials.limits.values()) <= 30


def test_what_was_set_up_before_is_known_to_take_as_long_in_a_stack():
    trials = SlowTrials(check_s=0.1, setup_s={"compiled": 6.0}, budget_s=60)
    search = Search(trials, list(ENTRIES.values()), clock=trials.clock, started=0.0)
    search.try_singles()
    assert search._setup_s(("int8", "compiled")) == pytest.approx(6.5)


def test_combinations_get_their_part_where_there_is_something_to_combine():
    names = [f"other {index}" for index in range(30)]
    speeds = SPEEDS | {(name,): 1.0 for name in names}
    trials = SlowTrials(speeds, check_s=1.0, budget_s=40)
    entries = [ENTRIES[name] for name in ("int8", "half", "compiled")]
    entries += [replace(ENTRIES["channels"], name=name) for name in names]
    search = Search(trials, entries, clock=trials.clock, started=0.0)
    search.try_singles()
    assert search.remaining_s > 0.2 * 40
    search.try_combinations()
    assert any(len(stack) > 1 for stack in trials.seen)


def test_what_is_left_is_told_with_each_step():
    class Heard:
        def __init__(self):
            self.texts, self.steps = [], 0

        def advance(self, steps=1):
            self.steps += steps

        def describe(self, text):
            self.texts.append(text)

    heard, left = Heard(), [42.3, -3.0]
    watch = TimeLeft(heard, lambda: left.pop(0))
    watch.describe("int8")
    watch.describe("half")
    watch.advance()
    assert heard.texts == ["int8, 42 s left", "half, 0 s left"]
    assert heard.steps == 1


def test_nothing_is_taken_apart_after_the_end():
    speeds = {**SPEEDS, ("int8", "compiled"): 0.3}
    trials = SlowTrials(speeds, check_s=0.1, budget_s=60)
    search = Search(
        trials, [ENTRIES[x] for x in ("int8", "compiled")], clock=trials.clock, started=0.0
    )
    search.try_singles()
    search.try_combinations()
    trials.clock.now = 60 - LEAST_S / 2
    search.take_apart()
    assert [each.comparison for each in search.ablation] == [None, None]
    assert trials.clock.now < 60


# ---------------------------------------------------------------- what is dropped


def calls(*seconds):
    found = iter(seconds)
    return lambda: next(found)


def dropped(candidate, *, baseline=None, **settings):
    ours = calls(*(baseline or [1.0] * len(candidate)))
    return slowness_of(calls(*candidate), ours, **{"hopeless": HOPELESS} | settings)


def test_what_is_hopelessly_slow_in_every_call_is_dropped():
    found = dropped([8.0, 7.0, 9.0])
    assert (found.calls, found.ratio) == (1 + CALLS_TO_DROP, 8.0)


@pytest.mark.parametrize(("is_prepared", "calls"), [(False, 2), (True, 3)])
def test_what_is_far_beyond_doubt_takes_fewer_calls(is_prepared, calls):
    found = dropped([3 * BEYOND_DOUBT, 3.5 * BEYOND_DOUBT], is_prepared=is_prepared)
    assert found.calls == calls


def test_what_records_in_its_second_call_and_replays_from_the_third_is_kept():
    assert dropped([3 * BEYOND_DOUBT, 0.2], is_prepared=True) is None


@pytest.mark.parametrize("fast_from", range(CALLS_TO_DROP))
def test_one_call_that_is_fast_enough_keeps_it(fast_from):
    """As of a model that compiles again in its second call, or replays from the third on."""
    slow = [8.0] * fast_from
    assert dropped([*slow, HOPELESS - 0.1, *([8.0] * CALLS_TO_DROP)]) is None


def test_short_calls_are_repeated_until_they_took_a_while_together():
    """A few calls of a millisecond in a row may be those that were preempted."""
    short, ours = LEAST_TO_DROP_S / 20, LEAST_TO_DROP_S / 20 / BEYOND_DOUBT / 3
    assert dropped([short] * 19 + [ours], baseline=[ours] * 20) is None
    assert dropped([short] * 30, baseline=[ours] * 30).calls in (1 + 20, 1 + 21)  # by rounding


def test_a_disturbance_of_both_sides_drops_nothing():
    assert dropped([9.0, 9.0, 9.0], baseline=[1.0, 9.0, 1.0]) is None


def test_what_only_rounds_of_a_busy_baseline_hide_is_still_dropped():
    found = dropped([60.0, 60.0, 60.0], baseline=[1.0, 4.0, 1.0])
    assert found.ratio == 60.0
