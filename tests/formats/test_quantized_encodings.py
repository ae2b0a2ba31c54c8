"""Quantized arrays as parts: small, exact, and settings that mean nothing are refused."""

from dataclasses import replace

import numpy as np
import pytest

from tinytorch.errors import SettingError
from tinytorch.formats.affine import QuantizedArray, Scheme, quantize_array
from tinytorch.formats.encodings import MAIN, QUANTIZED, has_bits, scheme_of, scheme_words

MATRIX = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)


def int4(values):
    """Give an array of 4 bits with these values."""
    one, zero = np.ones((), np.float32), np.zeros((), np.int32)
    return QuantizedArray(np.array(values, np.int8), one, zero, Scheme(bits=4))


def test_the_first_of_two_values_is_in_the_lower_bits():
    array = int4([1, -1, 7, -8, 3])
    encoded = QUANTIZED["int4"].encode(array)
    assert encoded.parts[MAIN].tolist() == [0xF1, 0x87, 0x03]


@pytest.mark.parametrize("count", range(6))
def test_an_odd_number_of_small_values_comes_back(count):
    values = np.arange(-8, -8 + count)
    found = QUANTIZED["int4"].decode(QUANTIZED["int4"].encode(int4(values)))
    assert found.values.tolist() == values.tolist()


def test_all_small_values_come_back():
    values = np.array([[low, high] for low in range(-8, 8) for high in range(-8, 8)])
    found = QUANTIZED["int4"].decode(QUANTIZED["int4"].encode(int4(values)))
    np.testing.assert_array_equal(found.values, values)


def test_zero_points_take_a_byte_and_only_where_there_are_any():
    parts = QUANTIZED["int8"].encode(quantize_array(MATRIX, Scheme(axis=1))).parts
    assert parts["zero_point"].nbytes == 5
    assert "zero_point" not in (
        QUANTIZED["int8"].encode(quantize_array(MATRIX, Scheme(axis=1, symmetric=True))).parts
    )


# ---------------------------------------------------------------- what cannot be stored


GOOD = quantize_array(MATRIX, Scheme(axis=1))
SYMMETRIC = quantize_array(MATRIX, Scheme(axis=1, symmetric=True))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (replace(GOOD, values=GOOD.values.astype(np.int32)), "values are int32, .*must be int8"),
        (replace(GOOD, scale=GOOD.scale.astype(np.float64)), "scales float64"),
        (replace(GOOD, zero_point=GOOD.zero_point.astype(np.int8)), "zero points int8"),
        (replace(GOOD, scale=GOOD.scale[:3]), r"scales have shape \(3,\).*need \(5,\)"),
        (replace(GOOD, zero_point=GOOD.zero_point[:3]), r"zero points \(3,\)"),
        (replace(GOOD, zero_point=GOOD.zero_point + 300), "zero points go .*in -128..127"),
        (replace(SYMMETRIC, zero_point=SYMMETRIC.zero_point + 1), "zero points go .*in 0..0"),
        (int4([0, 8]), "values go from 0 to 8; they must lie in -8..7"),
    ],
)
def test_what_would_not_come_back_is_refused(array, message):
    with pytest.raises(SettingError, match=message):
        QUANTIZED[f"int{array.scheme.bits}"].encode(array)


@pytest.mark.parametrize(
    "scheme",
    [Scheme(), Scheme(4, True), Scheme(8, True, -2), Scheme(4, False, 1), Scheme(4, True, 1, 32)],
)
def test_the_words_of_a_scheme_stand_for_it(scheme):
    assert scheme_of(scheme.bits, scheme_words(scheme)) == scheme


def test_only_quantized_arrays_have_bits():
    assert has_bits(4, int4([1]))
    assert not has_bits(8, int4([1]))
    assert not has_bits(8, MATRIX)


@pytest.mark.parametrize(
    ("encoding", "shape", "settings", "message"),
    [
        ("int8", (2,), "axis", "not settings"),
        ("int8", (2,), "axis=x", "not settings"),
        ("int8", (2,), "zero axis=0", "not settings"),
        ("int8", (2,), "sparse", "not settings"),
        ("int8", (2,), "axis=1", r"axis=1 of an array of shape \(2,\)"),
        ("int8", (), "axis=0", "it has no axis"),
        ("int8", (4, 4), "axis=0 group=2", "group_size=2 with axis=0"),
        ("int8", (4, 4), "axis=1 group=0", "group_size=0"),
        ("int8", (4, 4), "axis=1 group=3", "groups of 3 do not divide 4 rows"),
        ("int8", (4, 4, 4), "axis=1 group=2", "needs a matrix"),
        # Looking for a group size that fits would take days.
        ("int4", (10**18, 0), "axis=1 group=7", "groups of 7 do not divide"),
    ],
)
def test_settings_that_mean_nothing_are_refused(encoding, shape, settings, message):
    with pytest.raises(ValueError, match=message):
        QUANTIZED[encoding].layout(shape, settings)
