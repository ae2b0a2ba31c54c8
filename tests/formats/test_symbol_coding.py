"""Coded symbols: exact, near the entropy or below it, and any bytes are safe to decode."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from tinytorch.formats.entropy import decode_symbols, encode_symbols, entropy_bytes


def encoded(values, bits=8, carried=b""):
    mask = values != 0
    return encode_symbols(mask, values[mask], bits=bits, carried=carried)


def round_trip(values, bits=8, carried=b""):
    mask, symbols, rest = decode_symbols(encoded(values, bits, carried), values.shape, bits=bits)
    assert rest.startswith(carried)
    found = np.zeros(values.shape, np.uint8)
    found[mask] = symbols
    return found


@settings(max_examples=150)
@given(
    shape=array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12),
    bits=st.sampled_from([1, 2, 4, 8]),
    density=st.sampled_from([0, 0.05, 0.5, 1]),
    seed=st.integers(0, 2**32),
)
def test_symbols_of_any_shape_come_back(shape, bits, density, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1 << bits, shape, np.uint8) * (rng.random(shape) < density)
    values = np.asarray(values, np.uint8)
    np.testing.assert_array_equal(round_trip(values, bits, b"carried"), values)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((300, 7), np.uint8),
        np.full((300, 7), 255, np.uint8),
        np.arange(256, dtype=np.uint8),
        np.arange(256, dtype=np.uint8).reshape(1, 256),
        np.arange(200_000, dtype=np.uint32).astype(np.uint8),
    ],
)
def test_regular_arrays_come_back(values):
    np.testing.assert_array_equal(round_trip(values), values)


def test_a_mask_may_be_true_where_the_symbol_is_zero():
    mask, symbols, _ = decode_symbols(
        encode_symbols(np.ones(3, np.bool_), np.array([0, 5, 0], np.uint8), bits=3, carried=b""),
        (3,),
        bits=3,
    )
    assert mask.tolist() == [True] * 3
    assert symbols.tolist() == [0, 5, 0]


@pytest.mark.parametrize(("bits", "density"), [(8, 1), (8, 0.1), (4, 1), (4, 0.3), (4, 0.05)])
@pytest.mark.parametrize("shape", [(300, 700), (1, 210_000), (210_000,), (30_000, 7)])
def test_the_length_of_a_large_array_is_near_its_entropy(bits, density, shape, rng):
    top = 2 ** (bits - 1)
    bell = np.clip(np.rint(rng.normal(size=shape) * top / 4), 1 - top, top - 1).astype(np.int8)
    values = (bell * (rng.random(shape) < density)).view(np.uint8) & (2 * top - 1)
    # Carried bytes, so that lanes cost no more than in a real file.
    length = len(encoded(values, bits, bytes(10_000))) - 10_000
    # A lane takes a byte of a hundred. What is learned takes half a logarithm for each context.
    assert length <= 1.013 * entropy_bytes(values) + (60 if bits == 4 else 330)


def test_zeros_in_rows_and_columns_take_less_than_the_entropy(rng):
    rows, columns = np.arange(400)[:, None] % 100 < 50, rng.random((1, 128)) < 0.5
    values = (rng.integers(1, 16, (400, 128)) * (rows & columns)).astype(np.uint8)
    assert len(encoded(values, 4)) < 0.9 * entropy_bytes(values)


def test_an_array_of_zeros_takes_a_few_bytes():
    assert len(encoded(np.zeros(10_000, np.uint8))) < 30


@settings(max_examples=200)
@given(
    content=st.binary(min_size=5, max_size=60),
    shape=array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
    lanes=st.integers(0, 3),
)
def test_any_bytes_decode_to_something_or_are_refused(content, shape, lanes):
    try:
        mask, symbols, _ = decode_symbols(bytes([lanes]) + content, shape, bits=4)
    except ValueError:
        return
    assert mask.shape == shape
    assert symbols.size == np.count_nonzero(mask)
    assert symbols.max(initial=0) < 16
