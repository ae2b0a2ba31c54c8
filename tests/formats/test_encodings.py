"""Encodings: parts look as the layout says, and give back what was taken apart."""

from dataclasses import replace

import numpy as np
import pytest

from tinytorch.errors import DTypeError, SettingError
from tinytorch.formats.affine import QuantizedArray, Scheme, quantize_array
from tinytorch.formats.encodings import ENCODINGS, MAIN, Encoded, Encoding
from tinytorch.formats.tensor_file import TensorSpec, code_of

MATRIX = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)


def chosen(array):
    return next(name for name, encoding in ENCODINGS.items() if encoding.accepts(array))


def int4(values):
    """Give an array of 4 bits with these values."""
    one, zero = np.ones((), np.float32), np.zeros((), np.int32)
    return QuantizedArray(np.array(values, np.int8), one, zero, Scheme(bits=4))


EXAMPLES = {
    "floats": MATRIX,
    "halves": MATRIX.astype(np.float16),
    "truths": MATRIX > 0,
    "a number": np.array(7, np.int64),
    **{
        f"{scheme}": quantize_array(MATRIX, scheme)
        for bits in (8, 4)
        for symmetric in (True, False)
        for scheme in (
            Scheme(bits, symmetric),
            Scheme(bits, symmetric, axis=0),
            Scheme(bits, symmetric, axis=1),
            Scheme(bits, symmetric, axis=1, group_size=3),
        )
    },
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_parts_are_what_the_layout_says(example):
    encoding = ENCODINGS[chosen(EXAMPLES[example])]
    encoded = encoding.encode(EXAMPLES[example])
    found = {
        part: TensorSpec(code_of(array.dtype), array.shape) for part, array in encoded.parts.items()
    }
    assert found == encoding.layout(encoded.shape, encoded.settings)
    assert MAIN in found
    assert encoded.shape == getattr(EXAMPLES[example], "values", EXAMPLES[example]).shape


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_is_taken_apart_comes_back(example):
    array = EXAMPLES[example]
    encoding = ENCODINGS[chosen(array)]
    found = encoding.decode(encoding.encode(array))
    if not isinstance(array, QuantizedArray):
        np.testing.assert_array_equal(found, array, strict=True)
        return
    assert found.scheme == array.scheme
    for field in ("values", "scale", "zero_point"):
        np.testing.assert_array_equal(getattr(found, field), getattr(array, field), strict=True)


def test_each_kind_of_array_has_its_encoding():
    assert chosen(MATRIX) == "plain"
    assert chosen(quantize_array(MATRIX, Scheme(bits=8))) == "int8"
    assert chosen(quantize_array(MATRIX, Scheme(bits=4))) == "int4"


def test_a_new_encoding_is_a_row():
    row = Encoding(
        accepts=lambda array: not array.any(),
        encode=lambda array: Encoded(array.shape, "", {MAIN: np.empty(0, np.uint8)}),
        layout=lambda shape, settings: {MAIN: TensorSpec("U8", (0,))},
        decode=lambda encoded: np.zeros(encoded.shape),
    )
    encoded = row.encode(np.zeros((2, 3)))
    np.testing.assert_array_equal(row.decode(encoded), np.zeros((2, 3)))


def test_the_first_of_two_values_is_in_the_lower_bits():
    array = int4([1, -1, 7, -8, 3])
    encoded = ENCODINGS["int4"].encode(array)
    assert encoded.parts[MAIN].tolist() == [0xF1, 0x87, 0x03]


@pytest.mark.parametrize("count", range(6))
def test_an_odd_number_of_small_values_comes_back(count):
    values = np.arange(-8, -8 + count)
    found = ENCODINGS["int4"].decode(ENCODINGS["int4"].encode(int4(values)))
    assert found.values.tolist() == values.tolist()


def test_all_small_values_come_back():
    values = np.array([[low, high] for low in range(-8, 8) for high in range(-8, 8)])
    found = ENCODINGS["int4"].decode(ENCODINGS["int4"].encode(int4(values)))
    np.testing.assert_array_equal(found.values, values)


def test_zero_points_take_a_byte_and_only_where_there_are_any():
    parts = ENCODINGS["int8"].encode(quantize_array(MATRIX, Scheme(axis=1))).parts
    assert parts["zero_point"].nbytes == 5
    assert "zero_point" not in (
        ENCODINGS["int8"].encode(quantize_array(MATRIX, Scheme(axis=1, symmetric=True))).parts
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
        ENCODINGS[chosen(array)].encode(array)


@pytest.mark.parametrize("array", [np.array([1j]), np.array(["a"]), np.array([None])])
def test_only_numbers_and_truths_are_stored(array):
    with pytest.raises(DTypeError, match="cannot be stored; convert them"):
        ENCODINGS["plain"].encode(array)


@pytest.mark.parametrize(
    ("encoding", "shape", "settings", "message"),
    [
        ("plain", (2,), "F33", "'F33' is no dtype"),
        ("plain", (2,), "F32 F32", "'F32 F32' is no dtype"),
        ("int8", (2,), "axis", "no settings"),
        ("int8", (2,), "axis=x", "no settings"),
        ("int8", (2,), "zero axis=0", "no settings"),
        ("int8", (2,), "sparse", "no settings"),
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
        ENCODINGS[encoding].layout(shape, settings)
