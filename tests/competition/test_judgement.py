"""The score of a judgement."""

import math

import numpy as np
import pytest
from example_legs import an_entry
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.competition.judgement import Heat, Judgement, Score, score_of
from tinytorch.competition.rules import finding

P90 = "p90 latency"
TIMES = st.floats(1e-6, 1.0)


def heats(ratio, *, count=10, seed=0):
    noise = np.exp(0.01 * np.random.default_rng(seed).standard_normal(count))
    return tuple(
        Heat({P90: ratio * 1e-5 * float(each), "peak memory": 2e6}, {P90: 1e-5, "peak memory": 1e6})
        for each in noise
    )


def test_three_times_as_fast_scores_three():
    score = score_of(heats(3.0), [P90])
    assert score.value == pytest.approx(3.0, rel=0.01)
    assert score.low < 3.0 < score.high
    assert score.verdict == "faster"


@given(st.lists(st.tuples(TIMES, TIMES), min_size=6, max_size=12), st.floats(0.01, 100))
def test_a_faster_machine_scores_the_same(pairs, machine):
    def scored(factor):
        return score_of([Heat({P90: factor * a}, {P90: factor * b}) for a, b in pairs], [P90])

    here, there = scored(1.0), scored(machine)
    assert math.isclose(here.value, there.value, rel_tol=1e-9)
    assert math.isclose(here.low, there.low, rel_tol=1e-9)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=6, max_size=12))
def test_the_other_way_round_is_the_inverse(pairs):
    ahead = score_of([Heat({P90: a}, {P90: b}) for a, b in pairs], [P90])
    back = score_of([Heat({P90: b}, {P90: a}) for a, b in pairs], [P90])
    assert math.isclose(ahead.value, 1 / back.value, rel_tol=1e-9)
    assert math.isclose(ahead.low, 1 / back.high, rel_tol=1e-9)


def test_several_measures_count_by_their_geometric_mean():
    score = score_of([Heat({"a": 4.0, "b": 1.0}, {"a": 1.0, "b": 1.0})] * 6, ["a", "b"])
    assert score.value == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.03, 1.1, "faster"),
        (1.01, 1.2, "inconclusive"),
        (0.5, 0.9, "slower"),
        (0.99, 1.01, "same"),
    ],
)
def test_faster_needs_two_percent(low, high, verdict):
    assert Score((low + high) / 2, low, high, n=10).verdict == verdict


def judgement(**changes):
    fields = {"entry": an_entry(), "heats": heats(2.0), "accuracy": None, "findings": ()}
    return Judgement(**{**fields, **changes})


def test_memory_stands_beside_the_sprint_and_does_not_count():
    judged = judgement()
    assert judged.score.value == pytest.approx(2.0, rel=0.02)
    assert score_of(judged.heats, ["peak memory"]).value == pytest.approx(2.0)
    assert judged.event.scored == (P90,)


def test_too_few_heats_give_no_score():
    judged = judgement(heats=heats(2.0, count=5))
    assert judged.score is None
    assert not judged.is_valid


def test_a_fatal_finding_makes_it_invalid():
    assert judgement().is_valid
    assert not judgement(findings=(finding("A2", "lost"),)).is_valid
    assert judgement(findings=(finding("W2", "busy"),)).is_valid


def test_a_heat_without_a_ratio_gives_no_score():
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        assert score_of([*heats(2.0), Heat({P90: 1.0}, {P90: wrong})], [P90]) is None
    assert score_of(heats(2.0), []) is None
    assert score_of(heats(2.0), ["unknown"]) is None
