import math

import pytest
from example_boards import run
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.competition.board import (
    BONUS,
    Credit,
    Innovation,
    composite_of,
    gather_standings,
    innovation_of,
)
from tinytorch.competition.entry import Technique
from tinytorch.competition.judgement import Score

FAST = Score(100.0, 99.0, 101.0, n=10)
lows = st.floats(0.01, 20)


def score(low):
    return Score(low * 1.1, low, low * 1.2, n=10)


@st.composite
def credits(draw):
    others = draw(st.integers(0, 20))
    return Credit("a", score(draw(lows)), others, draw(st.integers(0, others)), draw(st.booleans()))


def of_team(team, *runs):
    current = gather_standings(runs).current
    standing = next(
        each for each in current if each.team == team and each.contest.event == "mlp_sprint"
    )
    return innovation_of(standing, current)


# ---------------------------------------------------------------- properties


@given(st.lists(credits(), max_size=5), lows)
def test_it_is_never_below_one_and_never_above_what_the_entry_gains(found, speed):
    value = Innovation(tuple(found), score(speed)).value
    power = BONUS if any(each.helps_elsewhere for each in found) else 1
    assert value >= 1
    assert value <= max(1.0, speed) ** power * (1 + 1e-12)


@given(credits(), lows, lows, lows)
def test_more_contributed_never_counts_less(credit, one, other, speed):
    less, more = sorted([one, other])
    found = [
        Innovation((Credit("a", score(low), 5, 3, False), credit), score(speed)).value
        for low in (less, more)
    ]
    assert found[0] <= found[1]


@given(lows, st.integers(1, 20), st.data())
def test_rarer_never_counts_less(low, others, data):
    first, second = sorted(data.draw(st.integers(0, others)) for _ in range(2))
    values = [Credit("a", score(low), others, count, False).value for count in (first, second)]
    assert values[0] <= values[1]


@given(credits())
def test_a_credit_that_helps_elsewhere_counts_a_quarter_more(credit):
    plain = Credit("a", credit.contribution, credit.others, credit.without_it, False)
    bonus = Credit("a", credit.contribution, credit.others, credit.without_it, True)
    assert bonus.value == pytest.approx(1.25 * plain.value)


@given(st.lists(credits(), max_size=5), lows)
def test_the_value_lies_below_what_it_might_come_to(found, speed):
    innovation = Innovation(tuple(found), score(speed))
    assert innovation.value <= innovation.high


# ---------------------------------------------------------------- single numbers


def test_nothing_declared_or_nothing_shown_is_one():
    assert Innovation((), FAST).value == 1
    assert Innovation((Credit("a", None, 3, 3, True),), FAST).value == 1
    assert Innovation((Credit("a", score(0.7), 3, 3, True),), FAST).value == 1


def test_a_technique_that_only_one_team_has_counts_whole():
    credit = Credit("a", score(1.5), 4, 4, False)
    assert math.exp(credit.value) == pytest.approx(1.5)
    assert Credit("a", score(1.5), 4, 0, False).rarity == pytest.approx(1 / 5)


def test_a_part_that_is_slow_on_purpose_earns_nothing():
    """The entry without it is ten times slower, but the whole is as fast as the reference."""
    found = Innovation((Credit("a", score(10.0), 0, 0, False),), Score(1.0, 0.99, 1.01, n=10))
    assert found.value == 1
    assert found.is_capped


def test_splitting_a_technique_in_two_does_not_count_twice():
    both = tuple(Credit(name, score(3.0), 0, 0, False) for name in "ab")
    found = Innovation(both, score(3.0))
    assert found.value == pytest.approx(3.0)
    assert found.is_capped
    elsewhere = tuple(Credit(name, score(3.0), 0, 0, True) for name in "ab")
    assert Innovation(elsewhere, score(3.0)).value == pytest.approx(3.0**BONUS)


def test_composite_is_seventy_and_thirty_and_so_are_its_bounds():
    """Innovation is a lower bound itself; what it might come to belongs to the upper one."""
    speed = Score(2.0, 1.8, 2.2, n=10)
    found = composite_of(
        speed, Innovation((Credit("a", Score(1.6, 1.5, 1.7, n=10), 0, 0, False),), speed)
    )
    assert (found.value, found.low, found.high) == pytest.approx((1.85, 1.71, 2.05))


# ---------------------------------------------------------------- who counts


def test_others_are_teams_with_a_verified_entry_in_the_event():
    mine = run(team="Ada", contributions={"int8-dynamic": 1.9})
    others = [
        run(team="B", techniques=("int8-dynamic",), seed=1),
        run(team="C", techniques=("fused-layers",), seed=2),
        run(team="C", techniques=(), seed=3, tier=0.999),  # the same team
        run(team="D", techniques=(), seed=4, status="unverified"),
        run(team="E", techniques=(), seed=5, event="cnn_marathon"),
    ]
    (credit,) = of_team("Ada", mine, *others).credits
    assert (credit.others, credit.without_it) == (2, 1)


def test_another_name_for_the_same_transform_is_not_rare():
    renamed = Technique("my-magic", (("Quantize", {"bits": 8}),))
    mine = run(2.0, team="Ada", techniques=(renamed,), contributions={"my-magic": 1.9})
    (credit,) = of_team("Ada", mine, run(team="B", techniques=("int8-dynamic",))).credits
    assert (credit.others, credit.without_it) == (1, 0)


@pytest.mark.parametrize(
    "transforms", [["Quantize", "Quantize"], ["Quantize", "SparseLayers"]], ids=["twice", "bundle"]
)
def test_a_common_transform_is_not_rare_in_company(transforms):
    bundle = Technique("my-magic", tuple((name, {}) for name in transforms))
    mine = run(2.0, team="Ada", techniques=(bundle,), contributions={"my-magic": 1.9})
    (credit,) = of_team("Ada", mine, run(team="B", techniques=("int8-dynamic",))).credits
    assert (credit.others, credit.without_it) == (1, 0)


def test_a_technique_of_code_is_told_by_its_name():
    mine = run(2.0, team="Ada", techniques=("own-loop",), contributions={"own-loop": 1.9})
    (credit,) = of_team("Ada", mine, run(team="B", techniques=("other-loop",))).credits
    assert credit.without_it == 1


@pytest.mark.parametrize(("elsewhere", "expected"), [(1.3, True), (0.9, False), (None, False)])
def test_the_bonus_needs_a_second_event_in_which_it_is_shown_to_help(elsewhere, expected):
    mine = run(2.0, team="Ada", contributions={"int8-dynamic": 1.9})
    shown = {} if elsewhere is None else {"int8-dynamic": elsewhere}
    second = run(1.5, team="Ada", event="cnn_marathon", contributions=shown, seed=7)
    found = {each.helps_elsewhere for each in of_team("Ada", mine, second).credits}
    assert found == {expected}


def test_what_is_told_does_not_make_a_bonus_for_what_is_verified():
    mine = run(2.0, team="Ada", contributions={"int8-dynamic": 1.9})
    told = run(
        1.5,
        team="Ada",
        event="cnn_marathon",
        contributions={"int8-dynamic": 1.9},
        status="unverified",
    )
    current = gather_standings([mine, told]).current
    verified = next(each for each in current if each.is_verified)
    assert not innovation_of(verified, current).credits[0].helps_elsewhere


def test_what_the_credits_come_to_without_the_cap_can_be_told():
    found = Innovation((Credit("a", score(3.0), 0, 0, False),), score(1.0))
    assert (found.value, found.uncapped) == pytest.approx((1.0, 3.0))
