import json

import pytest

from tinytorch.measure.samples import Samples
from tinytorch.perf.profiling.size_trends import SizePoint, fit_trend


def point(size, seconds, *, flops=0, peak=0, resident=0):
    return SizePoint(size, Samples("", (seconds,)), flops, peak, resident)


def trend_of(law, sizes=(4, 8, 16, 32), at=128, truth=None):
    points = [point(size, law(size)) for size in sizes]
    return fit_trend("time", points, at, truth)


def test_a_power_law_is_found_exactly():
    trend = trend_of(lambda size: 3e-6 * size**2)
    assert trend.value == pytest.approx(3e-6 * 128**2)
    assert trend.prediction.exponent == pytest.approx(2)
    assert trend.fitted == (4, 8, 16, 32)


def test_sizes_where_fixed_costs_weigh_are_left_out():
    trend = trend_of(lambda size: 1.0 + 0.1 * size, sizes=(1, 2, 4, 64, 128, 256), at=512)
    assert trend.fitted == (64, 128, 256)


def test_at_least_three_sizes_stay():
    trend = trend_of(lambda size: 1.0 + size**3, sizes=(1, 2, 4, 8))
    assert len(trend.fitted) == 3


def test_what_does_not_grow_is_added_and_not_fitted():
    points = [point(size, 1.0, peak=1000 + 10 * size, resident=1000) for size in (1, 2, 4)]
    trend = fit_trend("memory", points, 100, None)
    assert trend.value == pytest.approx(2000)
    assert trend.prediction.exponent == pytest.approx(1)
    assert trend.constant == 1000


def test_flops_are_fitted_as_counted():
    points = [point(size, 1.0, flops=2 * size) for size in (1, 2, 4)]
    assert fit_trend("FLOPs", points, 8, None).value == pytest.approx(16)


@pytest.mark.parametrize(("measured", "holds"), [(128e-6, True), (300e-6, False)])
def test_the_truth_is_inside_or_outside(measured, holds):
    trend = trend_of(lambda size: 1e-6 * size, truth=point(128, measured))
    assert trend.holds is holds


def test_without_a_truth_nothing_is_said():
    assert trend_of(lambda size: size).holds is None


def test_any_number_lies_in_an_infinite_interval_which_shows_nothing():
    trend = trend_of(lambda size: size, sizes=(4, 8), truth=point(128, 1.0))
    assert trend.holds is None


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
