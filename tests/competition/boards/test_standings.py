import random
from dataclasses import replace

import pytest
from example_boards import heats, judgement, refused, run
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.competition.board import (
    NO_MEASURE,
    NOT_CONFIRMED,
    OUTNUMBERED,
    gather_standings,
    in_order,
    ranks_of,
    refusal_of,
)
from tinytorch.competition.judgement import Heat, Score, score_of
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import SEED_NOT_REVEALED

P90 = ["p90 latency"]


@st.composite
def scores(draw):
    low, value, high = sorted(draw(st.lists(st.floats(0.1, 10), min_size=3, max_size=3)))
    return Score(value, low, high, n=10)


def only(*runs):
    (found,) = gather_standings(runs).current
    return found


# ---------------------------------------------------------------- pooling


def test_all_runs_of_an_entry_are_pooled_and_none_is_chosen():
    one, other = run(2.0, day=1, seed=1), run(2.0, day=2, seed=2)
    found = only(one, other)
    assert found.heats == one.judgement.heats + other.judgement.heats
    assert found.score == score_of(found.heats, P90)
    assert 2.0 < only(one, run(3.0, day=2, seed=2)).score.value < 3.0


def test_contributions_are_pooled_too():
    runs = [run(day=day, seed=day, contributions={"int8-dynamic": 1.5}) for day in (1, 2)]
    found = only(*runs).contributions["int8-dynamic"]
    assert found.n == 20
    assert found.value == pytest.approx(1.5, abs=0.05)


def test_a_technique_that_was_not_switched_off_has_no_contribution():
    assert only(run(techniques=("int8-dynamic",))).contributions == {"int8-dynamic": None}


def test_a_team_stands_with_the_entry_that_it_ran_last_even_if_it_is_slower():
    fast, slow = run(3.0, day=1), run(2.0, day=2, description="another")
    found = gather_standings([slow, fast])
    (current,) = found.current
    assert current.runs == (slow,)
    assert current.entries_tried == 2
    assert [each.runs for each in found.every] == [(fast,), (slow,)]


def test_a_copy_of_a_record_counts_once():
    one = run(path="a")
    found = only(one, replace(one, path="b"), replace(one, path="c", status="unverified"))
    assert found.runs == (one,)


def test_verified_runs_are_not_pooled_with_unverified_ones():
    proved, told = run(2.0, day=1), run(9.0, day=2, status="unverified")
    found = only(proved, told)  # the same entry: it is not shown as unverified beside
    assert found.runs == (proved,)
    assert found.is_verified


def test_another_entry_that_nobody_has_verified_stands_apart():
    proved, told = run(2.0), run(9.0, day=2, status="unverified", description="another")
    assert [each.is_verified for each in gather_standings([told, proved]).current] == [True, False]


def test_tiers_are_apart():
    found = gather_standings([run(tier=0.99), run(tier=0.999)])
    assert [each.contest.tier for each in found.current] == [0.99, 0.999]


def test_the_status_is_the_weakest_of_the_runs():
    runs = run(day=1), run(day=2, status=SEED_NOT_REVEALED)
    assert only(*runs).status == SEED_NOT_REVEALED
    assert only(runs[0]).status == "verified"


def test_runs_that_contradict_each_other_are_said_to():
    assert only(run(2.0, day=1, seed=1), run(2.0, day=2, seed=2)).do_runs_agree
    assert not only(run(2.0, day=1), run(3.0, day=2)).do_runs_agree


def test_runs_that_do_not_agree_are_not_pooled_into_a_narrow_interval():
    alone = [only(run(value, day=1)).score for value in (2.0, 3.0)]
    together = only(run(2.0, day=1), run(3.0, day=2)).score
    assert together.low <= min(each.low for each in alone)
    assert together.high >= max(each.high for each in alone)
    assert alone[0].value < together.value < alone[1].value


def test_the_order_of_records_makes_no_difference():
    runs = [run(2 + day / 10, day=day, team=f"team {day % 3}", seed=day) for day in range(1, 9)]
    runs += [refused(day=9), run(1.5, day=3, status="unverified", team="other")]
    expected = gather_standings(runs)
    for seed in range(5):
        random.Random(seed).shuffle(runs)
        assert gather_standings(runs) == expected
        assert in_order(runs) == in_order(reversed(runs))


# ---------------------------------------------------------------- what is refused


def test_a_fatal_finding_is_never_ranked():
    found = gather_standings([refused()])
    assert found.current == ()
    assert [each.reason for each in found.refused] == ["it breaks T3"]


def test_a_warning_is_ranked():
    assert only(run(findings=(finding("W2", "busy"),))).score.value > 1


def test_an_entry_is_ranked_while_its_valid_runs_outnumber_the_others():
    wrong, first, second = refused(day=1), run(day=2), run(day=3, seed=3)
    drawn = gather_standings([wrong, first])
    assert drawn.current == ()
    assert {each.reason for each in drawn.refused} == {"it breaks T3", OUTNUMBERED}
    found = gather_standings([wrong, first, second])
    assert found.current[0].runs == (first, second)
    assert found.current[0].refused == 1


def test_what_the_organiser_found_out_does_not_stand_as_unverified_instead():
    told, caught = run(9.0, day=1, status="unverified"), refused(day=2)
    found = gather_standings([told, caught])
    assert (found.current, found.every) == ((), ())
    assert {each.reason for each in found.refused} == {"it breaks T3", NOT_CONFIRMED}
    another = run(2.0, day=3, status="unverified", description="mended")
    assert gather_standings([told, caught, another]).current[0].runs == (another,)


def test_a_refused_entry_leaves_the_team_with_the_one_before():
    good, bad = run(2.0, day=1), refused(day=2, description="too clever")
    assert gather_standings([good, bad]).current[0].runs == (good,)


def test_too_few_heats_are_refused_with_a_word():
    assert refusal_of(run(n=5)) == "5 heats, at least 6 are needed"


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, float("nan"), float("inf"), None])
def test_a_heat_without_a_usual_number_is_refused(value):
    broken = Heat({"p90 latency": 1e-3}, {} if value is None else {"p90 latency": value})
    whole = (*heats(), broken)
    assert score_of(whole, P90) is None
    assert refusal_of(replace(run(), judgement=judgement(heats=whole))) == NO_MEASURE


# ---------------------------------------------------------------- ranks


@given(st.lists(scores(), max_size=8))
def test_a_rank_is_one_more_than_those_shown_to_be_better(found):
    for rank, mine in zip(ranks_of(found), found, strict=True):
        assert rank == 1 + len([each for each in found if each.low > mine.high])


@given(st.lists(scores(), min_size=1, max_size=8))
def test_somebody_is_first_and_nobody_ahead_of_one_with_a_higher_high(found):
    ranks = ranks_of(found)
    assert min(ranks) == 1
    by_high = sorted(zip(found, ranks, strict=True), key=lambda each: -each[0].high)
    assert [rank for _, rank in by_high] == sorted(ranks)


@pytest.mark.parametrize("peak", [float("nan"), float("inf")])
def test_a_peak_that_is_no_number_is_not_known(peak):
    assert only(run(peak=peak)).peak_bytes is None


def test_peak_memory_is_the_median_of_the_entry():
    assert only(run(peak=5e6)).peak_bytes == 5e6
