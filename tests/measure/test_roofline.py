import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.errors import SettingError
from tinytorch.measure.roofline import classify_bound

POSITIVE = st.floats(1e-3, 1e15)


def test_the_example_is_memory_bound_at_five_percent():
    bound = classify_bound(achieved=5e9, peak=100e9, bandwidth=50e9, intensity=0.1)
    assert bound.bound == "memory"
    assert bound.is_memory_bound
    assert not bound.is_compute_bound
    assert bound.efficiency == 0.05
    assert bound.ridge == 2.0
    assert bound.attainable == pytest.approx(5e9)
    assert bound.of_attainable == pytest.approx(1.0)
    assert str(bound) == "memory-bound at 5% efficiency"


def test_beyond_the_ridge_computing_is_the_limit():
    bound = classify_bound(achieved=80e9, peak=100e9, bandwidth=50e9, intensity=10)
    assert bound.is_compute_bound
    assert bound.attainable == 100e9
    assert str(bound) == "compute-bound at 80% efficiency"


def test_at_the_ridge_itself_computing_is_the_limit():
    assert classify_bound(achieved=1e9, peak=100e9, bandwidth=50e9, intensity=2.0).is_compute_bound


def test_nothing_is_clamped():
    bound = classify_bound(achieved=200e9, peak=100e9, bandwidth=50e9, intensity=10)
    assert bound.efficiency == 2.0
    assert bound.of_attainable == 2.0


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE)
def test_the_roof_is_the_lower_of_its_two_parts(achieved, peak, bandwidth, intensity):
    bound = classify_bound(achieved, peak, bandwidth, intensity)
    assert bound.attainable <= peak
    assert bound.attainable <= bandwidth * intensity
    assert bound.is_memory_bound is (intensity < bound.ridge)
    assert bound.of_attainable >= bound.efficiency


def test_work_without_arithmetic_has_no_attainable_rate():
    bound = classify_bound(achieved=0, peak=1e9, bandwidth=1e9, intensity=0)
    assert bound.is_memory_bound
    assert math.isnan(bound.of_attainable)
    assert str(bound) == "memory-bound: it moves bytes and computes nothing"


@pytest.mark.parametrize(
    ("name", "value"),
    [("achieved", -1), ("intensity", math.nan), ("peak", 0), ("bandwidth", -5), ("peak", math.inf)],
)
def test_impossible_numbers_are_refused_by_name(name, value):
    numbers = {"achieved": 1.0, "peak": 1.0, "bandwidth": 1.0, "intensity": 1.0, name: value}
    with pytest.raises(SettingError, match=f"{name}="):
        classify_bound(**numbers)
