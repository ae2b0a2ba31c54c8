"""What calibration has seen, as a result to ask."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal import shown

from tinytorch.errors import SettingError
from tinytorch.formats.ranges import BINS, METHODS, RangeObserver, choose_range
from tinytorch.transforms.quantize import Calibration, Quantize


def seen(*batches):
    observer = RangeObserver()
    for batch in batches:
        observer.update(np.asarray(batch, np.float32))
    return observer.statistics


def calibration_of(**layers):
    return Calibration({name: seen(batch) for name, batch in layers.items()}, batches=1)


@pytest.fixture
def gaussian(rng):
    return rng.normal(size=50_000).astype(np.float32)


def test_it_is_a_mapping_of_statistics(gaussian):
    found = calibration_of(a=gaussian, b=[1.0])
    assert (list(found), len(found), "a" in found) == (["a", "b"], 2, True)
    assert found["b"].count == 1
    with pytest.raises(KeyError):
        found["c"]


@pytest.mark.parametrize("method", METHODS)
def test_ranges_are_those_that_static_quantization_takes(gaussian, method):
    found = calibration_of(a=gaussian)
    assert found.range_of("a", method) == choose_range(found["a"], method)


def test_ranges_are_chosen_as_the_calibration_says(gaussian):
    statistics = {"a": seen(gaussian)}
    assert Calibration(statistics, 1).ranges == Quantize().ranges
    widest = Calibration(statistics, 1, ranges="minmax")
    assert widest.range_of("a") == (statistics["a"].low, statistics["a"].high)


def test_what_cannot_be_answered_is_told():
    found = Calibration({f"layer{n}": seen([1.0]) for n in range(7)} | {"empty": seen([])}, 1)
    with pytest.raises(SettingError, match=r"'head' was not calibrated.*'layer4' and 3 more"):
        found.range_of("head")
    with pytest.raises(SettingError, match="'empty' were empty in all batches"):
        found.range_of("empty")
    with pytest.raises(SettingError, match=r"unknown ranges 'best'.*entropy"):
        found.range_of("layer0", "best")
    with pytest.raises(SettingError, match="unknown ranges 'best'"):
        Calibration({}, 0, ranges="best")
    with pytest.raises(SettingError, match="contains zero, got 1 to 2"):
        found.clipped_share("layer0", (1.0, 2.0))
    with pytest.raises(SettingError, match="pieces=0"):
        found.shape_of("layer0", 0)


# ---------------------------------------------------------------- clipped


@given(st.floats(-4, 0), st.floats(0, 4), st.integers(0, 2000))
def test_the_clipped_share_is_right_to_two_bins(low, high, zeros):
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    values[:zeros] = 0
    found = calibration_of(a=values)
    low, high = np.float32(low), np.float32(high)
    exact = np.mean((values < low) | (values > high))
    # What the histogram cannot tell lies in the bins of the two ends.
    edges = found["a"].edges
    ends = np.searchsorted(edges, [low, high], "right") - 1
    others = found["a"].histogram.copy()
    others[-found["a"].first_bin] -= found["a"].zeros
    unsure = sum(others[end] for end in ends if 0 <= end < BINS) / values.size
    assert abs(found.clipped_share("a", (float(low), float(high))) - exact) <= unsure + 1e-9


def test_nothing_is_clipped_by_all_that_was_seen(gaussian):
    for values in (gaussian, np.abs(gaussian), -np.abs(gaussian), [3.0, 3.0], [0.0], [-2.0, 5.0]):
        found = calibration_of(a=values)
        assert found.clipped_share("a", found.range_of("a", "minmax")) == 0


def test_zeros_are_never_clipped():
    found = calibration_of(a=[0.0, 0.0, 0.0, -1.0, 1e-6])
    assert found.clipped_share("a", (-1.0, 0.0)) == pytest.approx(1 / 5)
    assert found.clipped_share("a", (0.0, 0.0)) == pytest.approx(2 / 5)


def test_a_constant_is_clipped_as_a_whole():
    assert calibration_of(a=[3.0, 3.0]).clipped_share("a", (0.0, 2.0)) == 1


# ---------------------------------------------------------------- shape


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=50),
    st.integers(1, 30),
)
def test_the_shape_adds_up_to_everything(values, pieces):
    shares = calibration_of(a=values).shape_of("a", pieces)
    assert len(shares) == pieces
    assert min(shares) >= -1e-9
    assert sum(shares) == pytest.approx(1)


def test_the_shape_follows_the_numbers(gaussian):
    gaussian[:10_000] = 0
    shares = calibration_of(a=gaussian).shape_of("a", 10)
    exact, _ = np.histogram(gaussian, 10, (gaussian.min(), gaussian.max()))
    # Of the numbers at each of the edges some 10 / BINS of a piece may be counted beside it.
    np.testing.assert_allclose(shares, exact / gaussian.size, atol=2 * 10 / BINS)


def test_the_shape_reaches_to_zero():
    assert calibration_of(a=[8.0, 8.0, 8.0]).shape_of("a", 4) == (0, 0, 0, 1)
    assert calibration_of(a=[-8.0, -1.0]).shape_of("a", 2) == (0.5, 0.5)
    assert calibration_of(a=[0.0, 0.0]).shape_of("a", 2) == (0, 1)
    assert calibration_of(a=[]).shape_of("a", 2) == ()


# ---------------------------------------------------------------- handing it on


def test_it_goes_through_json(gaussian):
    found = calibration_of(a=gaussian, b=[])
    fields = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (fields["batches"], fields["ranges"]) == (1, "mse")
    assert fields["layers"]["a"]["count"] == gaussian.size
    assert fields["layers"]["b"]["low"] is None


def test_it_shows_itself(gaussian):
    found = calibration_of(a=gaussian)
    assert "inputs of 1 layer in 1 batch" in shown(found)
    assert "Calibration" in found._repr_html_()
