"""Choosing tokens: greedy, by temperature, among the first k, among the likeliest share p."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.core.generation import Sampler
from tinytorch.errors import SettingError

LOGITS = st.lists(st.floats(-20, 20), min_size=1, max_size=12).map(lambda row: np.array([row]))


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def test_at_temperature_zero_the_likeliest_is_chosen(rng):
    logits = rng.standard_normal((50, 9))
    np.testing.assert_array_equal(Sampler().choose(logits, rng), logits.argmax(axis=-1))


def test_among_the_first_one_the_likeliest_is_chosen(rng):
    logits = rng.standard_normal((50, 9))
    for sampler in (Sampler(1.0, top_k=1), Sampler(5.0, top_p=1e-9), Sampler(1e-6)):
        np.testing.assert_array_equal(sampler.choose(logits, rng), logits.argmax(axis=-1))


@given(LOGITS, st.floats(0.1, 5))
def test_probabilities_are_the_softmax_at_this_temperature(logits, temperature):
    found = Sampler(temperature).probabilities(logits)
    # Both divide and exponentiate in float64.
    np.testing.assert_allclose(found, softmax(logits / temperature), rtol=1e-12)


@given(LOGITS, st.integers(1, 15))
def test_top_k_keeps_the_k_likeliest_and_their_proportions(logits, k):
    found = Sampler(1.0, top_k=k).probabilities(logits)[0]
    smallest_kept = np.sort(logits[0])[::-1][min(k, logits.size) - 1]
    kept = logits[0] >= smallest_kept
    assert kept.sum() >= min(k, logits.size)
    np.testing.assert_array_equal(found > 0, kept)
    np.testing.assert_allclose(found[kept], softmax(logits[0][kept]), rtol=1e-12)


@given(LOGITS, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits, p):
    before = softmax(logits)[0]
    found = Sampler(1.0, top_p=p).probabilities(logits)[0]
    kept = found > 0
    rounding = 1e-12  # of a sum of twelve numbers below one
    assert before[kept].sum() >= p - rounding
    assert before[kept].sum() - before[kept].min() < p + rounding
    assert before[kept].min() >= before[~kept].max(initial=0)
    np.testing.assert_allclose(found[kept], before[kept] / before[kept].sum(), rtol=1e-9)


def test_top_p_that_is_reached_exactly_keeps_nothing_more():
    # In binary these probabilities and their sums are exact.
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]]))
    exact = Sampler(1.0, top_p=0.75).probabilities(logits)
    np.testing.assert_allclose(exact, [[2 / 3, 1 / 3, 0, 0]], rtol=1e-12)


def test_top_k_comes_before_top_p():
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]]))
    # Of the first two, renormalised to 4/7 and 3/7, the first alone reaches one half.
    found = Sampler(1.0, top_k=2, top_p=0.5).probabilities(logits)
    np.testing.assert_allclose(found, [[1, 0, 0, 0]])


@pytest.mark.parametrize(
    "sampler", [Sampler(1.0), Sampler(0.5), Sampler(2.0, top_k=4), Sampler(1.0, top_p=0.8)]
)
def test_frequencies_match_the_probabilities(sampler):
    stats = require_part("scipy.stats")
    logits = np.array([[0.3, -1.0, 2.0, 0.0, 1.5, -0.5]], np.float32)
    count = 20_000
    draws = sampler.choose(np.repeat(logits, count, axis=0), np.random.default_rng(0))
    expected = sampler.probabilities(logits)[0] * count
    observed = np.bincount(draws, minlength=logits.size)
    assert not observed[expected == 0].any()
    possible = expected > 0
    # The seed is fixed; a fair sampler falls below this once in a thousand seeds.
    assert stats.chisquare(observed[possible], expected[possible]).pvalue > 1e-3


def test_rows_are_drawn_independently():
    logits = np.zeros((1000, 2))
    draws = Sampler(1.0).choose(logits, np.random.default_rng(0))
    # Five standard deviations of a fair coin that is thrown a thousand times.
    assert abs(draws.mean() - 0.5) < 5 * 0.5 / np.sqrt(1000)


def test_impossible_tokens_are_never_drawn(rng):
    logits = np.array([[-np.inf, 0.0, -np.inf, 0.0, -np.inf]])
    draws = Sampler(3.0).choose(np.repeat(logits, 500, axis=0), rng)
    assert set(draws.tolist()) == {1, 3}


def test_logits_are_left_alone(rng):
    logits = rng.standard_normal((2, 5)).astype(np.float32)
    kept = logits.copy()
    Sampler(0.7, top_k=3, top_p=0.5).choose(logits, rng)
    np.testing.assert_array_equal(logits, kept)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature must be at least 0, got -1.0"),
        ({"temperature": float("nan")}, "temperature must be at least 0, got nan"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.5}, r"top_p must be in \(0, 1\], got 1.5"),
    ],
)
def test_a_bad_setting_is_an_error_that_shows_it(settings, message):
    with pytest.raises(SettingError, match=message):
        Sampler(**settings)


def test_a_tiny_temperature_takes_the_likeliest():
    logits = np.array([[0.0, 3.0, 1.0]])
    assert Sampler(1e-320).choose(logits, np.random.default_rng(0)) == [1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(temperature):
    with pytest.raises(SettingError, match="the logits hold NaN"):
        Sampler(temperature).choose(np.array([[0.0, np.nan]]), np.random.default_rng(0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_one_row_that_is_no_choice_is_an_error_wherever_it_stands(temperature, wrong, rng):
    logits = rng.standard_normal((4, 7))
    logits[2, 5] = wrong
    with pytest.raises(SettingError, match="so no token can be chosen; check the weights"):
        Sampler(temperature).choose(logits, rng)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_possible_token_is_an_error(temperature, rng):
    with pytest.raises(SettingError, match="the largest logit is -inf, so no token can be chosen"):
        Sampler(temperature).choose(np.full((1, 5), -np.inf), rng)
