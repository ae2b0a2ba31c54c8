import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.benchmarking.scenarios import (
    MEETS,
    RESOLUTION,
    VIOLATES,
    Tried,
    found_rate,
    next_rate,
    verdict_limits,
)
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.measure.samples import Samples


def search(verdict_at, first=1.0):
    """Search with a verdict for each rate, and give what was tried."""
    tried = []
    while (rate := next_rate(tried, first)) is not None:
        tried.append(Tried(rate, verdict_at(rate, tried)))
    return tried


@given(st.floats(1e-3, 1e5))
def test_the_limit_is_found_from_anywhere(limit):
    tried = search(lambda rate, _: MEETS if rate <= limit else VIOLATES)
    rate, too_high, is_confirmed = found_rate(tried)
    assert rate <= limit < too_high <= RESOLUTION * rate * (1 + 1e-12)
    assert is_confirmed


def test_it_doubles_then_halves_the_distance_then_tries_again():
    tried = search(lambda rate, _: MEETS if rate <= 3 else VIOLATES)
    rates = [each.rate for each in tried]
    assert rates[:4] == [1, 2, 4, math.sqrt(8)]
    assert rates[-1] == found_rate(tried)[0]
    assert rates.count(rates[-1]) == 2


def test_a_lucky_rate_is_not_believed():
    def lucky_once(rate, tried):
        if rate == 2 and not any(each.rate == 2 for each in tried):
            return MEETS
        return MEETS if rate <= 1 else VIOLATES

    rate, too_high, _ = found_rate(search(lucky_once))
    assert rate < 2
    assert too_high < 2


def test_not_shown_is_not_met():
    tried = search(lambda rate, _: MEETS if rate <= 3 else INCONCLUSIVE)
    assert found_rate(tried)[0] <= 3


def test_what_never_meets_the_bound_has_no_rate():
    tried = search(lambda rate, _: VIOLATES)
    assert found_rate(tried)[0] is None
    assert len(tried) < 20


def test_what_always_meets_it_ends_too():
    tried = search(lambda rate, _: MEETS)
    rate, too_high, _ = found_rate(tried)
    assert (rate, too_high) == (max(each.rate for each in tried), None)


@given(st.randoms(use_true_random=False))
def test_the_search_ends_whatever_happens(random):
    tried = search(lambda rate, _: random.choice([MEETS, VIOLATES, INCONCLUSIVE]))
    rate, too_high, _ = found_rate(tried)
    assert len(tried) <= 40
    assert rate is None or too_high is None or rate < too_high


@pytest.mark.parametrize(
    ("queries", "percentile"), [(5, 50), (36, 90), (200, 99), (368, 99), (1000, 99), (1000, 50)]
)
def test_limits_are_those_of_the_interval_of_the_percentile(queries, percentile):
    meets, violates = verdict_limits(queries, percentile)
    bound = 1.0
    for late in range(queries + 1):
        values = (0.5,) * (queries - late) + (2.0,) * late
        interval = Samples("x", values).percentile_interval(percentile)
        assert (interval.high <= bound) == (late <= meets)
        assert (interval.low > bound) == (late >= violates)


def test_a_rate_at_the_bound_is_seldom_called_met_or_violated():
    binom = require_part("scipy.stats").binom
    for queries in (400, 736, 2000):
        meets, violates = verdict_limits(queries, 99)
        # Exactly one percent is late: each of the two is wrong in at most 2.5% of the cases.
        assert binom.cdf(meets, queries, 0.01) <= 0.025
        assert binom.sf(violates - 1, queries, 0.01) <= 0.025
