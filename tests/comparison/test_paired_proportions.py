import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.comparison.accuracy import (
    _lost_share,
    paired_difference_bounds,
    untouched_share_bound,
)
from tinytorch.errors import SettingError

stats = require_part("scipy.stats")
optimize = require_part("scipy.optimize")


@st.composite
def tables(draw, most=200):
    count = draw(st.integers(1, most))
    gained = draw(st.integers(0, count))
    return gained, draw(st.integers(0, count - gained)), count


@given(tables())
def test_the_bounds_lie_around_what_was_observed(table):
    gained, lost, count = table
    low, high = paired_difference_bounds(gained, lost, count)
    assert -1 <= low <= (gained - lost) / count <= high <= 1
    assert low < high


@given(tables())
def test_the_two_sides_can_change_places(table):
    gained, lost, count = table
    low, high = paired_difference_bounds(gained, lost, count)
    assert paired_difference_bounds(lost, gained, count) == (-high, -low)


@given(tables())
def test_more_confidence_is_never_narrower(table):
    low, high = paired_difference_bounds(*table, confidence=0.9)
    lower, higher = paired_difference_bounds(*table, confidence=0.99)
    assert lower <= low
    assert high <= higher


@given(tables(60))
def test_another_gain_never_lowers_the_bound(table):
    gained, lost, count = table
    better = paired_difference_bounds(gained + 1, lost, count + 1)[0]
    assert better >= paired_difference_bounds(gained, lost, count + 1)[0]


@given(tables(50), st.floats(-0.9, 0.9))
def test_the_share_of_losses_is_the_most_likely_one(table, difference):
    gained, lost, count = table
    kept = count - gained - lost

    def unlikeliness(share):
        parts = ((gained, share + difference), (lost, share), (kept, 1 - difference - 2 * share))
        terms = [n * math.log(max(p, 1e-300)) for n, p in parts if n]
        return -sum(terms)

    low, high = max(0.0, -difference), (1 - difference) / 2
    best = optimize.minimize_scalar(unlikeliness, bounds=(low, high), method="bounded")
    found = _lost_share(gained, lost, count, difference)
    assert low - 1e-9 <= found <= high + 1e-9
    # The search stops 1e-5 before the best place, where the likelihood is flat.
    assert unlikeliness(found) <= best.fun + 1e-6 * max(1, abs(best.fun))


def test_agreement_on_every_example_proves_only_what_their_number_allows():
    low, high = paired_difference_bounds(0, 0, 298)
    assert low < -0.01
    assert high == -low
    # 0.99 ** 299 is below 5%: a difference of 1% would have shown up.
    assert paired_difference_bounds(0, 0, 299)[0] > -0.01


@pytest.mark.parametrize("count", [1, 7, 300])
def test_what_never_turned_up_has_the_bound_of_clopper_and_pearson(count):
    expected = stats.binomtest(0, count, alternative="less").proportion_ci(0.95).high
    assert untouched_share_bound(count, 0.95) == pytest.approx(expected, rel=1e-9)


def chance_of_not_worse(count, margin, discordance):
    """Give how often a candidate that is worse by exactly the margin is called not worse.

    It is the sum over every table that may come up, so no luck is involved.
    """
    lost_share = (discordance + margin) / 2
    most = math.ceil(min(count, count * discordance + 8 * math.sqrt(count * discordance) + 8))
    total = 0.0
    for lost in range(most + 1):
        gained = np.arange(most + 1 - lost)
        bound = np.array([paired_difference_bounds(int(g), lost, count)[0] for g in gained])
        differing = gained + lost
        chance = stats.binom.pmf(differing, count, discordance) * stats.binom.pmf(
            lost, differing, lost_share / discordance
        )
        total += chance[bound > -margin].sum()
    return total


@pytest.mark.parametrize("discordance", [1.001, 1.5, 4.0])
@pytest.mark.parametrize("margin", [0.01, 0.03])
@pytest.mark.parametrize("count", [30, 100, 269, 300])
def test_a_candidate_that_is_worse_by_the_margin_passes_in_at_most_a_twentieth(
    count, margin, discordance
):
    assert chance_of_not_worse(count, margin, margin * discordance) <= 0.05


def test_the_bound_is_not_wastefully_far_away():
    # The exact test of McNemar with 5 of 5 on one side has p = 1/32.
    assert paired_difference_bounds(5, 0, 1000)[0] > 0
    # Without the correction it is 4.9% for many examples; the correction costs a little.
    assert chance_of_not_worse(300, 0.03, 0.12) > 0.035


@pytest.mark.parametrize("table", [(-1, 0, 5), (0, -1, 5), (3, 3, 5), (0, 0, 0)])
def test_counts_that_cannot_be_are_refused(table):
    with pytest.raises(SettingError, match="that cannot be"):
        paired_difference_bounds(*table)


@pytest.mark.parametrize("confidence", [0.5, 1.0, math.nan])
def test_a_confidence_that_nobody_can_have_is_refused(confidence):
    with pytest.raises(SettingError, match="confidence="):
        paired_difference_bounds(0, 0, 5, confidence=confidence)
