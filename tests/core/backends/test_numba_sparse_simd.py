"""The inner loops of sparse products, on their own."""

import numpy as np
import pytest
from parts import require_part

numba = require_part("numba")

from tinytorch.core.kernels.numba.simd import LANES
from tinytorch.core.kernels.numba.sparse import CHAINS, sparse_dot, sparse_tile

INDICES = [2, 3, 5, 7, 11, 13, 17, 19, 23]
VALUES = np.arange(1, 10, dtype=np.float32)


@numba.njit
def dot(x, values, indices, first, last):
    return sparse_dot(x, 4, values, indices, first, last)


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
@pytest.mark.parametrize("count", [0, 1, CHAINS, CHAINS + 1, 2 * CHAINS])
def test_a_dot_product_takes_the_weights_between_two_ends(kind, count, rng):
    x, indices = rng.integers(-9, 9, 28).astype(np.float32), np.array(INDICES, kind)
    taken = slice(1, 1 + count)
    exact = x[4:][indices[taken]] @ VALUES[taken]
    assert dot(x, VALUES, indices, 1, 1 + count) == exact


@pytest.mark.parametrize("vectors", [1, 2, 8])
def test_a_tile_is_one_output_for_vectors_of_rows(vectors, rng):
    tile = sparse_tile(vectors)

    @numba.njit
    def multiply(x, line, values, indices, first, last, out):
        tile(x, 3, line, values, indices, first, last, out, 2)

    rows, line = vectors * LANES, vectors * LANES + 1
    x = rng.integers(-9, 9, 3 + 24 * line).astype(np.float32)
    out = np.full(rows + 4, 99, np.float32)
    multiply(x, line, VALUES, np.array(INDICES, np.uint16), 0, 9, out)
    lines = x[3:].reshape(24, line)[INDICES, :rows]
    np.testing.assert_array_equal(out[2:-2], VALUES @ lines)
    assert out[[0, 1, -2, -1]].tolist() == [99] * 4


def test_weights_beyond_two_bytes_and_below_have_no_sign(rng):
    x = rng.normal(size=40_004).astype(np.float32)
    indices = np.array([39_999], np.uint16)  # its highest bit is set
    assert dot(x, VALUES, indices, 0, 1) == x[40_003]
