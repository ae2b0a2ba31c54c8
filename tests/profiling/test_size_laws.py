import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.profiling.size_laws import exact_polynomial, fit_law, tail_power_law

SIZES = (4, 6, 8, 12, 16, 24, 32)
coefficients = st.integers(0, 10**12)

# ---------------------------------------------------------------- counts


@given(coefficients, coefficients, st.integers(1, 10**12), st.integers(33, 10**6))
def test_a_polynomial_of_counts_is_found_to_the_last_digit(a, b, c, at):
    law = exact_polynomial(SIZES, [a + b * n + c * n * n for n in SIZES], at=at)
    assert law.is_exact
    truth = a + b * at + c * at * at
    assert law.interval.low == law.interval.high == float(truth)
    assert law.value(at) == pytest.approx(truth)


def test_the_formula_can_be_read():
    law = exact_polynomial(SIZES, [1000 + 5 * n + 2 * n * n for n in SIZES], at=64, constant=900)
    assert law.formula == "1,000 + 5 n + 2 n^2"
    assert law.value(64) == 100 + 5 * 64 + 2 * 64**2  # without the constant


@pytest.mark.parametrize(
    ("law", "formula"),
    [
        (lambda n: 7 * n, "7 n"),
        (lambda n: 9, "9"),
        (lambda n: 2000 * n - 1500, "-1,500 + 2,000 n"),
        (lambda n: n * (n + 1) // 2, "1/2 n + 1/2 n^2"),
    ],
)
def test_formulas_have_only_the_terms_that_there_are(law, formula):
    assert exact_polynomial(SIZES, [law(n) for n in SIZES], at=64).formula == formula


def test_one_count_that_is_off_by_one_is_not_exact():
    counts = [5 * n + 2 * n * n for n in SIZES]
    counts[3] += 1
    assert exact_polynomial(SIZES, counts, at=64) is None


def test_cubes_are_no_polynomial_of_degree_two():
    assert exact_polynomial(SIZES, [n**3 for n in SIZES], at=64) is None


def test_a_size_must_be_left_to_confirm_the_polynomial():
    counts = [3 + 5 * n + 2 * n * n for n in SIZES]
    assert exact_polynomial(SIZES[:3], counts[:3], at=64) is None
    assert exact_polynomial(SIZES[:4], counts[:4], at=64) is not None
    assert exact_polynomial((2, 4), [4, 8], at=64) is None


def test_the_exponent_of_counts_is_that_at_the_largest_size():
    law = exact_polynomial(SIZES, [100 * n + n * n for n in SIZES], at=64)
    assert law.exponent == pytest.approx((100 * 32 + 2 * 32**2) / (100 * 32 + 32**2))


def test_counts_that_bend_are_fitted_where_they_are_a_power_law():
    sizes = (1, 2, 4, 64, 128, 256)
    law = tail_power_law(sizes, [1.0 + 0.1 * n for n in sizes], at=512)
    assert law.fitted == (64, 128, 256)
    assert "1, 2, 4 not in the fit" in law.notes[0]
    assert law.interval.low < law.value(512) < law.interval.high


def test_at_least_three_sizes_stay():
    assert len(tail_power_law((1, 2, 4, 8), [1.0 + n**3 for n in (1, 2, 4, 8)], at=64).fitted) == 3


def test_two_counts_have_no_interval():
    assert tail_power_law((1, 2), [1.0, 2.0], at=64).interval is None


# ---------------------------------------------------------------- measurements


def test_a_power_law_is_found_exactly():
    law = fit_law(SIZES, [3e-6 * n**1.5 for n in SIZES], at=64)
    assert law.name == "power law"
    assert law.value(64) == pytest.approx(3e-6 * 64**1.5)
    assert law.exponent == pytest.approx(1.5)
    assert law.exponent_interval.high == pytest.approx(1.5)


def test_the_exponent_is_that_of_scipy():
    stats = require_part("scipy.stats")
    values = [n**2 * f for n, f in zip(SIZES, (1, 1.1, 0.9, 1, 1.05, 0.95, 1), strict=True)]
    law = fit_law(SIZES, values, at=64)
    assert law.name == "power law"
    slope = stats.linregress(np.log(SIZES), np.log(values)).slope
    assert law.exponent == pytest.approx(slope)


def test_fixed_costs_and_flops_are_told_from_a_power_law():
    flops = ((50.0, 1.0), (1.0, 2.0))
    law = fit_law(SIZES, [7.0 + 0.01 * (50 * n + n * n) for n in SIZES], at=64, work=flops)
    assert law.name == "fixed part + FLOPs"
    assert law.value(64) == pytest.approx(7 + 0.01 * (50 * 64 + 64**2))
    assert law.error < law.power_law_error
    growth = 0.01 * (50 * 32 + 2 * 32**2)
    assert law.exponent == pytest.approx(growth / (7 + 0.01 * (50 * 32 + 32**2)))


def test_fixed_costs_are_found_without_flops():
    law = fit_law(SIZES, [7.0 + 0.1 * n for n in SIZES], at=64)
    assert law.name == "fixed part + size"
    assert law.value(64) == pytest.approx(13.4)


def test_flops_that_do_not_explain_the_time_do_not_spoil_it():
    values = [100 + 10 * n + n * n / 4 for n in SIZES]
    law = fit_law(SIZES, values, at=64, work=((1.0, 1.0),))
    assert law.name == "fixed part + size + size^2"
    assert law.value(64) == pytest.approx(100 + 640 + 1024)


def test_no_law_has_a_negative_part():
    law = fit_law(SIZES, [n - 3.0 for n in SIZES], at=64)
    assert all(coefficient > 0 for coefficient, _ in law.terms)


def test_a_noisy_size_weighs_less():
    values = [float(n) for n in SIZES]
    values[-1] *= 3
    noise = [0.01] * 6 + [0.5]
    trusting = fit_law(SIZES, values, at=64)
    careful = fit_law(SIZES, values, at=64, noise=noise)
    assert abs(careful.value(64) - 64) < 1 < abs(trusting.value(64) - 64)


def test_the_interval_is_at_least_as_wide_as_the_noise():
    quiet = fit_law(SIZES, [float(n) for n in SIZES], at=64)
    noisy = fit_law(SIZES, [float(n) for n in SIZES], at=64, noise=[0.1] * 7)
    assert quiet.interval.high / quiet.interval.low == pytest.approx(1)
    assert noisy.interval.high / noisy.interval.low > math.exp(2 * 1.96 * 0.1)


def test_two_sizes_give_a_law_without_an_interval():
    law = fit_law((4, 8), [1.0, 2.0], at=64)
    assert law.value(64) == pytest.approx(16)
    assert (law.interval, law.exponent_interval, law.error) == (None, None, None)
    assert "no interval" in law.notes[0]


def test_far_away_is_said_to_be_far():
    assert "far from the measured sizes, 4 to 32" in fit_law(SIZES, SIZES, at=1000).notes[0]


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("flops", [None, ((7.0, 1.0),), ((30.0, 1.0), (1.0, 2.0))])
@pytest.mark.parametrize(
    "law",
    [
        lambda n: 16 + n,
        lambda n: 64 + n,
        lambda n: 1.0 * n * n,
        lambda n: 100 + 10 * n + n * n / 4,
        lambda n: 50 + n + n * n / 4,
    ],
    ids=["16+n", "64+n", "n^2", "100+10n+n^2/4", "50+n+n^2/4"],
)
def test_intervals_cover_what_comes_about_as_often_as_they_say(law, flops, noise, rng):
    trials, hits = 100, 0
    truth = np.array([law(n) for n in (*SIZES, 64)])
    for _ in range(trials):
        values = truth * np.exp(noise * rng.standard_normal(len(truth)))
        interval = fit_law(SIZES, values[:-1], at=64, work=flops).interval
        hits += interval.low <= values[-1] <= interval.high
    # At least 90%, less two standard errors of that share.
    assert hits / trials >= 0.9 - 2 * math.sqrt(0.9 * 0.1 / trials)
