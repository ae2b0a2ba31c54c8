from contextlib import nullcontext
from dataclasses import replace
from itertools import count, pairwise

import numpy as np
import pytest

from tinytorch.errors import ModelError, SettingError
from tinytorch.profiling.size_runs import Attempt, TrialFacts
from tinytorch.tuning import sizes as size_advisor
from tinytorch.tuning import sizes as size_search
from tinytorch.tuning.sizes import advise_batch_size, advise_sequence_length

KEPT = 1000
"""Bytes of the parameters of the scripted model."""


class Scripted:
    """A place to try sizes in, where everything follows a law and nothing takes time."""

    def __init__(self, *, usual=1, most=10**9, kind="memory", fenced=True, least=1, **laws):
        self.facts = TrialFacts("scripted", "core", "cpu", 0, usual, 1, KEPT)
        self.is_isolated = fenced
        self.most, self.least, self.kind = most, least, kind
        self.seconds = laws.get("seconds", lambda size: 1e-3 + 1e-4 * size)
        self.peak = laws.get("peak", lambda size: KEPT + 100 * size)
        self.tried, self.fenced_at, self.restarting_s = [], None, 0.0

    def environment(self):
        return nullcontext()

    def close(self):
        pass

    def free_bytes(self):
        return 1_000_000

    def fence(self, allowed_bytes):
        self.fenced_at = allowed_bytes
        return True

    def attempt(self, size, *, briefly=False):
        self.tried.append(size)
        if size > self.most or size < self.least:
            return Attempt(size, kind=self.kind, failure=f"{size} does not fit")
        return Attempt(size, self.seconds(size), None if briefly else self.peak(size))

    def time(self, size, loops):
        return self.seconds(size)


@pytest.fixture
def advise(monkeypatch):
    """Give advice from a scripted place."""

    def run(place, verb=advise_batch_size, **settings):
        monkeypatch.setattr(size_advisor, "_bench", lambda *arguments: (place, []))
        return verb("scripted", **settings)

    return run


def test_sizes_double_until_the_throughput_no_longer_grows(advise):
    advice = advise(Scripted(most=2000))
    assert [point.size for point in advice.points][:5] == [1, 2, 4, 8, 16]
    assert advice.limited_by.kind == "saturated"
    # 1 / (0.1 ms + 1 ms / n): 64 is the first of all powers of two within 10% of 512's
    assert advice.knee in (64, 128)
    assert advice.recommended.size == advice.knee


def test_the_ceiling_is_found_between_what_ran_and_what_failed(advise):
    place = Scripted(most=2000)
    advice = advise(place)
    assert advice.ceiling.largest <= 2000 < advice.ceiling.failed
    assert advice.ceiling.failed - advice.ceiling.largest <= 20
    assert advice.ceiling.limit.kind == "memory"
    reason = advice.ceiling.limit.reason
    assert reason.startswith("out of memory (it may take 1 MiB on top of the model): ")


def test_a_small_ceiling_is_exact(advise):
    advice = advise(Scripted(most=37))
    assert (advice.ceiling.largest, advice.ceiling.failed) == (37, 38)
    assert advice.ceiling.is_exact
    assert advice.limited_by.reason.startswith("size 64 fails")


def test_the_first_guess_at_the_ceiling_follows_the_peaks(advise):
    place = Scripted(most=8000, seconds=lambda size: 1e-6 * (10 + size))  # 100 bytes each
    advice = advise(place)
    guess = next(size for size in place.tried if size > advice.points[-1].size)
    assert guess == 7600
    assert 7900 <= advice.ceiling.largest <= 8000


def test_starting_processes_anew_is_no_part_of_the_budget(advise):
    place = Scripted(most=64)
    place.restarting_s = 1e6
    assert advise(place).ceiling.is_exact


def test_the_size_as_given_is_one_of_the_curve(advise):
    advice = advise(Scripted(usual=12, most=100))
    assert [point.size for point in advice.points] == [1, 2, 4, 8, 12, 16, 32, 64]
    assert advice.usual == 12


def test_sequences_start_longer_and_count_tokens(advise):
    advice = advise(Scripted(usual=64, most=64, kind="refused"), advise_sequence_length)
    assert [point.size for point in advice.points] == [16, 32, 64]
    assert (advice.axis, advice.unit) == ("sequence", "tokens")
    assert advice.ceiling.limit.kind == "refused"


def test_larger_sizes_than_the_budget_allows_are_not_claimed(advise):
    place = Scripted(seconds=lambda size: 1.0 * size)
    advice = advise(place, budget_s=60.0)
    assert advice.limited_by.kind == "budget"
    assert advice.ceiling.failed is None
    assert "larger ones were not tried" in advice.ceiling.words
    assert advice.ceiling.largest == max(place.tried)


def test_calls_far_beyond_the_latency_limit_are_not_measured(advise):
    advice = advise(Scripted(), latency_limit_s=1.5e-3)
    assert advice.limited_by.kind == "latency"
    assert advice.recommended.size == 4
    assert advice.points[-1].latency.median < 20e-3


@pytest.mark.parametrize("limit", [None, KEPT + 5000])
def test_the_fence_protects_the_machine_whatever_the_memory_limit(advise, limit):
    place = Scripted(most=50)
    advise(place, memory_limit_bytes=limit)
    assert place.fenced_at == 800_000  # 80% of what is free


def test_the_memory_limit_is_judged_by_the_peaks(advise):
    advice = advise(Scripted(), memory_limit_bytes=KEPT + 5000)  # 100 bytes for each example
    assert (advice.ceiling.largest, advice.ceiling.failed) == (50, 51)
    assert advice.ceiling.limit.reason == "holds 6,100 bytes, more than the memory limit"
    assert advice.limited_by.reason == "size 64 holds 7,400 bytes, more than the memory limit"
    assert advice.recommended.size == 32
    assert advice.points[-1].size == 64


def test_a_memory_limit_that_no_size_keeps_is_an_answer(advise):
    advice = advise(Scripted(), memory_limit_bytes=KEPT + 50)
    assert advice.meets_limits is False
    assert (advice.ceiling.largest, advice.ceiling.failed) == (0, 1)
    assert advice.ceiling.words.startswith("none of those tried; 1 does not: holds 1,100 bytes")


def test_where_no_peak_is_known_nothing_is_claimed_about_the_memory_limit(advise):
    advice = advise(Scripted(peak=lambda size: None), memory_limit_bytes=KEPT + 5000)
    assert advice.meets_limits is None
    assert advice.ceiling.words == "unknown; the memory that a size holds is unknown"


def test_a_limit_below_the_parameters_is_refused(advise):
    with pytest.raises(SettingError, match="the parameters alone hold 1,000"):
        advise(Scripted(), memory_limit_bytes=500)


@pytest.mark.parametrize(("verb", "power"), [(advise_batch_size, 1), (advise_sequence_length, 2)])
def test_without_a_fence_nothing_is_tried_that_might_not_fit(advise, verb, power):
    place = Scripted(fenced=False, peak=lambda size: KEPT + size**power)
    advice = advise(place, verb)
    assert advice.limited_by.kind in ("saturated", "not tried")
    assert advice.ceiling.limit.kind == "not tried"
    assert "the 500,000 bytes" in advice.ceiling.limit.reason
    assert place.peak(max(place.tried)) <= KEPT + 500_000


def test_sizes_that_take_longer_than_the_limit_need_no_ceiling(advise):
    place = Scripted()
    advice = advise(place, latency_limit_s=2e-3)
    assert max(place.tried) == advice.points[-1].size
    assert advice.ceiling.limit.kind == "latency"


def test_sizes_grow_in_steps_whose_time_can_be_foreseen(advise):
    place = Scripted(seconds=lambda size: 1e-7 * (10 + size), peak=lambda size: KEPT + size)
    advise(place)
    later = [size for size in place.tried if size > 1]
    steps = [after / before for before, after in pairwise(later)]
    assert max(steps) <= size_search.LONGEST_STEP


def test_making_inputs_counts_as_time_for_the_ceiling(advise):
    place = Scripted(peak=lambda size: KEPT)
    attempt = place.attempt

    def slow_to_make(size, *, briefly=False):
        return replace(attempt(size, briefly=briefly), first_s=0.1 * size)

    place.attempt = slow_to_make
    advice = advise(place, budget_s=30.0)
    assert advice.ceiling.limit.kind == "budget"
    assert 0.1 * max(place.tried) < 30


def test_a_dip_does_not_end_the_curve(advise):
    """Where the second thread begins to help, or another process disturbs, rates fall and rise."""
    place = Scripted(seconds=lambda size: 1e-5 if size == 1 else 1e-3 + 1e-7 * size)
    advice = advise(place)
    assert advice.points[-1].size > 1000
    assert advice.best > 1


def test_a_size_without_an_answer_is_told_from_one_that_was_not_tried(advise):
    advice = advise(Scripted(most=8, kind="late"))
    assert (advice.ceiling.largest, advice.ceiling.failed) == (8, 16)
    assert advice.ceiling.words == ">= 8; 16 does not: 16 does not fit"


def test_times_that_go_up_and_down_are_said_to(advise):
    place = Scripted(most=8)
    calls = count()
    place.time = lambda size, loops: place.seconds(size) * (1 + 3 * (next(calls) % 8 < 4))
    assert any("noisy" in note for note in advise(place).notes)
    assert not any("something else" in note for note in advise(Scripted(most=8)).notes)


def test_sizes_that_do_not_fit_are_no_question_of_the_axis(advise):
    message = r"none of the sizes can be measured; size 500 fails: out of memory"
    with pytest.raises(SettingError, match=message):
        advise(Scripted(most=8), sizes=[500])
    advice = advise(Scripted(most=1))
    assert [point.size for point in advice.points] == [1]
    assert (advice.ceiling.largest, advice.ceiling.failed) == (1, 2)


def test_sizes_that_nobody_dares_to_try_are_said_to_be(advise):
    with pytest.raises(SettingError, match=r"measured; the memory of a larger size"):
        advise(Scripted(fenced=False, peak=lambda size: None), sizes=[500])


def test_without_a_fence_an_unknown_peak_ends_the_search(advise):
    place = Scripted(fenced=False, peak=lambda size: None)
    advice = advise(place)
    assert place.tried == [1]
    assert "the memory of a larger size is unknown" in advice.ceiling.limit.reason
    advice = advise(Scripted(fenced=False, peak=lambda size: None), sizes=[1, 1000])
    assert [point.size for point in advice.points] == [1]


def test_smaller_sizes_that_are_refused_are_left_out(advise):
    advice = advise(Scripted(usual=8, least=4, most=64, kind="refused"))
    assert [point.size for point in advice.points] == [4, 8, 16, 32, 64]
    assert any("size 1 is left out: 1 does not fit" in note for note in advice.notes)


def test_a_model_that_takes_one_size_only_says_what_to_give(advise):
    with pytest.raises(SettingError, match=r"cannot be run with other sizes on axis 0.*give axis="):
        advise(Scripted(usual=8, least=8, most=8, kind="refused"))


def test_a_model_that_fails_on_its_own_inputs_is_an_error(advise):
    with pytest.raises(ModelError, match="fails on its own inputs: 8 does not fit"):
        advise(Scripted(usual=8, most=4))


def test_sizes_that_are_given_are_measured_and_no_others(advise):
    advice = advise(Scripted(usual=3, most=100), sizes=[32, 8, 200, 8])
    assert [point.size for point in advice.points] == [8, 32]
    assert (advice.ceiling.largest, advice.ceiling.failed) == (32, 200)
    advice = advise(Scripted(usual=3), sizes=[8, 32])
    assert (advice.ceiling.failed, advice.limited_by.kind) == (None, "sizes")


def test_sizes_may_be_numbers_of_numpy(advise):
    place = Scripted()
    advise(place, sizes=2 ** np.arange(3))
    assert place.tried == [1, 2, 4]
    assert {type(size) for size in place.tried} == {int}


def test_a_size_that_fails_while_it_is_timed_is_left_out(advise):
    place = Scripted(most=8)

    def time(size, loops):
        if size == 4:
            raise ModelError("broke down")
        return place.seconds(size)

    place.time = time
    advice = advise(place)
    assert [point.size for point in advice.points] == [1, 2, 8]
    assert "size 4 is left out: broke down" in advice.notes


def test_every_round_has_a_turn_of_every_size(advise):
    advice = advise(Scripted(most=8))
    counts = {point.latency.count for point in advice.points}
    assert len(counts) == 1
    assert counts.pop() >= size_search.FEWEST_ROUNDS
