import json
import math

import pytest
from example_comparisons import comparison
from example_optimizations import measured as example

from tinytorch.comparison.resources import Resources
from tinytorch.measure.estimate import Estimate
from tinytorch.tuning.attempt import (
    BASELINE,
    OBJECTIVES,
    Measured,
    is_less,
    is_more,
    measured_by,
)


def test_a_comparison_gives_shares_of_the_baseline():
    found = measured_by(example(0.5, memory=0.25, size=0.75, lost=8))
    assert abs(found.time.value - 0.5) < 1e-9
    assert found.time.low < 0.5 < found.time.high
    assert found.memory == Estimate.counted(0.25)
    assert found.size == Estimate.counted(0.75)
    assert found.accuracy.low < found.accuracy.value == -6 / 800 < found.accuracy.high


def test_what_was_not_measured_is_none():
    found = measured_by(comparison(0.5))
    assert found.memory is None
    assert found.size is None
    assert found.accuracy is None
    half = comparison(resources=(Resources(peak_bytes=5), Resources()))
    assert measured_by(half).memory is None


def test_on_a_device_weights_and_its_own_peak_count():
    """Half the weights are less memory, even where a call then needs a little more beside them."""
    sides = (
        Resources(parameter_bytes=100, peak_bytes=110, device_peak_bytes=20),
        Resources(parameter_bytes=50, device_peak_bytes=25),
    )
    assert measured_by(comparison(resources=sides)).memory == Estimate.counted(75 / 120)


def test_a_model_against_itself_is_the_baseline():
    assert [getattr(BASELINE, name).value for name in OBJECTIVES] == [1, 1, 1, 0]


def test_json_gives_it_back_with_unknown_ends():
    found = Measured(Estimate(0.5, 0.4, float("inf")), accuracy=Estimate(-0.1, float("-inf"), 0.0))
    assert Measured.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_below_means_shown_to_be_below():
    assert Estimate(1.0, 0.9, 1.1).is_less_than(Estimate(1.3, 1.2, 1.4))
    assert not Estimate(1.0, 0.9, 1.25).is_less_than(Estimate(1.3, 1.2, 1.4))
    assert not Estimate.counted(0.9999).is_less_than(Estimate.counted(1.0), by=0.001)


def test_half_is_a_gain_of_two_and_the_ends_change_places():
    assert Estimate(0.5, 0.4, 0.8).inverse == Estimate(2.0, 1 / 0.8, 2.5)
    assert Estimate(0.0, 0.0, 0.5).inverse == Estimate(math.inf, 2.0, math.inf)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (Estimate.counted(0.5), (True, False)),
        (Estimate.counted(1.5), (False, True)),
        (Estimate.counted(1.0005), (False, False)),
        (Estimate(0.9, 0.7, 1.1), (False, False)),
    ],
)
def test_a_share_is_less_or_more_only_where_that_is_shown(share, expected):
    assert (is_less(share), is_more(share)) == expected
