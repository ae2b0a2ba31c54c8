import json

import pytest

from tinytorch.measure.samples import Samples
from tinytorch.profiling.size_laws import NOT_RESOLVED, SizePoint, fit_trend


def point(size, seconds, *, flops=0, peak=0, resident=0):
    return SizePoint(size, Samples("", (seconds,)), flops, peak, resident)


def trend_of(law, sizes=(4, 8, 16, 32), at=128, truth=None):
    points = [point(size, law(size)) for size in sizes]
    return fit_trend("time", points, at, truth)


def uneven(size):
    """Follows no law at all."""
    return {4: 1.0, 8: 9.0, 16: 2.0, 32: 8.0}[size]


def test_what_does_not_grow_is_added_and_not_fitted():
    points = [point(size, 1.0, peak=1000 + 10 * size, resident=1000) for size in (1, 2, 4)]
    trend = fit_trend("memory", points, 100, None)
    assert trend.value == 2000
    assert trend.law.exponent == 1
    assert trend.constant == 1000
    assert trend.notes == ("memory follows 1,000 + 10 n bytes exactly at all 3 sizes",)


def attention(size):
    return 100 * size + 3 * size * size


def test_counted_flops_are_predicted_exactly():
    points = [point(size, 1.0, flops=attention(size)) for size in (2, 4, 8, 16)]
    trend = fit_trend("FLOPs", points, 64, point(64, 1.0, flops=attention(64)))
    assert trend.value == attention(64)
    assert trend.interval.low == trend.interval.high == attention(64)
    assert trend.holds is True
    assert trend.notes == ("FLOPs follow 100 n + 3 n^2 exactly at all 4 sizes",)


def test_one_flop_more_than_predicted_is_another_law():
    points = [point(size, 1.0, flops=2 * size) for size in (1, 2, 4)]
    assert fit_trend("FLOPs", points, 8, point(8, 1.0, flops=17)).holds is False


def test_counts_without_a_polynomial_get_a_power_law():
    points = [point(size, 1.0, flops=size**3) for size in (2, 4, 8, 16)]
    trend = fit_trend("FLOPs", points, 64, None)
    assert not trend.law.is_exact
    assert trend.value == pytest.approx(64**3)


def test_time_may_follow_the_flops():
    sizes = (4, 6, 8, 12, 16)
    points = [point(n, 1.0 + 1e-3 * attention(n), flops=attention(n)) for n in sizes]
    flops = fit_trend("FLOPs", points, 32, None)
    trend = fit_trend("time", points, 32, None, flops=flops)
    assert trend.value == pytest.approx(1.0 + 1e-3 * attention(32))
    assert trend.notes[0].startswith("time follows: fixed part + FLOPs; leave-one-out error")
    assert "of a power law 9.0%" in trend.notes[0]
    assert "the exponent is that at 16" in trend.notes[0]


@pytest.mark.parametrize(("measured", "holds"), [(128e-6, True), (300e-6, False)])
def test_the_truth_is_inside_or_outside(measured, holds):
    trend = trend_of(lambda size: 1e-6 * size, truth=point(128, measured))
    assert trend.holds is holds


def test_without_a_truth_nothing_is_said():
    assert trend_of(lambda size: size).holds is None


def test_two_sizes_have_no_interval_and_show_nothing():
    trend = trend_of(lambda size: size, sizes=(4, 8), truth=point(128, 1.0))
    assert trend.interval is None
    assert trend.holds is None
    assert trend.words == NOT_RESOLVED


def test_a_wide_interval_shows_nothing():
    trend = trend_of(uneven, truth=point(128, 10.0))
    assert trend.interval.low < 10.0 < trend.interval.high
    assert not trend.is_shown
    assert trend.holds is None
    assert any("inconclusive" in note for note in trend.notes)


def test_an_exponent_that_is_not_resolved_has_no_words():
    trend = trend_of(uneven)
    assert trend.exponent_reach > 0.5
    assert trend.words == "not resolved by these measurements"


def test_times_that_scatter_within_a_size_widen_the_interval():
    def found(values):
        points = [
            SizePoint(n, Samples("", tuple(n * v for v in values)), 0, 0, 0) for n in (4, 8, 16)
        ]
        return fit_trend("time", points, 32, None).interval

    quiet, noisy = found((1.0,) * 5), found((0.8, 0.9, 1.0, 1.1, 1.2))
    assert noisy.high / noisy.low > 1.5 > quiet.high / quiet.low


@pytest.mark.parametrize(
    ("exponent", "words"),
    [
        (0.0, "about constant"),
        (-0.05, "about constant"),
        (-0.5, "falling"),
        (0.5, "between constant and linear"),
        (1.04, "about linear"),
        (1.5, "between linear and quadratic"),
        (2.0, "about quadratic"),
        (2.5, "between quadratic and cubic"),
        (3.05, "about cubic"),
        (4.0, "more than cubic"),
    ],
)
def test_exponents_have_words(exponent, words):
    assert trend_of(lambda size: float(size) ** exponent).words == words


def test_it_can_be_written_as_json():
    fields = trend_of(lambda size: size, truth=point(128, 128.0)).to_dict()
    assert json.loads(json.dumps(fields))["holds"] is True
    assert fields["words"] == "about linear"
    assert fields["notes"][0].startswith("time follows: power law")


def test_no_interval_is_null_in_json():
    fields = trend_of(lambda size: size, sizes=(4, 8)).to_dict()
    assert json.loads(json.dumps(fields, allow_nan=False))["interval"] is None
