"""Which entries are worth adding, by imaginary attempts of each alone."""

import pytest
from example_optimizations import attempt
from hypothesis import given
from hypothesis import strategies as st
from imaginary_trials import ENTRIES, waiting_profile

from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.tuning.attempt import BETTER, NO_GAIN, OUTCOMES, WORSE
from tinytorch.tuning.catalog import CATALOG
from tinytorch.tuning.search import (
    CLOSE,
    NOT_HIDDEN,
    NOTABLE_WAITING,
    WITHOUT_WAITING,
    better_alone,
    hidden_alone,
    rival_stacks,
    roles_of,
    sparing_alone,
)

ALL = tuple(ENTRIES.values())
COMPILED, HALF, INT8 = ENTRIES["compiled"], ENTRIES["half"], ENTRIES["int8"]


def hidden(attempts, *, entries=ALL, best=(COMPILED,), idle_share=0.7, goal="latency"):
    found = hidden_alone(
        attempts, entries, best=best, profile=waiting_profile(idle_share), goal=goal
    )
    return [each.name for each in found]


def names(stacks):
    return [tuple(each.name for each in stack) for stack in stacks]


# ---------------------------------------------------------------- better alone


@given(st.permutations([0.2, 0.4, 0.6, 0.8]))
def test_what_was_better_alone_comes_in_the_order_of_its_times(times):
    entries = ALL[: len(times)]
    pairs = list(zip(entries, times, strict=True))
    found = better_alone([attempt(x.name, time=y) for x, y in pairs], entries, goal="latency")
    by_name = {x.name: y for x, y in pairs}
    assert [by_name[x.name] for x in found] == sorted(times)


def test_what_was_not_better_and_what_was_combined_is_not_better_alone():
    attempts = [
        attempt("int8", time=1.2, outcome=WORSE),
        attempt("half", "compiled", time=0.5),
        attempt("threads", time=0.8),
    ]
    assert better_alone(attempts, ALL, goal="latency") == [ENTRIES["threads"]]


# ---------------------------------------------------------------- hidden by waiting


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_hidden_is_what_was_as_good_and_not_better(outcome):
    is_hidden = outcome in (NO_GAIN, WORSE, INCONCLUSIVE)
    assert hidden([attempt("half", outcome=outcome, time=1.0)]) == ["half"] * is_hidden


@given(st.floats(0.0, 0.99))
def test_waiting_hides_from_its_threshold_on(idle_share):
    profile = waiting_profile(idle_share)
    attempts = [attempt("half", outcome=INCONCLUSIVE, time=1.0)]
    found = hidden_alone(attempts, ALL, best=[COMPILED], profile=profile, goal="latency")
    assert bool(found) == (profile.idle_share >= NOTABLE_WAITING)


def test_waiting_hides_nothing_of_what_spares_the_program_work():
    assert {each.role for each in CATALOG} > NOT_HIDDEN
    called = next(each for each in CATALOG if each.role == "calling")
    attempts = [attempt(called.name, outcome=INCONCLUSIVE, time=1.0)]
    assert hidden(attempts, entries=(called,)) == []


def test_where_nobody_knows_of_waiting_nothing_is_hidden():
    attempts = [attempt("half", outcome=INCONCLUSIVE, time=1.0)]
    assert hidden(attempts, idle_share=None) == []
    assert hidden_alone(attempts, ALL, best=[COMPILED], profile=None, goal="latency") == []


@pytest.mark.parametrize("best", [(), (ENTRIES["threads"],)])
def test_nothing_is_hidden_for_a_best_that_still_waits(best):
    assert hidden([attempt("half", outcome=INCONCLUSIVE, time=1.0)], best=best) == []


def test_rivals_of_what_the_best_has_are_hidden_as_well():
    attempts = [attempt("half", outcome=INCONCLUSIVE, time=1.0)]
    assert hidden(attempts, best=(INT8, COMPILED)) == ["half"]


@pytest.mark.parametrize(
    ("goal", "found"),
    [("latency", ["half"]), ("throughput", ["half"]), ("memory", []), ("size", [])],
)
def test_waiting_hides_time_and_no_bytes(goal, found):
    assert hidden([attempt("half", outcome=INCONCLUSIVE, time=1.0)], goal=goal) == found


def test_the_order_of_what_is_hidden_is_that_of_the_entries():
    attempts = [attempt(x, outcome=WORSE, time=1.1) for x in ("int8", "channels", "half")]
    order = [ENTRIES[name] for name in ("channels", "half", "int8", "compiled")]
    assert hidden(attempts, entries=order) == ["channels", "half", "int8"]


def test_every_entry_that_takes_waiting_away_has_the_role():
    about_launches = {"compiled", "captured", "compiled-captured", "static-generation"}
    roles = {each.role for each in CATALOG if each.name in about_launches}
    assert roles == {WITHOUT_WAITING}


# ---------------------------------------------------------------- limits and rivals


def test_what_needs_less_of_what_is_limited_comes_the_least_first():
    attempts = [
        attempt("int8", time=1.0, size=0.5, outcome=NO_GAIN),
        attempt("half", time=1.1, size=0.4, outcome=WORSE),
        attempt("threads", time=0.5, size=1.0),
    ]
    assert sparing_alone(attempts, ALL, limits={"size_mb": 1.0}) == [HALF, INT8]
    assert sparing_alone(attempts, ALL, limits={}) == []


@pytest.mark.parametrize(
    ("times_worse", "stacks"), [(0.99, [("half", "compiled")]), (1.01, [])], ids=["near", "far"]
)
def test_a_rival_has_to_be_close(times_worse, stacks):
    attempts = [
        attempt("int8", time=0.5),
        attempt("half", time=0.5 * CLOSE * times_worse),
        attempt("compiled", time=0.8),
    ]
    ranked = better_alone(attempts, ALL, goal="latency")
    found = rival_stacks(attempts, ranked, best=[INT8, COMPILED], goal="latency")
    assert names(found) == stacks


def test_a_single_entry_has_no_rivals_in_company():
    attempts = [attempt("int8", time=0.5), attempt("half", time=0.5)]
    assert list(rival_stacks(attempts, [INT8, HALF], best=[INT8], goal="latency")) == []


def test_the_roles_of_a_stack_are_those_of_its_parts():
    assert roles_of([INT8, COMPILED]) == {"numbers", "kernels"}
    assert roles_of([]) == set()


def test_an_entry_that_was_not_tried_alone_is_never_offered():
    combined = [attempt("half", "compiled", time=0.5, outcome=BETTER)]
    assert hidden(combined) == []
    assert sparing_alone(combined, ALL, limits={"size_mb": 1.0}) == []
