"""What gains nothing alone because the device waits for the program: it is added to the best."""

import pytest
from imaginary_trials import ENTRIES, ImaginaryTrials, waiting_profile

from tinytorch.tuning.attempt import BETTER, NOT_TRIED, WORSE
from tinytorch.tuning.search import Search

NAMES = ("half", "int8", "channels", "compiled")
SPEEDS = {
    ("half",): 1.1,
    ("int8",): 1.2,
    ("channels",): 1.0,
    ("compiled",): 0.2,
    ("half", "compiled"): 0.12,
    ("int8", "compiled"): 0.11,
    ("channels", "compiled"): 0.25,
    ("half", "channels", "compiled"): 0.13,
    ("int8", "channels", "compiled"): 0.14,
}
"""As on a device that waits: what makes kernels faster gains nothing until launches are gone."""


def search_over(*names, idle_share=0.7, changes=None, inaccurate=(), goal="latency"):
    trials = ImaginaryTrials({**SPEEDS, **(changes or {})}, goal=goal)
    trials.profile, trials.inaccurate = waiting_profile(idle_share), inaccurate
    search = Search(trials, [ENTRIES[name] for name in names or NAMES])
    search.try_singles()
    search.try_combinations()
    return search


def combinations(search):
    return [each for each in search.trials.seen if len(each) > 1]


def test_what_waiting_hides_is_added_to_the_best():
    search = search_over("half", "compiled")
    assert search.best.stack == ("half", "compiled")
    assert search.chosen.stack == ("half", "compiled")


def test_such_a_stack_is_compared_with_the_best_like_any_other():
    search = search_over("half", "compiled")
    found = search.attempts[-1]
    assert (found.name, found.outcome) == ("half + compiled", BETTER)
    assert found.against_best.baseline_name == "compiled"


@pytest.mark.parametrize(("idle_share", "is_tried"), [(None, False), (0.1, False), (0.3, True)])
def test_only_a_device_that_waits_notably_hides_anything(idle_share, is_tried):
    search = search_over("half", "compiled", idle_share=idle_share)
    assert (("half", "compiled") in search.trials.seen) is is_tried


def test_without_a_profile_nothing_is_known_to_be_hidden():
    trials = ImaginaryTrials(SPEEDS)
    search = Search(trials, [ENTRIES[name] for name in NAMES])
    search.try_singles()
    search.try_combinations()
    assert combinations(search) == []


def test_what_was_not_as_good_alone_is_not_added():
    search = search_over("half", "compiled", inaccurate=[("half",)])
    assert combinations(search) == []


def test_what_failed_alone_is_not_added():
    assert combinations(search_over("broken", "compiled")) == []


def test_a_best_that_still_waits_gets_nothing_added():
    search = search_over("half", "channels", changes={("channels",): 0.5})
    assert combinations(search) == []


@pytest.mark.parametrize(("time", "best"), [(0.12, "int8"), (0.10, "half")])
def test_what_helped_alone_has_rivals_that_did_not(time, best):
    changes = {("int8",): 0.9, ("half", "compiled"): time}
    search = search_over("half", "int8", "compiled", changes=changes)
    assert combinations(search) == [("int8", "compiled"), ("half", "compiled")]
    assert search.best.stack == (best, "compiled")


def test_it_is_taken_only_where_it_is_faster_than_the_best():
    search = search_over("channels", "compiled")
    assert combinations(search) == [("channels", "compiled")]
    assert search.best.stack == ("compiled",)
    assert search.chosen.stack == ("compiled",)


def test_what_advice_names_first_is_added_first():
    search = search_over("channels", "half", "compiled")
    assert combinations(search) == [("channels", "compiled"), ("half", "compiled")]
    assert search.best.stack == ("half", "compiled")


def test_a_hidden_rival_is_tried_in_the_place_of_what_was_taken():
    search = search_over()
    assert combinations(search) == [
        ("half", "compiled"),
        ("half", "channels", "compiled"),
        ("int8", "compiled"),
    ]
    assert search.best.stack == ("int8", "compiled")


def test_a_hidden_rival_that_is_slower_is_not_taken():
    search = search_over(changes={("int8", "compiled"): 0.15})
    assert search.best.stack == search.chosen.stack == ("half", "compiled")


def test_a_rival_that_had_its_turn_does_not_get_another_in_other_company():
    changes = {("half", "compiled"): 0.3, ("channels", "compiled"): 0.15}
    search = search_over("half", "channels", "int8", "compiled", changes=changes)
    assert combinations(search) == [
        ("half", "compiled"),
        ("channels", "compiled"),
        ("int8", "channels", "compiled"),
    ]
    assert search.best.stack == ("int8", "channels", "compiled")


def test_bytes_are_not_hidden_by_waiting():
    search = search_over("half", "compiled", goal="memory")
    assert combinations(search) == []


def test_without_time_such_a_stack_is_listed_as_not_tried(monkeypatch):
    search = Search(ImaginaryTrials(SPEEDS), [ENTRIES[name] for name in ("half", "compiled")])
    search.trials.profile = waiting_profile(0.7)
    search.try_singles()
    monkeypatch.setattr(Search, "_left_of", lambda self, share: -1.0)
    search.try_combinations()
    outcomes = {each.name: each.outcome for each in search.attempts}
    assert outcomes == {"half": WORSE, "compiled": BETTER, "half + compiled": NOT_TRIED}
    assert search.attempts[-1].lacked_time
    assert search.best.stack == ("compiled",)


def test_what_a_hidden_part_brings_is_said_when_the_stack_is_taken_apart():
    search = search_over("half", "compiled")
    search.confirm()
    search.take_apart()
    found = {each.part: each.comparison.speedup for each in search.ablation}
    assert found == pytest.approx({"half": 0.2 / 0.12, "compiled": 1.1 / 0.12})
