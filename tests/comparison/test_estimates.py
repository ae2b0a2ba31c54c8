import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.measure import interleaving as estimates
from tinytorch.measure.interleaving import hodges_lehmann, signed_rank_interval

stats = require_part("scipy.stats")

ALPHAS = st.sampled_from([0.3, 0.1, 0.05, 0.01, 0.002])
# On a grid, so that shifting, scaling and averaging pairs is exact.
GRID = st.integers(-1000, 1000).map(lambda number: number / 8)
VALUES = st.lists(GRID, min_size=1, max_size=30)


# ---------------------------------------------------------------- oracles


@given(VALUES)
def test_the_estimate_is_the_median_of_all_pair_means(values):
    n = len(values)
    means = [(values[i] + values[j]) / 2 for i in range(n) for j in range(i, n)]
    assert hodges_lehmann(values) == np.median(means)


def is_rejected(values, centre, alpha):
    return stats.wilcoxon(np.asarray(values) - centre, method="exact").pvalue <= alpha


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01])
@pytest.mark.parametrize("count", [6, 9, 14])
def test_signed_ranks_keep_what_wilcoxon_does_not_reject(count, alpha, rng):
    values = rng.standard_normal(count)
    low, high = signed_rank_interval(values, alpha)
    means = np.unique((values[:, None] + values[None, :]) / 2)
    # The test changes its mind only at pair means, so between two of them one point is enough.
    points = np.concatenate([[means[0] - 1], (means[1:] + means[:-1]) / 2, [means[-1] + 1]])
    for point in points:
        assert (low < point < high) == (not is_rejected(values, point, alpha))


@given(st.integers(1, 40), ALPHAS)
def test_too_few_values_exclude_nothing_and_no_more_are_too_few(count, alpha):
    # All values on one side of the centre: by chance in 2 of 2**count cases.
    are_too_few = 2 / 2**count > alpha
    low, high = signed_rank_interval(np.arange(count), alpha)
    assert math.isinf(low) == math.isinf(high) == are_too_few


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.005])
def test_many_values_are_judged_as_the_exact_distribution_would(alpha, monkeypatch):
    count = estimates.LARGEST_EXACT + 100
    normal = estimates._signed_rank_cut.__wrapped__(count, alpha)
    monkeypatch.setattr(estimates, "LARGEST_EXACT", count)
    exact = estimates._signed_rank_cut.__wrapped__(count, alpha)
    # A fortieth of the standard deviation of the sum of ranks moves no end noticeably.
    spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    assert abs(normal - exact) < spread / 40


# ---------------------------------------------------------------- properties


@given(VALUES, ALPHAS, st.integers(-500, 500), st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_shifted_and_scaled_values_have_shifted_and_scaled_intervals(values, alpha, shift, scale):
    moved = [scale * (value + shift) for value in values]
    assert hodges_lehmann(moved) == scale * (hodges_lehmann(values) + shift)
    low, high = signed_rank_interval(values, alpha)
    assert signed_rank_interval(moved, alpha) == (scale * (low + shift), scale * (high + shift))


@given(VALUES, ALPHAS)
def test_swapping_the_sides_mirrors_the_interval(values, alpha):
    mirrored = [-value for value in values]
    assert hodges_lehmann(mirrored) == -hodges_lehmann(values)
    low, high = signed_rank_interval(values, alpha)
    assert signed_rank_interval(mirrored, alpha) == (-high, -low)


@given(VALUES, ALPHAS, st.randoms(use_true_random=False))
def test_the_order_of_the_values_does_not_matter(values, alpha, random):
    shuffled = random.sample(values, len(values))
    assert hodges_lehmann(shuffled) == hodges_lehmann(values)
    assert signed_rank_interval(shuffled, alpha) == signed_rank_interval(values, alpha)


@given(VALUES, ALPHAS)
def test_an_interval_contains_its_estimate(values, alpha):
    low, high = signed_rank_interval(values, alpha)
    assert low <= hodges_lehmann(values) <= high


@given(VALUES, ALPHAS, ALPHAS)
def test_a_smaller_error_gives_an_interval_around_the_other(values, one, other):
    wide, narrow = (
        signed_rank_interval(values, min(one, other)),
        signed_rank_interval(values, max(one, other)),
    )
    assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]


# ---------------------------------------------------------------- coverage

SHAPES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy": lambda rng, n: rng.standard_t(2, n),
    "two humps": lambda rng, n: rng.choice([-1.0, 1.0], n) + rng.normal(0, 0.1, n),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_miss_no_more_often_than_they_may(shape, rng):
    trials, alpha = 300, 0.05
    missed = 0
    for count in rng.integers(7, 40, trials):
        low, high = signed_rank_interval(SHAPES[shape](rng, int(count)), alpha)
        missed += not low <= 0 <= high
    # Of 300 trials that miss with 5% each, so many come up in one of a million runs.
    assert missed <= stats.binom.isf(1e-6, trials, alpha)


def test_beyond_the_exact_distribution_intervals_hold_too(rng):
    trials, alpha, missed = 60, 0.05, 0
    for _ in range(trials):
        low, high = signed_rank_interval(rng.standard_t(3, estimates.LARGEST_EXACT + 1), alpha)
        missed += not low <= 0 <= high
    assert missed <= stats.binom.isf(1e-6, trials, alpha)
