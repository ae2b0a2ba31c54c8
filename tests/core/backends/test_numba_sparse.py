"""Compiled products with sparse weights, against the reference and dense products."""

import numpy as np
import pytest
from compiled_checks import check_every_call, signatures_of
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba import sparse as numba_sparse
from tinytorch.core.kernels.numba.simd import LANES
from tinytorch.core.kernels.numba.sparse import KERNELS, choose_block, sparse_linear
from tinytorch.core.kernels.reference_quantized import pack_sparse
from tinytorch.errors import ShapeError


def test_it_computes_what_the_reference_computes():
    check_every_call(KERNELS, "sparse_linear")


@given(
    st.integers(1, 80),
    st.integers(1, 90),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    st.integers(0, 2**32 - 1),
)
def test_it_is_as_close_to_the_exact_product_as_float32_allows(rows, inputs, outputs, zeros, seed):
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(inputs, outputs)).astype(np.float32)
    weight[rng.random(weight.shape) < zeros] = 0
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    bias = rng.normal(size=outputs).astype(np.float32)
    exact = x.astype(np.float64) @ weight + bias
    # every addition and product of a sum is off by half a unit in the last place, at most
    magnitude = np.abs(x).astype(np.float64) @ np.abs(weight) + np.abs(bias)
    bound = (inputs + 2) * np.finfo(np.float32).eps * magnitude
    ours = sparse_linear(x, *pack_sparse(weight), bias)
    assert (np.abs(ours - exact) <= bound).all()


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_whole_numbers_are_exact(rows, inputs, outputs, seed):
    rng = np.random.default_rng(seed)
    weight = rng.integers(-9, 9, (inputs, outputs)) * (rng.random((inputs, outputs)) < 0.2)
    x = rng.integers(-9, 9, (rows, inputs)).astype(np.float32)
    ours = sparse_linear(x, *pack_sparse(weight.astype(np.float32)))
    np.testing.assert_array_equal(ours, x @ weight)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 4, 200])
def test_more_inputs_than_two_bytes_count(rows, rng):
    weight = np.zeros((70_000, 5), np.float32)
    weight[[0, 65_535, 65_536, 69_999], 1] = [1, 2, 3, 4]
    weight[69_998, 4] = 5
    packed = pack_sparse(weight)
    assert packed[1].dtype == np.int32
    x = rng.integers(-9, 9, (rows, 70_000)).astype(np.float32)
    np.testing.assert_array_equal(sparse_linear(x, *packed), x @ weight)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 17, 200])
def test_large_products_are_shared_among_threads(rows, rng):
    weight = rng.integers(-9, 9, (1200, 900)) * (rng.random((1200, 900)) < 0.1)
    x = rng.integers(-9, 9, (rows, 1200)).astype(np.float32)
    ours = sparse_linear(x, *pack_sparse(weight.astype(np.float32)))
    np.testing.assert_array_equal(ours, x @ weight)


@pytest.mark.parametrize("rows", [1, 20])
def test_wide_pointers_are_taken(rows, rng):
    values, indices, pointers = pack_sparse(np.eye(6, dtype=np.float32))
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    ours = sparse_linear(x, values, indices, pointers.astype(np.int64))
    np.testing.assert_array_equal(ours, x)


@pytest.mark.parametrize("rows", [1, 20])
def test_nan_stays_in_its_row_and_its_outputs(rows):
    x = np.ones((rows, 3), np.float32)
    x[0, 1] = np.nan
    result = sparse_linear(x, *pack_sparse(np.eye(3, dtype=np.float32)))
    assert np.argwhere(np.isnan(result)).tolist() == [[0, 1]]


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("inputs", [1, 29])
def test_an_input_of_the_wrong_width_is_refused(rows, inputs):
    packed = pack_sparse(np.ones((30, 4), np.float32))
    with pytest.raises(ShapeError, match=f"takes input 29, and x has {inputs} inputs"):
        sparse_linear(np.ones((rows, inputs), np.float32), *packed)


@pytest.mark.parametrize("pointers", [[0, 9, 2, 4], [0, -3, 2, 4], [0, 2, 3], [1, 2, 4], [0, 9]])
@pytest.mark.parametrize("rows", [1, 20])
def test_pointers_that_lead_astray_are_refused(pointers, rows):
    values, indices = np.ones(4, np.float32), np.arange(4, dtype=np.uint16)
    x = np.ones((rows, 4), np.float32)
    with pytest.raises(ShapeError, match="ascend from 0 to its 4 values"):
        sparse_linear(x, values, indices, np.array(pointers, np.int32))


def test_blocks_are_whole_vectors_and_alike():
    assert choose_block(5, 784) == LANES
    assert choose_block(3 * LANES, 784) == 3 * LANES
    many = choose_block(10_000 * LANES, 784)
    assert many % LANES == 0
    assert many * 784 * 4 <= numba_sparse.BLOCK_BYTES
    assert choose_block(100, 10**7) == LANES


def test_few_kernels_are_compiled():
    """Two types of indices, and two of pointers."""
    assert all(count <= 4 for count in signatures_of(numba_sparse).values())
