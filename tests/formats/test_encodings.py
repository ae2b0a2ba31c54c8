"""Encodings: parts look as the layout says, and give back what was taken apart."""

import numpy as np
import pytest

from tinytorch.errors import DTypeError
from tinytorch.formats.affine import QuantizedArray, Scheme, quantize_array
from tinytorch.formats.encodings import MAIN
from tinytorch.formats.tensor_file import TensorSpec, code_of
from tinytorch.formats.weights_file import ENCODINGS

MATRIX = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)


def chosen(array):
    return next(name for name, encoding in ENCODINGS.items() if encoding.accepts(array))


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


def test_an_encoding_of_compact_files_is_never_the_first():
    assert {chosen(array) for array in EXAMPLES.values()} == {"plain", "int8", "int4"}


@pytest.mark.parametrize("name", ENCODINGS)
def test_each_encoding_that_accepts_an_array_gives_it_back(name):
    encoding = ENCODINGS[name]
    accepted = [array for array in EXAMPLES.values() if encoding.accepts(array)]
    assert accepted
    for array in accepted:
        found = encoding.decode(encoding.encode(array))
        for field in ("values", "scale", "zero_point") if name[-1] in "84" else ("real",):
            assert getattr(found, field).tobytes() == getattr(array, field).tobytes()


@pytest.mark.parametrize("array", [np.array([1j]), np.array(["a"]), np.array([None])])
def test_only_numbers_and_truths_are_stored(array):
    with pytest.raises(DTypeError, match="cannot be stored; convert them"):
        ENCODINGS["plain"].encode(array)


@pytest.mark.parametrize("settings", ["F33", "F32 F32"])
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ValueError, match=f"{settings!r} is not a dtype"):
        ENCODINGS["plain"].layout((2,), settings)
