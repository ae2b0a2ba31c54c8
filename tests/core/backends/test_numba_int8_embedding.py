import numpy as np
import pytest
from compiled_checks import check_every_call
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

require_part("numba")

from tinytorch.core.kernels import reference_quantized as reference_int8_embedding
from tinytorch.core.kernels.numba import int8 as numba_int8_embedding
from tinytorch.core.kernels.packing import pack_int8
from tinytorch.errors import DTypeError, ShapeError

int8_embedding = numba_int8_embedding.int8_embedding


def table(width, tokens, seed=0):
    rng = np.random.default_rng(seed)
    weight = rng.integers(-128, 128, (width, tokens)).astype(np.int8)
    packed = pack_int8(weight, rng.uniform(0.001, 0.01, tokens).astype(np.float32))
    return packed.values, packed.scales


def test_it_computes_what_the_reference_computes():
    check_every_call(numba_int8_embedding.EMBEDDING_KERNELS, "int8_embedding")


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
    expected = reference_int8_embedding.int8_embedding(ids, *arrays, width=width)
    np.testing.assert_array_equal(rows, expected)
    assert (rows.shape, rows.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("wrong", [70, 2**40, np.iinfo(np.int64).max])
def test_an_id_outside_of_the_table_is_an_error_and_nothing_is_read(wrong):
    with pytest.raises(IndexError, match="out of bounds"):
        int8_embedding(np.array([0, wrong]), *table(6, 70), width=6)


def test_an_id_that_int64_does_not_have_is_an_error():
    with pytest.raises(IndexError, match="out of bounds"):
        int8_embedding(np.array([0, 2**63], np.uint64), *table(6, 70), width=6)


def test_negative_ids_count_from_the_end_as_in_the_reference():
    arrays, ids = table(6, 70), np.array([[-1, 3], [-70, 0]])
    expected = reference_int8_embedding.int8_embedding(ids, *arrays, width=6)
    np.testing.assert_array_equal(int8_embedding(ids, *arrays, width=6), expected)


@pytest.mark.parametrize("width", [0, 9])
def test_a_table_of_another_width_is_refused(width):
    with pytest.raises(ShapeError, match=f"packed weight of {width} inputs and 70 outputs"):
        int8_embedding(np.array([1]), *table(6, 70), width=width)


def test_scales_of_another_number_are_refused():
    values, scales = table(6, 70)
    with pytest.raises(ShapeError, match="packed weight of 6 inputs and 69 outputs"):
        int8_embedding(np.array([1]), values, scales[1:], width=6)
    with pytest.raises(DTypeError, match="must be integers"):
        int8_embedding(np.array([1.0]), values, scales, width=6)
