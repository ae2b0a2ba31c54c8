"""How much accuracy a tier asks for, and whether it is kept."""

import math

import numpy as np
import pytest

from tinytorch.competition.events import (
    KEPT,
    LOST,
    TIERS,
    compare_in_tier,
    find_event,
    tier_margin,
    tier_verdict,
)
from tinytorch.measure.estimate import INCONCLUSIVE

SPRINT, DECATHLON = find_event("mlp_sprint"), find_event("transformer_decathlon")


def verdict(event, tier, ours, theirs):
    return tier_verdict(compare_in_tier(event, tier, np.asarray(ours), np.asarray(theirs)))


def texts(rng, count=1000):
    return rng.normal(-1.2, 0.3, count)


def test_margins_are_shares_of_the_reference():
    assert [tier_margin(SPRINT, tier, 0.976) for tier in TIERS] == pytest.approx(
        [0.00976, 0.000976]
    )
    # A perplexity of 1 / 0.99 of the reference's.
    assert tier_margin(DECATHLON, 0.99, -1.2) == pytest.approx(math.log(1 / 0.99))


@pytest.mark.parametrize("tier", TIERS)
def test_the_same_answers_keep_every_tier(rng, tier):
    scores = texts(rng)
    assert verdict(DECATHLON, tier, scores, scores) == KEPT
    assert verdict(DECATHLON, tier, scores, scores + 1e-8 * rng.standard_normal(1000)) == KEPT


def test_answers_that_all_get_a_little_worse_do_not_keep_the_sharper_tier(rng):
    scores = texts(rng)
    assert verdict(DECATHLON, 0.999, scores, scores - 0.002) != KEPT


def test_small_changes_to_and_fro_are_kept(rng):
    scores = texts(rng)
    assert verdict(DECATHLON, 0.999, scores, scores + 0.001 * rng.standard_normal(1000)) == KEPT


def test_twenty_thousand_images_decide_the_sharper_tier():
    right = np.ones(20_000)
    changed = right.copy()
    changed[:5] = 0
    assert verdict(SPRINT, 0.999, right, changed) == KEPT
    changed[:60] = 0
    assert verdict(SPRINT, 0.999, right, changed) == LOST


def test_few_digits_show_nothing_even_if_all_are_read_alike():
    assert verdict(SPRINT, 0.99, np.ones(200), np.ones(200)) == INCONCLUSIVE


def test_an_answer_that_has_no_score_loses(rng):
    scores = texts(rng)
    broken = scores.copy()
    broken[3] = np.nan
    assert verdict(DECATHLON, 0.99, scores, broken) == LOST
