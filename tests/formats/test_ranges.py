"""Watching values and choosing ranges: exact statistics, and ranges as good as the best."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from parts import require_part

from tinytorch.errors import DTypeError, SettingError
from tinytorch.formats import ranges
from tinytorch.formats.affine import Scheme, affine_parameters, quantize_array, value_limits
from tinytorch.formats.ranges import BINS, METHODS, RangeObserver, choose_range

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TAME = st.floats(-1e3, 1e3, width=32)
BATCHES = st.lists(
    arrays_of.arrays(np.float32, st.integers(1, 20), elements=NUMBERS), min_size=1, max_size=6
)
SETTINGS = [(bits, symmetric) for bits in (8, 4) for symmetric in (True, False)]


def statistics_of(*batches, **settings):
    observer = RangeObserver(**settings)
    for batch in batches:
        observer.update(batch)
    return observer.statistics


def mean_squared_error(array, limits, bits=8, symmetric=False):
    back = quantize_array(array, Scheme(bits, symmetric), limits=limits).dequantize()
    return np.square(back.astype(np.float64) - array).mean()


def shapes_of_activations(rng, count=20_000):
    """Give what layers of a network get: centred, cut off at zero, skewed, with an outlier."""
    normal = rng.normal(size=count)
    with_outlier = normal.copy()
    with_outlier[7] = 40
    return {
        "normal": normal,
        "relu": np.maximum(normal, 0),
        "gelu": normal * 0.5 * (1 + np.tanh(0.8 * normal)),
        "laplace": rng.laplace(size=count),
        "skewed": rng.gamma(1, size=count) - 0.3,
        "negative": -rng.gamma(2, size=count),
        "outlier": with_outlier,
        "far": rng.uniform(10, 11, count),
    }


ACTIVATIONS = {
    name: array.astype(np.float32)
    for name, array in shapes_of_activations(np.random.default_rng(5)).items()
}
each_activation = pytest.mark.parametrize("name", ACTIVATIONS)
each_setting = pytest.mark.parametrize(("bits", "symmetric"), SETTINGS)


# ---------------------------------------------------------------- statistics


@given(BATCHES)
def test_batches_give_what_one_large_batch_gives(batches):
    apart, together = statistics_of(*batches), statistics_of(np.concatenate(batches))
    assert (apart.batches, together.batches) == (len(batches), 1)
    for name in ("count", "zeros", "low", "high", "first_bin", "bin_width"):
        assert getattr(apart, name) == getattr(together, name)
    np.testing.assert_array_equal(apart.histogram, together.histogram)
    # Each merge rounds a few times; the root of a sum of squares has half as many digits.
    largest = max(abs(apart.low), abs(apart.high))
    assert apart.mean == pytest.approx(together.mean, abs=1e-14 * largest)
    assert apart.std == pytest.approx(together.std, abs=1e-6 * largest)


@given(BATCHES)
def test_the_statistics_are_those_of_numpy(batches):
    statistics, everything = statistics_of(*batches), np.concatenate(batches).astype(np.float64)
    assert statistics.count == everything.size
    assert statistics.zeros == np.count_nonzero(everything == 0)
    assert (statistics.low, statistics.high) == (everything.min(), everything.max())
    largest = np.abs(everything).max()
    assert statistics.mean == pytest.approx(everything.mean(), abs=1e-14 * largest)
    assert statistics.std == pytest.approx(everything.std(), abs=1e-6 * largest)


@given(BATCHES)
def test_every_element_is_counted_in_its_bin(batches):
    statistics, everything = statistics_of(*batches), np.concatenate(batches)
    assert statistics.histogram.shape == (BINS,)
    assert statistics.histogram.dtype == np.int64
    assert statistics.edges.shape == (BINS + 1,)
    expected, _ = np.histogram(everything.astype(np.float64), statistics.edges)
    np.testing.assert_array_equal(statistics.histogram, expected)


@each_activation
def test_at_least_half_of_the_bins_are_used(name):
    statistics = statistics_of(*np.array_split(ACTIVATIONS[name], 7))
    span = (statistics.high - statistics.low) / statistics.bin_width
    assert BINS / 2 - 1 <= span <= BINS


def test_the_moments_of_many_batches_lose_no_digits(rng):
    # Far from zero the sum of squares minus the squared sum would have no digit left.
    batches = [1e8 + rng.normal(size=1000) for _ in range(50)]
    statistics = statistics_of(*batches)
    everything = np.concatenate(batches)
    assert statistics.mean == pytest.approx(everything.mean(), rel=1e-14)
    assert statistics.std == pytest.approx(everything.std(), rel=1e-6)


def test_blocks_do_not_matter(rng, monkeypatch):
    array = rng.normal(size=(13, 17)).astype(np.float32)
    whole = statistics_of(array)
    monkeypatch.setattr(ranges, "BLOCK", 10)
    in_blocks = statistics_of(array)
    np.testing.assert_array_equal(in_blocks.histogram, whole.histogram)
    assert in_blocks.std == pytest.approx(whole.std, rel=1e-12)
    assert in_blocks.batches == 1


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.int64, np.bool_])
def test_numbers_of_every_kind_and_layout_are_taken(dtype, rng):
    array = rng.integers(0, 50, (6, 5, 4)).astype(dtype)
    for twin in (array, array.T, array[::2, :, ::3], array[:0], array[0, 0, 0]):
        statistics = statistics_of(twin, twin)
        assert statistics.count == 2 * twin.size
        assert statistics.zeros == 2 * np.count_nonzero(twin == 0)
        assert statistics.histogram.sum() == statistics.count


def test_an_empty_batch_counts_as_none():
    observer = RangeObserver()
    observer.update(np.empty((0, 3), np.float32))
    assert (observer.statistics.count, observer.statistics.batches) == (0, 0)
    assert math.isnan(observer.statistics.low)
    assert math.isnan(observer.statistics.moving_high)
    observer.update([1.0, 2.0])
    observer.update([])
    assert (observer.statistics.count, observer.statistics.batches) == (2, 1)
    assert (observer.statistics.low, observer.statistics.high) == (1, 2)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_batch_that_is_not_finite_is_refused_and_leaves_no_trace(wrong):
    observer = RangeObserver()
    observer.update([1.0, -2.0])
    before = observer.statistics.to_dict()
    message = rf"1 of 4 elements are not finite, the first is {wrong} at \(1, 0\)"
    with pytest.raises(SettingError, match=message):
        observer.update([[1, 2], [wrong, 3]])
    with pytest.raises(DTypeError, match="complex128"):
        observer.update([1j])
    assert observer.statistics.to_dict() == before


def test_statistics_do_not_change_with_later_batches():
    observer = RangeObserver()
    observer.update([1.0])
    statistics = observer.statistics
    observer.update([1.0, 100.0])
    assert statistics.count == statistics.histogram.sum() == 1
    assert statistics.high == 1


def test_statistics_can_be_written_as_json():
    shown = json.loads(json.dumps(statistics_of([-1.0, 0, 2.5], [1.0]).to_dict()))
    assert (shown["count"], shown["batches"], shown["zeros"]) == (4, 2, 1)
    assert (shown["low"], shown["high"], shown["mean"]) == (-1, 2.5, 0.625)
    assert sum(shown["histogram"]) == 4
    assert shown["first_edge"] <= -1
    nothing = json.loads(json.dumps(RangeObserver().statistics.to_dict()))
    assert nothing["low"] is None
    assert nothing["histogram"] == []


# ---------------------------------------------------------------- moving averages


@given(BATCHES)
def test_a_few_batches_are_averaged(batches):
    statistics = statistics_of(*batches)
    largest = max(abs(statistics.low), abs(statistics.high))
    lows, highs = ([getattr(b, f)() for b in batches] for f in ("min", "max"))
    mean_low, mean_high = np.mean(lows, dtype=np.float64), np.mean(highs, dtype=np.float64)
    assert statistics.moving_low == pytest.approx(mean_low, abs=1e-14 * largest)
    assert statistics.moving_high == pytest.approx(mean_high, abs=1e-14 * largest)


def test_pytorch_averages_many_batches_in_the_same_way(rng):
    torch = require_part("torch")
    observers = require_part("torch.ao.quantization.observer")
    # With one half both begin alike: the second of two batches weighs that in any case.
    theirs = observers.MovingAverageMinMaxObserver(averaging_constant=0.5, dtype=torch.qint8)
    ours = RangeObserver(momentum=0.5)
    for _ in range(12):
        batch = rng.normal(size=50).astype(np.float32)
        theirs(torch.tensor(batch))
        ours.update(batch)
    # They compute in float32.
    assert ours.statistics.moving_low == pytest.approx(float(theirs.min_val), rel=1e-6)
    assert ours.statistics.moving_high == pytest.approx(float(theirs.max_val), rel=1e-6)
    low, high = choose_range(ours.statistics, "moving_average")
    assert (low, high) == (ours.statistics.moving_low, ours.statistics.moving_high)
    assert (low, high) != choose_range(ours.statistics, "minmax")


@pytest.mark.parametrize("momentum", [0, -1, 1.5, math.nan])
def test_a_momentum_that_is_no_share_is_refused(momentum):
    with pytest.raises(SettingError, match="above 0 and up to 1"):
        RangeObserver(momentum=momentum)


# ---------------------------------------------------------------- all methods


@given(
    st.lists(
        arrays_of.arrays(np.float32, st.integers(1, 20), elements=TAME), min_size=1, max_size=3
    ),
    st.sampled_from(METHODS),
    st.sampled_from(SETTINGS),
)
def test_a_range_contains_zero_and_nothing_that_was_not_seen(batches, method, setting):
    statistics = statistics_of(*batches)
    low, high = choose_range(statistics, method, bits=setting[0], symmetric=setting[1])
    assert min(statistics.low, 0) <= low <= 0 <= high <= max(statistics.high, 0)
    assert type(low) is type(high) is float
    affine_parameters(low, high, bits=setting[0], symmetric=setting[1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("constant", [0.0, 5.0, -0.25, 1e-40, 3e38, -3e38])
@each_setting
def test_a_constant_keeps_its_range(method, constant, bits, symmetric):
    statistics = statistics_of(np.full(1000, constant, np.float32))
    expected = (min(statistics.low, 0), max(statistics.high, 0))
    chosen = choose_range(statistics, method, bits=bits, symmetric=symmetric)
    # A percentile is found within a bin, and bins of a constant are 2**-40 to 2**-39 of it wide.
    assert chosen == (pytest.approx(expected, rel=2**-39) if method == "percentile" else expected)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_seen_gives_no_range(method):
    with pytest.raises(SettingError, match="before anything was seen; update the observer"):
        choose_range(RangeObserver().statistics, method)


def test_settings_that_cannot_be_are_refused():
    statistics = statistics_of([1.0])
    with pytest.raises(SettingError, match="method='best'; choose one of minmax, moving_average"):
        choose_range(statistics, "best")
    with pytest.raises(SettingError, match="bits=3"):
        choose_range(statistics, bits=3)
    for percentile in (50, 101, math.nan):
        with pytest.raises(SettingError, match="above 50 and is at most 100"):
            choose_range(statistics, "percentile", percentile=percentile)


@given(BATCHES)
def test_minmax_is_all_that_was_seen(batches):
    low, high = choose_range(statistics_of(*batches), "minmax")
    everything = np.concatenate(batches)
    assert (low, high) == (min(everything.min(), 0), max(everything.max(), 0))


# ---------------------------------------------------------------- percentile


def check_share_beyond(numbers, end, *, width, share):
    """Check that so many numbers lie above an end, if it may be moved by the width of a bin."""
    rounding = 1e-9 * numbers.size
    assert np.count_nonzero(numbers > end + width) <= share * numbers.size + rounding
    assert np.count_nonzero(numbers >= end - width) >= share * numbers.size - rounding


@each_activation
@pytest.mark.parametrize("percentile", [90, 99, 99.9, 99.99, 100])
def test_percentiles_are_those_of_the_samples_within_a_bin(name, percentile):
    array, share = ACTIVATIONS[name], 1 - percentile / 100
    statistics = statistics_of(*np.array_split(array, 5))
    low, high = choose_range(statistics, "percentile", percentile=percentile)
    width = statistics.bin_width
    if np.mean(array > 0) > share:
        check_share_beyond(array, high, width=width, share=share)
    if np.mean(array < 0) > share:
        check_share_beyond(-array, -low, width=width, share=share)


@each_activation
@pytest.mark.parametrize("percentile", [90, 99.9, 100])
def test_symmetric_percentiles_are_those_of_distances_from_zero(name, percentile):
    array, statistics = np.abs(ACTIVATIONS[name]), statistics_of(ACTIVATIONS[name])
    low, high = choose_range(statistics, "percentile", symmetric=True, percentile=percentile)
    width = statistics.bin_width
    check_share_beyond(array, max(-low, high), width=width, share=1 - percentile / 100)


def test_the_hundredth_percentile_is_minmax(rng):
    statistics = statistics_of(rng.normal(size=1000), [7.5])
    assert choose_range(statistics, "percentile", percentile=100) == (statistics.low, 7.5)


# ---------------------------------------------------------------- least squares


@each_activation
@each_setting
def test_mse_is_as_good_as_trying_ranges_on_the_samples(name, bits, symmetric):
    array = ACTIVATIONS[name]
    low, high = min(array.min(), 0), max(array.max(), 0)
    shares = np.linspace(0.1, 1, 16)
    if symmetric:
        tried = [(share * low, share * high) for share in np.linspace(0.02, 1, 60)]
    else:
        tried = [(a * low, b * high) for a in (shares if low else [1]) for b in shares]
    best = min(mean_squared_error(array, ends, bits, symmetric) for ends in tried)
    chosen = choose_range(statistics_of(array), "mse", bits=bits, symmetric=symmetric)
    # A histogram knows where samples lie to 1 / 1000 of their range, and a value stands for 1 / 255
    # of it; so some error of rounding remains unseen.
    assert mean_squared_error(array, chosen, bits, symmetric) < 1.05 * best


@each_activation
@each_setting
def test_mse_is_no_worse_than_the_other_methods(name, bits, symmetric):
    array = ACTIVATIONS[name]
    statistics = statistics_of(*np.array_split(array, 10))
    errors = {
        method: mean_squared_error(
            array,
            choose_range(statistics, method, bits=bits, symmetric=symmetric),
            bits,
            symmetric,
        )
        for method in METHODS
    }
    assert errors["mse"] <= 1.05 * min(errors.values())


@each_activation
@each_setting
def test_the_expected_error_is_the_error_of_the_samples(name, bits, symmetric):
    array = ACTIVATIONS[name]
    statistics = statistics_of(array)
    for share in (0.3, 0.7, 1.0):
        ends = share * min(statistics.low, 0), share * max(statistics.high, 0)
        (expected,) = ranges._squared_errors(
            statistics, *np.array(ends)[:, None], bits=bits, symmetric=symmetric
        )
        measured = mean_squared_error(array, ends, bits, symmetric)
        assert expected / array.size == pytest.approx(measured, rel=0.08)


def test_zeros_do_not_weigh_on_the_range(rng):
    # They are exact in any range, so the best one is that of the others alone.
    some = np.abs(rng.normal(size=5000))
    with_zeros = statistics_of(some, np.zeros(500_000))
    assert choose_range(with_zeros) == choose_range(statistics_of(some))


def test_pytorch_finds_no_better_range(rng):
    torch = require_part("torch")
    observers = require_part("torch.ao.quantization.observer")
    for array in ACTIVATIONS.values():
        observer = observers.HistogramObserver(dtype=torch.qint8, qscheme=torch.per_tensor_affine)
        observer(torch.tensor(array))
        scale, zero_point = (float(number) for number in observer.calculate_qparams())
        theirs = scale * (-128 - zero_point), scale * (127 - zero_point)
        ours = choose_range(statistics_of(array), "mse")
        # Both are searched for in a histogram.
        assert mean_squared_error(array, ours) <= 1.02 * mean_squared_error(array, theirs)


# ---------------------------------------------------------------- entropy


def naive_divergence(statistics, low, high, bits, symmetric):
    """Give the divergence of a range as the paper has it, bin by bin."""
    scale, zero_point = affine_parameters(low, high, bits=bits, symmetric=symmetric)
    lowest, highest = value_limits(bits, symmetric)
    middle = statistics.bin_width / 2
    inside, below, above = [], 0, 0
    for edge, count in zip(statistics.edges[:-1], statistics.histogram, strict=True):
        if edge <= 0 < edge + 2 * middle:
            count -= statistics.zeros
        value = round((edge + middle) / float(scale)) + int(zero_point)
        if value < lowest:
            below += count
        elif value > highest:
            above += count
        elif count:
            inside.append((value, count))
    reference = [count for _, count in inside]
    reference[0] += below
    reference[-1] += above
    left = []
    for value, _ in inside:
        alike = [count for other, count in inside if other == value]
        left.append(sum(alike) / len(alike))
    p, q = np.array(reference) / sum(reference), np.array(left) / sum(left)
    return float((p * np.log(p / q)).sum())


@pytest.mark.parametrize("name", ["normal", "relu", "skewed", "outlier"])
@each_setting
def test_the_divergence_is_that_of_the_paper(name, bits, symmetric):
    statistics = statistics_of(ACTIVATIONS[name])
    lows = np.minimum(statistics.low, 0) * np.array([1, 0.8, 0.55])
    highs = np.maximum(statistics.high, 0) * np.array([1, 0.9, 0.6])
    found = ranges._divergences(statistics, lows, highs, bits=bits, symmetric=symmetric)
    expected = [
        naive_divergence(statistics, low, high, bits, symmetric)
        for low, high in zip(lows, highs, strict=True)
    ]
    assert found == pytest.approx(expected, rel=1e-9)


@each_activation
@each_setting
def test_entropy_finds_a_divergence_below_that_of_coarse_trials(name, bits, symmetric):
    statistics = statistics_of(ACTIVATIONS[name])
    chosen = choose_range(statistics, "entropy", bits=bits, symmetric=symmetric)
    low, high = min(statistics.low, 0), max(statistics.high, 0)
    shares = 2.0 ** -np.arange(0, 3, 0.25)
    reach = max(-low, high)
    lows, highs = np.maximum(low, -reach * shares), np.minimum(high, reach * shares)
    lows, highs = np.append(lows, chosen[0]), np.append(highs, chosen[1])
    found = ranges._divergences(statistics, lows, highs, bits=bits, symmetric=symmetric)
    assert found[-1] == found.min()


def test_entropy_clips_a_lonely_outlier():
    # The limit of a histogram: ranges of fewer bins than values tell nothing.
    statistics = statistics_of(ACTIVATIONS["outlier"])
    low, high = choose_range(statistics, "entropy")
    assert high < 20 < statistics.high
    assert low < -3


def test_one_outlier_rules_minmax_only(rng):
    batches = [rng.normal(size=1000) for _ in range(20)]
    batches[3][5] = 1000
    statistics = statistics_of(*batches)
    assert choose_range(statistics, "minmax")[1] == 1000
    assert choose_range(statistics, "percentile", percentile=99.9)[1] < 5
    assert choose_range(statistics, "moving_average")[1] < 60


def test_the_histogram_survives_numbers_of_very_different_size():
    tiny, huge = np.float32(1e-45), np.float32(3e38)
    for batches in ([[tiny], [huge]], [[huge], [tiny]], [[0.0], [tiny], [-huge]]):
        statistics = statistics_of(*batches)
        assert statistics.histogram.sum() == len(batches)
        low, high = choose_range(statistics)
        assert max(-low, high) == pytest.approx(float(huge))
