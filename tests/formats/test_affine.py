"""Quantization arithmetic: exact zero, half a step, and what PyTorch computes."""

import tracemalloc

import numpy as np
import pytest
from drawn_schemes import BITS, MATRICES, NUMBERS, ROWS, TAME, arrays_and_schemes
from hypothesis import assume, given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.errors import DTypeError, SettingError, ShapeError
from tinytorch.formats import affine
from tinytorch.formats.affine import (
    QuantizedArray,
    Scheme,
    _checked_axis,
    affine_parameters,
    quantize_array,
    scale_shape,
    value_limits,
)

# The quotient x / scale and the product scale * (value - zero_point) are below 256, and each is
# rounded to float32: off by 2**-16 steps at most.
HALF_STEP = 0.5 + 2**-15


def spread(quantized, parameters):
    """Give one parameter for each element."""
    shape, scheme = quantized.values.shape, quantized.scheme
    if scheme.group_size is not None:
        return np.repeat(parameters, scheme.group_size, axis=0)
    if scheme.axis is None:
        return np.broadcast_to(parameters, shape)
    others = [axis for axis in range(len(shape)) if axis != scheme.axis % len(shape)]
    return np.broadcast_to(np.expand_dims(parameters, others), shape)


def steps_off(array, quantized):
    """Give how many steps each element of a round trip is off."""
    difference = quantized.dequantize().astype(np.float64) - np.asarray(array, np.float64)
    return np.abs(difference) / spread(quantized, quantized.scale).astype(np.float64)


# ---------------------------------------------------------------- properties


@given(arrays_and_schemes())
def test_a_round_trip_is_off_by_at_most_half_a_step(case):
    array, scheme = case
    quantized = quantize_array(array, scheme)
    assert steps_off(array, quantized).max(initial=0) <= HALF_STEP
    assert np.isfinite(quantized.dequantize()).all()


@given(arrays_and_schemes())
def test_what_is_held_has_the_promised_types_and_shapes(case):
    array, scheme = case
    quantized = quantize_array(array, scheme)
    lowest, highest = value_limits(scheme.bits, scheme.symmetric)
    assert quantized.values.dtype == np.int8
    assert quantized.values.shape == array.shape
    assert quantized.values.min(initial=0) >= lowest
    assert quantized.values.max(initial=0) <= highest
    assert quantized.scale.dtype == np.float32
    assert quantized.zero_point.dtype == np.int32
    assert quantized.scale.shape == quantized.zero_point.shape == scale_shape(array.shape, scheme)
    assert quantized.dequantize().dtype == np.float32
    assert quantized.dequantize().shape == array.shape


@given(arrays_and_schemes(), st.sampled_from(["range", "mse"]))
def test_zero_is_exact(case, fit):
    array, scheme = case
    is_zero = np.arange(array.size).reshape(array.shape) % 2 == 0
    back = quantize_array(np.where(is_zero, np.float32(0), array), scheme, fit=fit).dequantize()
    assert (back[is_zero] == 0).all()


@given(arrays_and_schemes())
def test_scales_are_normal_numbers_whose_inverse_is_finite(case):
    scale = quantize_array(*case).scale
    assert (scale >= np.finfo(np.float32).tiny).all()
    assert np.isfinite(np.float32(1) / scale).all()


@given(ROWS, BITS, st.booleans(), st.none() | st.tuples(TAME, TAME).map(sorted))
def test_a_larger_element_never_gets_a_smaller_value(row, bits, symmetric, limits):
    row = np.sort(row)
    quantized = quantize_array(row, Scheme(bits, symmetric), limits=limits)
    assert (np.diff(quantized.values.astype(int)) >= 0).all()
    assert (quantized.dequantize()[1:] >= quantized.dequantize()[:-1]).all()


@given(arrays_and_schemes())
def test_quantizing_again_with_the_same_limits_changes_nothing(case):
    array, scheme = case
    quantized = quantize_array(array, scheme)
    lowest, highest = value_limits(scheme.bits, scheme.symmetric)
    scale = quantized.scale.astype(np.float64)
    ends = [scale * (end - quantized.zero_point) for end in (lowest, highest)]
    again = quantize_array(quantized.dequantize(), scheme, limits=tuple(ends))
    np.testing.assert_array_equal(again.values, quantized.values)
    np.testing.assert_array_equal(again.zero_point, quantized.zero_point)


@given(arrays_and_schemes(MATRICES))
def test_quantizing_again_changes_nothing_where_every_scale_was_used_from_end_to_end(case):
    array, scheme = case
    quantized = quantize_array(array, scheme)
    again = quantize_array(quantized.dequantize(), scheme)
    # With a zero point, a tie at one end may leave the last value unused; then the range of what
    # came back is a step shorter. Zero belongs to the range as well.
    lowest, highest = value_limits(scheme.bits, scheme.symmetric)
    if not scheme.symmetric:
        parts = parts_by_scale(quantized)
        zeros = np.ravel(quantized.zero_point)
        assume(all(min(p.min(), z) == lowest for p, z in zip(parts, zeros, strict=True)))
        assume(all(max(p.max(), z) == highest for p, z in zip(parts, zeros, strict=True)))
    np.testing.assert_array_equal(again.values, quantized.values)


def parts_by_scale(quantized):
    """Give the values of each scale."""
    owner = spread(quantized, np.arange(quantized.scale.size).reshape(quantized.scale.shape))
    return [quantized.values[owner == index] for index in range(quantized.scale.size)]


@given(MATRICES, BITS, st.booleans())
def test_one_group_of_all_rows_is_one_scale_for_each_column(matrix, bits, symmetric):
    by_column = quantize_array(matrix, Scheme(bits, symmetric, axis=1))
    by_group = quantize_array(matrix, Scheme(bits, symmetric, axis=1, group_size=len(matrix)))
    np.testing.assert_array_equal(by_group.values, by_column.values)
    np.testing.assert_array_equal(by_group.scale, by_column.scale[None])
    np.testing.assert_array_equal(by_group.zero_point, by_column.zero_point[None])


@given(arrays_and_schemes(MATRICES))
def test_every_scale_belongs_to_its_elements_alone(case):
    array, scheme = case
    quantized = quantize_array(array, scheme)
    owner = spread(quantized, np.arange(quantized.scale.size).reshape(quantized.scale.shape))
    whole = Scheme(scheme.bits, scheme.symmetric)
    for index, scale in enumerate(quantized.scale.flat):
        alone = quantize_array(array[owner == index], whole)
        assert alone.scale == scale
        np.testing.assert_array_equal(alone.values, quantized.values[owner == index])


@given(arrays_and_schemes(), st.integers(1, 7))
def test_the_size_of_the_blocks_does_not_matter(case, block):
    whole = quantize_array(*case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(affine, "BLOCK", block)
        in_blocks = quantize_array(*case)
        np.testing.assert_array_equal(in_blocks.dequantize(), whole.dequantize())
    np.testing.assert_array_equal(in_blocks.values, whole.values)


# ---------------------------------------------------------------- single cases


def test_numbers_far_from_zero_come_back_within_half_a_step():
    quantized = quantize_array([10, 10.5, 11])
    assert quantized.scale == pytest.approx(11 / 255)
    np.testing.assert_allclose(quantized.dequantize(), [10, 10.5, 11], atol=11 / 255 / 2)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("constant", [5.0, -3.25, 1e-30, 3e38, -3.4028235e38])
def test_a_constant_comes_back_but_for_rounding(constant, symmetric):
    quantized = quantize_array(np.full((3, 4), constant, np.float32), Scheme(symmetric=symmetric))
    # The scale and the product are rounded: 2**-23 and 2**-24 of them.
    np.testing.assert_allclose(quantized.dequantize(), np.float32(constant), rtol=2**-22)


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(symmetric=True), Scheme(4), Scheme(axis=0)])
def test_zeros_have_the_scale_one(scheme):
    quantized = quantize_array(np.zeros(7, np.float32), scheme)
    assert (quantized.scale == 1).all()
    assert (quantized.zero_point == 0).all()
    assert (quantized.dequantize() == 0).all()


@pytest.mark.parametrize(
    ("shape", "scheme", "scales"),
    [
        ((0,), Scheme(), ()),
        ((0, 3), Scheme(axis=1), (3,)),
        ((0, 3), Scheme(axis=0), (0,)),
        ((3, 0), Scheme(axis=1, group_size=3), (1, 0)),
        ((0, 3), Scheme(axis=1, group_size=8), (0, 3)),
    ],
)
@pytest.mark.parametrize("fit", ["range", "mse"])
def test_an_empty_array_stays_empty(shape, scheme, scales, fit):
    quantized = quantize_array(np.empty(shape, np.float32), scheme, fit=fit)
    assert quantized.scale.shape == scales
    assert quantized.dequantize().shape == shape
    assert (quantized.scale == 1).all()


def test_a_single_number_is_an_array_without_axes():
    quantized = quantize_array(2.5)
    assert quantized.values.shape == ()
    assert quantized.dequantize() == pytest.approx(2.5, rel=2**-22)


@pytest.mark.parametrize(
    "dtype",
    [np.float16, np.float64, np.longdouble, np.int8, np.uint8, np.int32, np.int64, np.bool_],
)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_numbers_of_every_kind_are_taken(dtype, axis, rng):
    array = rng.integers(0, 100, (6, 5)).astype(dtype)
    quantized = quantize_array(array, Scheme(axis=axis))
    assert steps_off(array, quantized).max() <= HALF_STEP


@pytest.mark.parametrize("order", ["C", "F", "strided", "broadcast"])
def test_the_layout_in_memory_does_not_matter(order, rng):
    array = rng.normal(size=(12, 10)).astype(np.float32)
    twin = {
        "C": array,
        "F": np.asfortranarray(array),
        "strided": np.repeat(np.repeat(array, 2, 0), 3, 1)[::2, ::3],
        "broadcast": np.broadcast_to(array[:1], array.shape),
    }[order]
    array = np.ascontiguousarray(twin)
    for scheme in (Scheme(), Scheme(axis=0), Scheme(axis=1), Scheme(4, axis=1, group_size=4)):
        quantized = quantize_array(twin, scheme)
        assert quantized.values.flags.c_contiguous
        np.testing.assert_array_equal(quantized.values, quantize_array(array, scheme).values)


def test_the_input_is_left_alone(rng):
    array = rng.normal(size=(8, 8)).astype(np.float32)
    kept = array.copy()
    array.flags.writeable = False
    quantize_array(array, Scheme(4, axis=1, group_size=4), fit="mse")
    np.testing.assert_array_equal(array, kept)


def test_a_half_is_rounded_to_the_even_value():
    # The range gives the scale 1 and the zero point 0.
    quantized = quantize_array([-127, -1.5, -0.5, 0.5, 1.5, 2.5, 127], Scheme(symmetric=True))
    assert quantized.values.tolist() == [-127, -2, 0, 0, 2, 2, 127]


def test_weights_of_usual_size_lose_less_than_two_ten_thousandths(rng):
    for shape, axis in (((1024, 1024), 1), ((64, 64, 3, 3), 0), ((4096, 512), 1)):
        weight = rng.normal(0, 0.02, shape).astype(np.float32)
        for symmetric in (True, False):
            back = quantize_array(weight, Scheme(symmetric=symmetric, axis=axis)).dequantize()
            assert np.sqrt(np.square(back - weight).mean()) < 2e-4


def test_bytes_are_those_of_what_is_held(rng):
    matrix = rng.normal(size=(64, 32)).astype(np.float32)
    assert quantize_array(matrix).nbytes == 64 * 32 + 4 + 4
    assert quantize_array(matrix, Scheme(symmetric=True, axis=1)).nbytes == 64 * 32 + 4 * 32
    assert quantize_array(matrix, Scheme(axis=1)).nbytes == 64 * 32 + 8 * 32
    by_group = quantize_array(matrix, Scheme(4, True, axis=1, group_size=16))
    assert by_group.nbytes == 64 * 32 + 4 * 4 * 32  # a byte for each value until they are packed


def test_a_large_array_is_worked_on_in_blocks(rng):
    weight = rng.normal(size=(2048, 1024)).astype(np.float32)
    for scheme in (Scheme(), Scheme(axis=1), Scheme(4, True, axis=1, group_size=32)):
        tracemalloc.start()
        quantize_array(weight, scheme, fit="mse")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # The values take a quarter of the weight, scales of groups up to an eighth with what the
        # search keeps of each in float64; a float64 copy alone would take twice the weight.
        assert peak < weight.nbytes


# ---------------------------------------------------------------- limits and fits


@given(ROWS, st.tuples(TAME, TAME).map(sorted), BITS, st.booleans())
def test_limits_clip_what_lies_outside(row, limits, bits, symmetric):
    low, high = limits
    assume(high - low > 1e-3)
    scheme = Scheme(bits, symmetric)
    clipped = np.clip(row, min(low, 0), max(high, 0))
    if symmetric:
        clipped = np.clip(row, -max(abs(low), abs(high)), max(abs(low), abs(high)))
    quantized = quantize_array(row, scheme, limits=(low, high))
    assert steps_off(clipped, quantized).max() <= HALF_STEP
    scale, zero_point = affine_parameters(low, high, bits=bits, symmetric=symmetric)
    assert (quantized.scale, quantized.zero_point) == (scale, zero_point)


def test_limits_may_be_given_for_each_scale(rng):
    matrix = rng.normal(size=(8, 3)).astype(np.float32)
    high = np.array([0.5, 1, 2])
    quantized = quantize_array(matrix, Scheme(axis=1), limits=(-high, high))
    bounded = np.clip(matrix, -high, high)
    assert steps_off(bounded, quantized).max() <= HALF_STEP
    one_low = quantize_array(matrix, Scheme(axis=1), limits=(-1, high))
    assert one_low.scale.shape == (3,)


# ---------------------------------------------------------------- PyTorch


def torch_values(torch, array, quantized):
    """Give what PyTorch makes of an array by the same scale and zero point."""
    scheme = quantized.scheme
    scale, zero_point = torch.tensor(quantized.scale), torch.tensor(quantized.zero_point)
    lowest, highest = value_limits(scheme.bits, scheme.symmetric)
    if scheme.axis is None:
        return torch.fake_quantize_per_tensor_affine(
            torch.tensor(array), scale, zero_point, lowest, highest
        ).numpy()
    return torch.fake_quantize_per_channel_affine(
        torch.tensor(array), scale, zero_point, scheme.axis, lowest, highest
    ).numpy()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_pytorch_gives_the_same_numbers(bits, symmetric, axis, rng):
    torch = require_part("torch")
    array = (rng.normal(size=(5, 7, 6)) + 0.3).astype(np.float32)
    quantized = quantize_array(array, Scheme(bits, symmetric, axis))
    back = quantized.dequantize()
    theirs = torch_values(torch, array, quantized)
    # It multiplies with the inverse, which rounds once more: near a half, it may decide otherwise.
    quotient = array.astype(np.float64) / spread(quantized, quantized.scale)
    is_clear = np.abs(np.abs(quotient - np.rint(quotient)) - 0.5) > 1e-4
    np.testing.assert_array_equal(back[is_clear], theirs[is_clear])
    assert is_clear.mean() > 0.99


@pytest.mark.parametrize("symmetric", [True, False])
def test_pytorch_chooses_the_same_scale_and_zero_point(symmetric, rng):
    torch = require_part("torch")
    observers = require_part("torch.ao.quantization.observer")
    lowest, highest = value_limits(8, symmetric)
    scheme = torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine
    for shift in (-5.0, -0.3, 0.0, 0.2, 9.0):
        array = (rng.normal(size=200) + shift).astype(np.float32)
        observer = observers.MinMaxObserver(
            dtype=torch.qint8, qscheme=scheme, quant_min=lowest, quant_max=highest
        )
        observer(torch.tensor(array))
        their_scale, their_zero = observer.calculate_qparams()
        quantized = quantize_array(array, Scheme(symmetric=symmetric))
        # Theirs is computed in float32: the difference, the quotient and ours are rounded.
        assert float(quantized.scale) == pytest.approx(float(their_scale), rel=2**-21)
        assert int(quantized.zero_point) == int(their_zero)


# ---------------------------------------------------------------- parameters


@given(st.lists(st.tuples(NUMBERS, NUMBERS).map(sorted), min_size=1), BITS, st.booleans())
def test_the_values_reach_over_the_whole_range(ranges, bits, symmetric):
    low, high = np.array(ranges).T
    scale, zero_point = affine_parameters(low, high, bits=bits, symmetric=symmetric)
    lowest, highest = value_limits(bits, symmetric)
    assert scale.dtype == np.float32
    assert zero_point.dtype == np.int32
    assert scale.shape == zero_point.shape == low.shape
    assert ((lowest <= zero_point) & (zero_point <= highest)).all()
    wide = scale.astype(np.float64)
    half = 0.5 + 1e-12  # float64 rounds as well
    assert (wide * (lowest - zero_point - half) <= np.minimum(low, 0)).all()
    assert (wide * (highest - zero_point + half) >= np.maximum(high, 0)).all()


def test_a_range_is_widened_to_contain_zero():
    assert affine_parameters(2, 5) == affine_parameters(0, 5)
    assert affine_parameters(-5, -2) == affine_parameters(-5, 0)
    assert affine_parameters(-1, 5, symmetric=True) == affine_parameters(-5, 5, symmetric=True)


def test_the_range_of_every_float32_is_possible():
    largest = np.finfo(np.float32).max
    scale, zero_point = affine_parameters(-largest, largest)
    assert float(scale) == pytest.approx(2 * float(largest) / 255)
    assert zero_point == 0  # -0.5, to even


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 5}, "bits=5; values have 8 or 4 bits"),
        ({"axis": 1, "group_size": 0}, "group_size=0; a group has at least one row"),
        ({"group_size": 32}, r"group_size=32 with axis=None; groups of rows need axis=1"),
        ({"axis": 0, "group_size": 32}, "group_size=32 with axis=0"),
    ],
)
def test_a_scheme_that_cannot_be_is_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        Scheme(**settings)


@pytest.mark.parametrize(
    ("shape", "scheme", "message"),
    [
        ((2, 3), Scheme(axis=2), r"axis=2 of an array of shape \(2, 3\); it has the axes 0 to 1"),
        ((), Scheme(axis=0), r"axis=0 of an array of shape \(\); it has no axis: axis=None"),
        (
            (96, 3),
            Scheme(axis=1, group_size=36),
            "groups of 36 do not divide 96 rows; a group_size that does is 24, 32, 48",
        ),
        ((8, 3), Scheme(axis=1, group_size=100), "a group_size that does is 2, 4, 8"),
        ((8, 3, 2), Scheme(axis=1, group_size=4), r"needs a matrix, but the shape is \(8, 3, 2\)"),
    ],
)
def test_a_scheme_that_does_not_fit_the_array_is_refused(shape, scheme, message):
    with pytest.raises(SettingError, match=message):
        quantize_array(np.ones(shape, np.float32), scheme)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scheme", [Scheme(), Scheme(axis=0), Scheme(axis=1, group_size=2)])
@pytest.mark.parametrize("limits", [None, (-1, 1)])
def test_what_is_not_finite_is_refused_with_its_place(wrong, scheme, limits):
    array = np.ones((6, 5), np.float32)
    array[3, 2] = array[4, 1] = wrong
    message = rf"2 of 30 elements are not finite, the first is {wrong} at \(3, 2\); only finite"
    with pytest.raises(SettingError, match=message):
        quantize_array(array, scheme, limits=limits)


def test_what_is_no_real_number_is_refused():
    for array in (np.ones(2, np.complex64), np.array(["a"]), [None]):
        with pytest.raises(DTypeError, match="cannot be quantized"):
            quantize_array(array)


def test_a_fit_that_nobody_knows_is_refused():
    with pytest.raises(SettingError, match="fit='best'; choose one of range, mse"):
        quantize_array([1.0], fit="best")
    with pytest.raises(SettingError, match="fit='mse'"):
        quantize_array([1.0], limits=(0, 1), fit="mse")


def test_limits_that_do_not_fit_are_refused():
    matrix = np.ones((4, 3), np.float32)
    with pytest.raises(
        ShapeError, match=r"limits of shape \(4,\) do not fit scales of shape \(3,\)"
    ):
        quantize_array(matrix, Scheme(axis=1), limits=(0, np.ones(4)))
    for limits in ((1, 0), (np.nan, 1), (0, np.inf)):
        with pytest.raises(SettingError, match="finite numbers"):
            quantize_array(matrix, limits=limits)


def test_a_range_that_float32_cannot_scale_is_refused():
    with pytest.raises(SettingError, match=r"1e\+300 is beyond float32.* divide the array"):
        quantize_array([1e300])
    with pytest.raises(SettingError, match=r"a range from 3\.0 to 2\.0 cannot be quantized"):
        affine_parameters([0.0, 3.0], [1.0, 2.0])
    with pytest.raises(SettingError, match="beyond float32"):
        quantize_array([-1.5e308, 1.5e308])


def test_a_quantized_array_says_what_it_is():
    quantized = quantize_array([1.0, 2.0], Scheme(symmetric=True))
    assert isinstance(quantized, QuantizedArray)
    assert quantized.scheme == Scheme(symmetric=True)
    assert quantize_array(np.ones((2, 2)), Scheme(axis=-1)).scheme.axis == 1


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_an_axis_is_counted_from_the_front(axis, rng):
    array = rng.normal(size=(2, 3, 4))
    found = quantize_array(array, Scheme(8, False, axis))
    assert found.scale.size == array.shape[axis]
    assert _checked_axis(array.shape, Scheme(8, False, axis)) == axis % 3
