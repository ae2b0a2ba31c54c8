import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.kernels import reference_quantized as reference
from tinytorch.core.kernels.numpy_quantized import int8_embedding
from tinytorch.core.kernels.packing import pack_int8
from tinytorch.errors import DTypeError, ShapeError


def table(width, tokens, seed=0):
    rng = np.random.default_rng(seed)
    weight = rng.integers(-128, 128, (width, tokens)).astype(np.int8)
    packed = pack_int8(weight, rng.uniform(0.001, 0.01, tokens).astype(np.float32))
    return packed.values, packed.scales


@given(
    st.integers(1, 40),
    st.integers(1, 140),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([np.int64, np.int32, np.uint8]),
)
def test_rows_are_those_of_the_reference(width, tokens, shape, dtype):
    arrays = table(width, tokens)
    ids = np.asarray(np.random.default_rng(width).integers(0, tokens, shape), dtype)
    rows = int8_embedding(ids, *arrays, width=width)
    expected = reference.int8_embedding(ids, *arrays, width=width)
    np.testing.assert_array_equal(rows, expected)
    assert (rows.shape, rows.dtype) == (expected.shape, expected.dtype)


def test_the_table_is_not_unpacked():
    values, scales = table(64, 5000)
    ids = np.arange(20)
    tracemalloc.start()
    try:
        int8_embedding(ids, values, scales, width=64)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes / 5


@pytest.mark.parametrize("ids", [[-1, 3], [0, 70]])
def test_other_ids_mean_what_they_mean_in_the_reference(ids):
    arrays = table(6, 70)
    if max(ids) < 70:
        rows, expected = (
            look_up(np.array(ids), *arrays, width=6)
            for look_up in (int8_embedding, reference.int8_embedding)
        )
        np.testing.assert_array_equal(rows, expected)
    else:
        with pytest.raises(IndexError, match="out of bounds"):
            int8_embedding(np.array(ids), *arrays, width=6)


def test_what_does_not_fit_is_refused():
    values, scales = table(6, 70)
    with pytest.raises(ShapeError, match="packed weight of 9 inputs and 70 outputs"):
        int8_embedding(np.array([1]), values, scales, width=9)
    with pytest.raises(DTypeError, match="must be integers"):
        int8_embedding(np.array([True]), values, scales, width=6)


def test_values_may_lie_anywhere_in_memory():
    values, scales = table(6, 70)
    spread = np.zeros(2 * values.size, np.int8)
    spread[::2] = values
    ids = np.array([3, 69])
    rows = int8_embedding(ids, spread[::2], scales, width=6)
    np.testing.assert_array_equal(rows, int8_embedding(ids, values, scales, width=6))
