import json
import math
import re
import sys
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from parts import require_part
from project_files import ROOT

from tinytorch.comparison.accuracy import (
    MOST_FREEDOM,
    NOT_WORSE,
    WORSE,
    AccuracyComparison,
    _bound_of_usual,
    _cube_root_less_one,
    _score,
    about_sample_size,
    compare_accuracy,
    examples_if_nothing_is_lost,
    paired_difference_bounds,
)
from tinytorch.errors import SettingError
from tinytorch.measure.estimate import INCONCLUSIVE

sys.path.insert(0, str(ROOT / "benchmarks"))

import accuracy_errors

stats = require_part("scipy.stats")

SCORES = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=2, max_size=40)


def shifted(baseline, rng, *, by, spread):
    return baseline + rng.normal(by, spread, len(baseline))


# ---------------------------------------------------------------- verdicts


def test_a_candidate_with_the_same_mean_is_not_worse(rng):
    baseline = rng.uniform(size=500)
    found = compare_accuracy(baseline, shifted(baseline, rng, by=0, spread=0.05))
    assert found.verdict == NOT_WORSE
    assert -0.01 < found.low < found.difference < found.high
    assert found.notes == ()


def test_a_candidate_that_lost_much_is_worse(rng):
    baseline = rng.uniform(size=500)
    found = compare_accuracy(baseline, shifted(baseline, rng, by=-0.1, spread=0.05))
    assert found.verdict == WORSE
    assert found.difference == pytest.approx(found.candidate_mean - found.baseline_mean)


def test_a_few_examples_show_nothing(rng):
    baseline = rng.integers(0, 2, 50)
    found = compare_accuracy(baseline, baseline)
    assert found.verdict == INCONCLUSIVE
    assert "50 examples" in found.notes[0]


def test_a_wider_margin_is_easier_to_meet(rng):
    baseline = rng.integers(0, 2, 50)
    assert compare_accuracy(baseline, baseline, margin=0.1).verdict == NOT_WORSE


def test_a_candidate_may_be_better_than_the_baseline(rng):
    baseline = rng.uniform(size=200)
    found = compare_accuracy(baseline, baseline + rng.uniform(0.1, 0.3, 200), margin=0)
    assert found.verdict == NOT_WORSE
    assert found.low > 0


@given(SCORES, st.integers(0, 2**32 - 1))
def test_exactly_one_verdict_follows_from_the_bounds(baseline, seed):
    candidate = np.random.default_rng(seed).permutation(baseline)
    found = compare_accuracy(baseline, candidate, margin=0.5)
    assert found.low <= found.difference <= found.high
    expected = NOT_WORSE if found.low > -0.5 else WORSE if found.high < -0.5 else INCONCLUSIVE
    assert found.verdict == expected


@given(SCORES, st.integers(0, 2**32 - 1))
@example([1.0, 1.0, 0.0, 0.0, 1e-12, 0.0], 243)  # next to no skewness, but for rounding
def test_the_order_of_the_examples_does_not_matter(baseline, seed):
    rng = np.random.default_rng(seed)
    candidate, order = rng.permutation(baseline), rng.permutation(len(baseline))
    one = compare_accuracy(baseline, candidate)
    other = compare_accuracy(np.array(baseline)[order], candidate[order])
    assert one.verdict == other.verdict
    # Sums of the same numbers in another order, up to 100 large.
    assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=1e-9)


# ---------------------------------------------------------------- scores of 0 and 1


def test_scores_of_zero_and_one_are_counted(rng):
    baseline = np.array([1] * 90 + [0] * 10)
    candidate = np.array([1] * 85 + [0] * 5 + [1] * 2 + [0] * 8)
    found = compare_accuracy(baseline, candidate)
    assert (found.gained, found.lost, found.is_binary) == (2, 5, True)
    assert found.difference == pytest.approx(-0.03)
    assert (found.low, found.high) == paired_difference_bounds(2, 5, 100)


def test_right_and_wrong_may_be_booleans():
    found = compare_accuracy([True, False] * 20, [True, True] * 20)
    assert (found.gained, found.lost, found.baseline_mean) == (20, 0, 0.5)


def test_a_constant_model_scores_what_a_constant_scores(rng):
    labels = rng.integers(0, 10, 2000)
    found = compare_accuracy(np.ones(2000), labels == 3)
    assert found.verdict == WORSE
    # Four standard errors of a share of 2000.
    assert found.candidate_mean == pytest.approx(0.1, abs=4 * math.sqrt(0.09 / 2000))


def test_other_scores_have_no_counts_of_right_and_wrong():
    found = compare_accuracy([0.5, 1.0], [0.5, 0.0])
    assert (found.gained, found.lost, found.is_binary) == (None, None, False)


# ---------------------------------------------------------------- other scores


def test_even_differences_get_the_interval_of_student():
    differences = np.array([-0.2, -0.1, 0.0, 0.1, 0.2] * 800)  # symmetric: no skewness to remove
    scores = np.linspace(2, 3, 4000)  # so many that no unseen one weighs
    found = compare_accuracy(scores, scores + differences)
    reach = stats.t.ppf(0.95, MOST_FREEDOM) * stats.sem(differences)
    assert found.high == pytest.approx(reach, rel=1e-6)
    assert found.low == pytest.approx(-reach, rel=1e-6)


def test_scores_that_never_differ_are_no_certainty():
    scores = np.linspace(0, 10, 50)
    found = compare_accuracy(scores, scores)
    # One example in fifty could have escaped, and lost up to the range of the scores.
    assert found.low == pytest.approx(-10 * (1 - 0.05 ** (1 / 50)))
    assert found.high == -found.low
    assert "unseen examples" in found.notes[0]


def test_one_constant_score_says_nothing_about_what_a_loss_would_be():
    found = compare_accuracy([0.4] * 9, [0.4] * 9)
    assert (found.low, found.high, found.verdict) == (-math.inf, math.inf, INCONCLUSIVE)


def test_one_example_shows_nothing():
    found = compare_accuracy([0.4], [0.5])
    assert (found.low, found.verdict) == (-math.inf, INCONCLUSIVE)
    assert "n=1" in found.notes[0]


def test_a_rare_large_loss_is_named():
    baseline = np.full(300, 0.5)
    candidate = baseline + np.linspace(-1e-4, 1e-4, 300)
    candidate[7] = -0.5
    found = compare_accuracy(baseline, candidate)
    assert found.verdict == INCONCLUSIVE  # Student's bound alone would be above -0.01
    assert "few of the 300 examples" in found.notes[0]


def test_few_examples_are_named():
    found = compare_accuracy([0.1, 0.2, 0.3, 0.4], [0.2, 0.1, 0.4, 0.3])
    assert "n=4" in found.notes[0]


def test_many_examples_are_no_trouble(rng):
    baseline = rng.uniform(size=200_000)
    found = compare_accuracy(baseline, shifted(baseline, rng, by=0, spread=0.1), margin=0.002)
    assert found.verdict == NOT_WORSE
    reach = stats.norm.ppf(0.95) * 0.1 / math.sqrt(200_000)
    assert found.difference - found.low == pytest.approx(reach, rel=0.01)


# ---------------------------------------------------------------- error rates

TRIALS = 2000
ALLOWED = stats.binom.ppf(0.9999, TRIALS, 0.05) / TRIALS
"""More than this share is seen in one of 10,000 runs of a rule that errs in 5%: about 6.9%."""

DIFFERENCES = {
    "normal": (100, lambda rng, n: rng.normal(-0.01, 0.05, n)),
    "a few": (10, lambda rng, n: rng.normal(-0.01, 0.05, n)),
    "skewed losses": (100, lambda rng, n: -rng.exponential(0.01, n)),
    "skewed gains": (100, lambda rng, n: rng.exponential(0.02, n) - 0.03),
    "rare losses": (250, lambda rng, n: np.where(rng.random(n) < 0.01, -0.999, -1e-5)),
    "heavy tails": (100, lambda rng, n: 0.02 * rng.standard_t(3, n) - 0.01),
    "2% lose a half": (100, lambda rng, n: rng.normal(0, 1e-3, n) - 0.5 * (rng.random(n) < 0.02)),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_candidate_that_is_worse_by_the_margin_passes_in_at_most_a_twentieth(rng, name):
    count, draw = DIFFERENCES[name]
    baseline = rng.uniform(size=count)
    passed = failed = 0
    for _ in range(TRIALS):
        verdict = compare_accuracy(baseline, baseline + draw(rng, count)).verdict
        passed += verdict == NOT_WORSE
        failed += verdict == WORSE
    assert passed / TRIALS <= ALLOWED
    assert failed / TRIALS <= ALLOWED


@pytest.mark.parametrize("count", [30, 300])
@pytest.mark.parametrize("name", accuracy_errors.DISTRIBUTIONS)
def test_rare_and_large_losses_pass_in_at_most_a_twentieth(name, count):
    errors = accuracy_errors.error_of(name, count, trials=400, seed=3)
    assert errors <= stats.binom.ppf(0.9999, 400, 0.05) / 400


def test_a_loss_beyond_what_any_test_could_see_is_counted():
    scores = np.linspace(0.6, 0.9, 298)
    differences = np.linspace(-1e-4, 1e-4, 298)
    unseen = 0.9 * (1 - 0.05 ** (1 / 298))  # as far as a score of 0.9 may fall
    found = compare_accuracy(scores, scores + differences, margin=0.01)
    assert found.low == pytest.approx(-unseen, rel=1e-3)
    assert found.verdict == NOT_WORSE
    assert compare_accuracy(scores[:200], (scores + differences)[:200]).verdict == INCONCLUSIVE


def test_right_and_wrong_at_the_margin_pass_in_at_most_a_twentieth(rng):
    passed = 0
    for _ in range(TRIALS):
        draws = rng.random(400)
        baseline, candidate = draws < 0.83, (draws < 0.80) | (draws > 0.98)  # 3% lost, 2% gained
        passed += compare_accuracy(baseline, candidate).verdict == NOT_WORSE
    assert passed / TRIALS <= ALLOWED


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_candidate_without_a_score_is_worse(rng, score):
    baseline = rng.uniform(size=100)
    candidate = baseline + 0.1
    candidate[17] = score
    found = compare_accuracy(baseline, candidate)
    assert found.verdict == WORSE
    assert found.failed == 1
    assert math.isnan(found.candidate_mean)
    assert "for example 17" in found.notes[0]


def test_a_candidate_that_never_has_a_score_is_worse():
    assert compare_accuracy([1, 0], [math.nan, math.nan]).verdict == WORSE


def test_a_baseline_without_a_score_is_refused():
    with pytest.raises(SettingError, match="baseline's score of example 1 is nan"):
        compare_accuracy([1, math.nan], [1, 1])


def test_scores_of_other_examples_are_refused():
    with pytest.raises(SettingError, match="2 scores of the baseline but 3 of the candidate"):
        compare_accuracy([1, 0], [1, 0, 1])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([], "has no scores"),
        ([[1, 0]], r"shape \(1, 2\)"),
        (0.93, r"shape \(\)"),
        (["right"], "are no numbers"),
        ([1, [0]], "are no numbers"),
    ],
)
def test_what_is_no_list_of_scores_is_refused(scores, message):
    with pytest.raises(SettingError, match=message):
        compare_accuracy([1, 0], scores)


def test_a_candidate_in_percent_is_refused():
    with pytest.raises(SettingError, match="is one of them in percent"):
        compare_accuracy([0.9, 0.8], [90, 80])


def test_a_baseline_in_percent_is_named():
    found = compare_accuracy([90, 80] * 20, [0.9, 0.8] * 20)
    assert found.verdict == WORSE
    assert "percent" in found.notes[-1]


def test_a_candidate_that_diverged_is_worse(rng):
    baseline = -rng.uniform(2, 3, 100)
    assert compare_accuracy(baseline, baseline * 1e9).verdict == WORSE


@pytest.mark.parametrize("margin", [-0.1, math.nan, math.inf])
def test_a_margin_that_makes_no_sense_is_refused(margin):
    with pytest.raises(SettingError, match="margin="):
        compare_accuracy([1], [1], margin=margin)


@pytest.mark.parametrize("confidence", [0.5, 1.0, math.nan])
def test_a_confidence_that_nobody_can_have_is_refused(confidence):
    with pytest.raises(SettingError, match="confidence="):
        compare_accuracy([1], [1], confidence=confidence)


# ---------------------------------------------------------------- storing


def test_a_comparison_survives_json():
    found = compare_accuracy([1, 0.5], [0.5, 0.25], margin=0.1, confidence=0.9, metric="F1")
    assert AccuracyComparison.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_failed_comparison_survives_strict_json():
    found = compare_accuracy([1, 1, 1], [math.nan, math.inf, 0])
    text = json.dumps(found.to_dict(), allow_nan=False)
    again = AccuracyComparison.from_dict(json.loads(text))
    assert again.verdict == WORSE
    assert again.to_dict() == found.to_dict()


def test_right_and_wrong_are_two_objects_for_all_examples():
    found = compare_accuracy([1, 0, 1, 0] * 100, [True, False] * 200)
    assert found.baseline_scores == found.candidate_scores == (1.0, 0.0) * 200
    assert len({id(score) for score in found.baseline_scores + found.candidate_scores}) == 2


# ---------------------------------------------------------------- how many examples would decide


def binary(lost, gained, count):
    """Return scores of 0 and 1 in which so many examples are lost and gained."""
    baseline, candidate = np.ones(count), np.ones(count)
    candidate[:lost], baseline[lost : lost + gained] = 0, 0
    return baseline, candidate


@pytest.mark.parametrize("margin", [0.001, 0.005, 0.01, 0.02, 0.1, 0.5])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_nothing_lost_needs_the_fewest_examples_whose_bound_is_within_the_margin(
    margin, confidence
):
    needed = examples_if_nothing_is_lost(margin, confidence=confidence)
    for count, is_enough in ((needed - 1, False), (needed, True)):
        low, _ = paired_difference_bounds(0, 0, count, confidence=confidence)
        assert (low > -margin) is is_enough


def test_a_margin_of_one_percent_needs_299_examples():
    assert examples_if_nothing_is_lost(0.01) == 299
    assert examples_if_nothing_is_lost(0.0) is None
    assert compare_accuracy(*binary(0, 0, 168)).examples_needed == 299


@given(
    lost=st.integers(0, 6),
    gained=st.integers(0, 6),
    count=st.integers(12, 300),
    more=st.integers(2, 9),
)
def test_the_needed_examples_decide_if_the_observed_rates_continue(lost, gained, count, more):
    found = compare_accuracy(*binary(lost, gained, count))
    repeated = compare_accuracy(*binary(more * lost, more * gained, more * count))
    if found.verdict == INCONCLUSIVE:
        needed = found.examples_needed
        assert (repeated.verdict == INCONCLUSIVE) == (needed is None or more * count < needed)
    else:
        assert found.examples_needed is None


def test_the_needed_examples_decide_if_the_spread_continues(rng):
    baseline = rng.uniform(size=40)
    spread = rng.normal(0, 0.1, 40)
    candidate = baseline + spread - spread.mean()
    found = compare_accuracy(baseline, candidate)
    assert found.verdict == INCONCLUSIVE
    more = math.ceil(found.examples_needed / found.n)
    verdicts = [
        compare_accuracy(np.tile(baseline, times), np.tile(candidate, times)).verdict
        for times in (more - 1, more)
    ]
    assert verdicts == [INCONCLUSIVE, NOT_WORSE]


def test_no_number_of_examples_decides_where_the_difference_is_the_margin():
    found = compare_accuracy(*binary(4, 0, 400), margin=0.01)
    assert (found.verdict, found.examples_needed) == (INCONCLUSIVE, None)


def test_what_is_stored_holds_the_verdict_and_is_read_without_it():
    found = compare_accuracy(*binary(0, 1, 168))
    fields = found.to_dict()
    assert (fields["verdict"], fields["examples_needed"]) == (INCONCLUSIVE, found.examples_needed)
    for name in ("verdict", "examples_needed"):
        del fields[name]  # as records of earlier versions are
    assert AccuracyComparison.from_dict(fields) == found
    former = fields | {"verdict": "not shown"}
    assert AccuracyComparison.from_dict(former).verdict == INCONCLUSIVE


@pytest.mark.parametrize(
    ("count", "margin", "numbers"),
    [
        (168, 0.01, ["168", "1%", "299", "2%"]),
        (240, 0.01, ["240", "1%", "299", "1.5%"]),
        (20, 0.01, ["20", "1%", "299"]),
        (299, 0.01, []),
        (168, 0.02, []),
    ],
)
def test_too_few_examples_are_named_before_anything_is_compared(count, margin, numbers):
    words = about_sample_size(np.ones(count), margin=margin, setting="--max-accuracy-drop")
    assert re.findall(r"\d[\d.]*%?", words) == numbers


@pytest.mark.parametrize(("count", "best"), [(20, 1.0), (250, 0.9), (300, 0.9), (700, 0.5)])
def test_the_least_number_of_graded_examples_is_that_which_establishes_the_margin(count, best):
    def same(count):
        scores = np.linspace(0.1, best, count)
        return scores, compare_accuracy(scores, scores, margin=0.01)

    scores, found = same(count)
    words = about_sample_size(scores, margin=0.01)
    assert bool(words) == (found.verdict == INCONCLUSIVE)
    if words:
        needed = int(re.search(r"at least (\d+)", words)[1])
        assert same(needed)[1].verdict == "not worse"
        assert same(needed - 1)[1].verdict == INCONCLUSIVE


def test_of_scores_without_bounds_the_spread_that_decides_is_told(rng):
    scores = rng.normal(-3, 1, size=400)
    words = about_sample_size(scores, margin=0.1)
    spread = float(re.search(r"about ([\d.]+)", words)[1])
    draws = rng.normal(size=400)
    draws = (draws - draws.mean()) / draws.std(ddof=1)
    for factor, verdict in ((0.6, "not worse"), (1.05, INCONCLUSIVE)):
        found = compare_accuracy(scores, scores + factor * spread * draws, margin=0.1)
        assert found.verdict == verdict


def test_a_single_graded_example_is_too_few():
    assert about_sample_size([0.3], margin=0.01)


# ---------------------------------------------------------------- the parts


def test_scores_are_held_as_numbers_of_python():
    found = AccuracyComparison([1, 0], np.array([0, 1]))
    assert (found.baseline_scores, found.candidate_scores) == ((1.0, 0.0), (0.0, 1.0))
    assert all(type(each) is float for each in found.baseline_scores)


def test_a_baseline_in_percent_is_named_by_its_largest_score():
    found = compare_accuracy([0.0, 50.0, 90.0] * 10, [0.0, 0.5, 0.9] * 10)
    assert "go up to 90" in found.notes[-1]
    assert compare_accuracy([0.5, 0.7] * 10, [0.4, 0.9] * 10).notes == (
        "n=20 may miss a long tail of losses; score more examples",
    )


def test_of_two_bad_scores_the_first_is_named():
    with pytest.raises(SettingError, match="example 1 is nan"):
        compare_accuracy([1.0, math.nan, 1.0, math.inf], [1.0] * 4)
    found = compare_accuracy([1.0] * 4, [1.0, math.nan, 1.0, math.inf])
    assert "the first (nan) for example 1" in found.notes[0]


@pytest.mark.parametrize("more", [-3.0, -1.5, -0.9, -0.5, -1e-9, 0.0, 1e-12, 2.0])
def test_a_cube_root_less_one(more):
    exact = Decimal(1) + Decimal(more)
    root = abs(exact) ** (Decimal(1) / 3)
    wanted = (root if exact >= 0 else -root) - 1
    assert _cube_root_less_one(more) == pytest.approx(float(wanted), rel=1e-12)


def test_skewed_losses_have_the_bound_of_hall():
    # T(x) = x + g x^2 / 3 + g^2 x^3 / 27 + g / 6n of a studentized mean is close to normal.
    differences = -np.random.default_rng(5).exponential(0.01, 20_000)
    low = _bound_of_usual(differences, 0.95, 20_000)
    n, skew = len(differences), stats.skew(differences)
    mean, spread = differences.mean(), differences.std(ddof=1)
    t = (mean - low) / spread  # in units of the deviation, without the root of n
    transformed = t + skew * t**2 / 3 + skew**2 * t**3 / 27 + skew / (6 * n)
    assert transformed * math.sqrt(n) == pytest.approx(stats.t.ppf(0.95, MOST_FREEDOM), rel=1e-6)


def test_the_score_of_few_examples_is_that_of_the_formula():
    # One lost of three: the variance is below one, and still the bound is where the score is z.
    low, _ = paired_difference_bounds(0, 1, 3)
    assert _score(0, 1, 3, low) == pytest.approx(stats.norm.ppf(0.95), rel=1e-6)


def test_a_cosine_a_hair_above_one_is_a_share(rng):
    baseline = 1 - 1e-7 * rng.random(64)
    candidate = baseline - 1e-3 * rng.random(64)
    above = np.append(baseline[:-1], 1.0000002)
    lows = [compare_accuracy(each, candidate, margin=0.01).low for each in (baseline, above)]
    assert lows[0] == pytest.approx(lows[1], abs=1e-5)
    assert lows[0] < -0.03  # a share of 4.6% may lose all of it unseen


def test_likelihoods_of_few_texts_decide_where_all_differ_by_little(rng):
    baseline = rng.normal(-3.0, 0.35, 64)
    found = compare_accuracy(baseline, baseline + rng.normal(0, 0.002, 64), margin=0.01)
    assert found.verdict == NOT_WORSE
