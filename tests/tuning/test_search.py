"""The order of things; what is tried here is imaginary, and so are its times."""

import math
from time import monotonic

import pytest
from example_comparisons import comparison
from example_optimizations import attempt as example
from imaginary_trials import ENTRIES, SPEEDS, ImaginaryTrials

from tinytorch.tuning import search as search_module
from tinytorch.tuning.attempt import BETTER, FAILED, NOT_TRIED, SKIPPED, WORSE, Settings
from tinytorch.tuning.search import TIME_IS_UP, Search
from tinytorch.tuning.trying import Built, SkippedError


def searching(*names, trials=None, **changes):
    entries = [ENTRIES[name] for name in names or ENTRIES]
    return Search(trials or ImaginaryTrials(), entries, **changes)


def run(search):
    search.try_singles()
    search.try_combinations()
    search.confirm()
    search.take_apart()
    return search


def test_everything_is_tried_alone_and_a_failure_ends_nothing():
    search = searching()
    search.try_singles()
    assert [each.stack[0] for each in search.attempts] == list(ENTRIES)
    assert search.attempts[-1].outcome == FAILED


def test_what_helps_is_added_in_the_order_of_its_place():
    trials = ImaginaryTrials({**SPEEDS, ("int8", "compiled"): 0.3})
    search = run(searching(trials=trials))
    assert search.best.stack == ("int8", "compiled")


def test_what_does_not_help_in_company_is_left_out():
    search = run(searching("int8", "compiled"))
    assert search.best.stack == ("int8",)
    assert search.ablation == []


def test_a_close_rival_may_be_better_in_company():
    trials = ImaginaryTrials({**SPEEDS, ("int8", "compiled"): 0.45})
    search = run(searching(trials=trials))
    assert search.best.stack == ("half", "compiled")


def test_a_stack_never_has_two_rivals_nor_is_tried_twice():
    search = run(searching())
    assert ("half", "int8") not in search.trials.seen
    assert len(set(search.trials.seen)) == len(search.trials.seen)


def test_the_best_stack_is_taken_apart():
    trials = ImaginaryTrials({**SPEEDS, ("int8", "compiled"): 0.3})
    search = run(searching("int8", "compiled", trials=trials))
    found = {each.part: each.comparison.speedup for each in search.ablation}
    assert found == pytest.approx({"int8": 0.8 / 0.3, "compiled": 0.5 / 0.3})


def test_what_cannot_be_left_out_has_a_reason(monkeypatch):
    trials = ImaginaryTrials({**SPEEDS, ("int8", "compiled"): 0.3})
    search = searching("int8", "compiled", trials=trials)
    search.try_singles()
    search.try_combinations()

    def nothing(entries):
        raise SkippedError("there is nothing left", ())

    monkeypatch.setattr(trials, "build", nothing)
    search.take_apart()
    assert [each.reason for each in search.ablation] == ["without it, there is nothing left"] * 2


@pytest.mark.parametrize("is_combined", [False, True])
def test_the_model_of_the_best_entry_is_not_made_again(monkeypatch, is_combined):
    def refuse(entries):
        raise RuntimeError("made again")

    search = searching("int8", "half", "threads")
    monkeypatch.setattr(search.trials, "build", refuse)
    search.try_singles()
    if is_combined:
        search.try_combinations()
    search.confirm()
    assert search.model_of(("int8",)) is not None
    assert search.trials.notes == []


def test_what_an_earlier_run_finished_is_not_repeated():
    known = example("int8", time=0.5)
    heard = []
    search = searching("int8", "compiled", finished={("int8",): known}, on_attempt=heard.append)
    search.try_singles()
    assert search.trials.seen == [("compiled",)]
    assert search.attempts[0] is known
    assert [each.name for each in heard] == ["int8", "compiled"]


def test_without_time_the_rest_is_listed_as_not_tried(monkeypatch):
    search = searching()
    monkeypatch.setattr(Search, "_left_of", lambda self, share: -1.0)
    search.try_singles()
    first, *others = search.attempts
    assert first.outcome == BETTER  # something is always tried
    assert {each.outcome for each in others} == {NOT_TRIED}
    assert others[0].reason == TIME_IS_UP.format(budget=120)


@pytest.mark.parametrize("outcome", [NOT_TRIED, SKIPPED])
def test_what_was_not_carried_out_does_not_count_as_tried(monkeypatch, outcome):
    search = searching("int8", "compiled")
    search.attempts.append(example("nothing", outcome=outcome, reason=""))
    monkeypatch.setattr(Search, "_left_of", lambda self, share: -1.0)
    search.try_singles()
    assert [each.outcome for each in search.attempts] == [outcome, BETTER, NOT_TRIED]


def test_more_time_is_not_asked_for_what_nobody_can_judge(monkeypatch):
    search = searching("int8", "broken", "threads")
    search.trials.unjudged = "broken"
    monkeypatch.setattr(Search, "_left_of", lambda self, share: -1.0)
    search.try_singles()
    _, unjudged, late = search.attempts
    assert (unjudged.reason, unjudged.lacked_time) == ("it broke", False)
    assert late.lacked_time


def test_nothing_to_combine_is_no_failure():
    search = run(searching("broken"))
    assert search.best is None


def test_goals_of_bytes_need_no_times():
    trials = ImaginaryTrials({("int8",): 0.5, ("compiled",): 0.5, ("int8", "compiled"): 0.5})
    trials.settings = Settings(goal="size")
    trials.attempt = lambda entries, **_: (
        example(*[each.name for each in entries], time=1.0, size=0.5 ** len(entries)),
        Built(tuple(each.name for each in entries), object(), ()),
    )
    assert run(searching("int8", "compiled", trials=trials)).best.stack == ("int8", "compiled")


def test_an_interrupt_keeps_what_is_known():
    search = searching()
    attempt = search.trials.attempt

    def interrupted(entries, **settings):
        if entries[0].name == "compiled":
            raise KeyboardInterrupt
        return attempt(entries, **settings)

    search.trials.attempt = interrupted
    with pytest.raises(KeyboardInterrupt):
        search.try_singles()
    assert [each.name for each in search.attempts] == ["int8", "half"]


# ---------------------------------------------------------------- the best once more


def test_the_best_is_compared_once_more_with_a_seed_of_its_own():
    search = run(searching("int8", "compiled"))
    ((stack, seed),) = search.trials.confirmed
    assert stack == ("int8",)
    assert seed >= search_module.OTHER_SEEDS
    assert [each.stack for each in search.confirmations] == [("int8",)]
    assert [each.stack for each in search.attempts].count(("int8",)) == 1


@pytest.mark.parametrize("spent", [0.0, 0.7])
def test_the_last_comparison_may_take_what_the_attempts_left(spent):
    search = searching("int8", "compiled")
    budget_s = search.trials.settings.budget_s
    search.try_singles()
    search.started = monotonic() - spent * budget_s
    search.confirm()
    wanted = search_module._bounded((1 - spent) * budget_s)
    assert search.trials.confirmation_s == pytest.approx(wanted, rel=0.1)


def test_what_does_not_hold_gives_way_to_the_next_best():
    search = searching("int8", "half", "threads")
    search.trials.again = {("int8",): 1.2}
    run(search)
    assert [each.stack for each in search.confirmations] == [("int8",), ("half",)]
    assert search.chosen.stack == ("half",)


@pytest.mark.parametrize(("again", "chosen"), [(0.56, "half"), (0.9, "int8")])
def test_what_was_clearly_better_than_what_is_left_of_the_best_is_compared_too(again, chosen):
    search = searching("int8", "half", "threads")
    search.trials.again = {("int8",): 0.8, ("half",): again}
    run(search)
    assert [each.stack for each in search.confirmations] == [("int8",), ("half",)]
    assert search.chosen.stack == (chosen,)


def test_a_rival_that_may_be_as_good_is_left_alone():
    search = searching("int8", "half", "threads")
    search.trials.again = {("int8",): 0.551}
    run(search)
    assert [each.stack for each in search.confirmations] == [("int8",)]
    assert search.chosen.stack == ("int8",)


def test_that_nothing_holds_is_found_out_soon(monkeypatch):
    monkeypatch.setattr(search_module, "MOST_CONFIRMATIONS", 2)
    search = searching("int8", "half", "compiled")
    search.trials.again = dict.fromkeys(SPEEDS, 1.2)
    search.try_singles()
    search.confirm()
    assert len(search.confirmations) == 2
    assert search.chosen is None  # "compiled" was found in the same way as these


def test_what_was_confirmed_is_taken_apart_and_given():
    trials = ImaginaryTrials({**SPEEDS, ("int8", "compiled"): 0.3})
    trials.again = {("int8", "compiled"): 1.1}
    search = run(searching("int8", "compiled", trials=trials))
    assert search.chosen.stack == ("int8",)
    assert search.ablation == []  # of the stack that did not hold, there is nothing to tell
    assert search.model_of(("int8",)) is search._confirmed.model


def test_a_stack_kept_from_another_best_is_compared_with_this_one():
    old = example(
        "int8", "compiled", time=0.3, against_best=comparison(0.5, baseline_name="compiled")
    )
    same = example("int8", "compiled", time=0.3, against_best=comparison(0.5, baseline_name="int8"))
    for kept, is_repeated in ((old, True), (same, False)):
        search = run(searching("int8", "compiled", finished={kept.stack: kept}))
        assert (kept.stack in search.trials.seen) is is_repeated


# ---------------------------------------------------------------- time


class Clock:
    """A clock that attempts move."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def budgets(took, *, budget_s):
    """Give what each attempt is allowed, where they take so many seconds."""
    clock, given = Clock(), {}
    trials = ImaginaryTrials(budget_s=budget_s)
    attempt = trials.attempt

    def timed(entries, *, budget_s, limit_s, **settings):
        given[entries[0].name] = (budget_s, limit_s)
        clock.now += took.get(entries[0].name, 0.0)
        return attempt(entries, **settings)

    trials.attempt = timed
    search = searching(trials=trials, started=0.0, clock=clock)
    search.try_singles()
    return given, search


def test_time_that_is_not_needed_goes_to_the_others():
    given, _ = budgets({}, budget_s=120)
    seconds = [budget for budget, _ in given.values()]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]


def test_what_takes_long_leaves_something_to_the_others():
    given, search = budgets({"int8": 80.0}, budget_s=120)
    assert given["int8"][1] < 60.0  # planning may not take all of it
    assert given["half"][0] == search_module.LEAST_S
    assert NOT_TRIED not in {each.outcome for each in search.attempts}


def test_a_slow_model_profits_from_a_large_budget():
    given, _ = budgets({}, budget_s=3600)
    assert min(budget for budget, _ in given.values()) == search_module.MOST_S >= 60


def test_what_was_spent_before_the_search_counts():
    search = searching(trials=ImaginaryTrials(budget_s=100), started=10.0, clock=lambda: 100.0)
    search.try_singles()
    assert [each.outcome for each in search.attempts][:2] == [BETTER, NOT_TRIED]


def test_shares_of_the_budget_are_all_of_it():
    shares = (
        search_module.SHARE_OF_SINGLES,
        search_module.SHARE_OF_COMBINATIONS,
        search_module.SHARE_OF_CONFIRMATION,
        search_module.SHARE_OF_ABLATION,
    )
    assert sum(shares) == pytest.approx(1.0)


# ---------------------------------------------------------------- limits

SIZES = {"int8": 0.4, "half": 0.5, "threads": 0.5}
"""Entry -> share of the bytes that it leaves; the file of the model as it is has 20 kB."""


def sized_trials(limits):
    """Give trials in which `compiled` alone is faster, and others make the file smaller."""
    trials = ImaginaryTrials(limits=limits)

    def attempt(entries, **_):
        stack = tuple(each.name for each in entries)
        trials.seen.append(stack)
        size = math.prod(SIZES.get(name, 1.0) for name in stack)
        time = (0.8 if "compiled" in stack else 1.0) * 1.1 ** len(set(stack) & set(SIZES))
        outcome = BETTER if time < 1 else WORSE
        return example(*stack, outcome=outcome, time=time, size=size), Built(stack, object(), ())

    trials.attempt = attempt
    return trials


@pytest.mark.parametrize(
    ("most_kb", "stack"),
    [
        (30, ("compiled",)),
        (9, ("int8", "compiled")),
        (4.5, ("int8", "threads", "compiled")),
        (1, None),
    ],
)
def test_what_breaks_a_limit_is_combined_with_what_needs_less(most_kb, stack):
    trials = sized_trials({"size_mb": most_kb / 1000})
    search = searching("compiled", "threads", "int8", "half", trials=trials)
    search.try_singles()
    search.try_combinations()
    search.try_to_keep_limits()
    assert (search.chosen and search.chosen.stack) == stack
    assert len(set(trials.seen)) == len(trials.seen)


def test_without_limits_nothing_is_combined_for_them():
    search = searching("compiled", "int8", trials=sized_trials({}))
    search.try_singles()
    before = len(search.attempts)
    search.try_to_keep_limits()
    assert len(search.attempts) == before


def test_where_the_model_as_it_is_keeps_to_the_limits_nothing_is_combined_for_them():
    search = searching("threads", "int8", trials=sized_trials({"size_mb": 1.0}))
    search.try_singles()
    search.try_to_keep_limits()
    assert [each.stack for each in search.attempts] == [("threads",), ("int8",)]
