"""Products with sparse weights in plain NumPy, against the reference."""

import numpy as np
import pytest
from compiled_checks import check_every_call

from tinytorch.core.kernels import numpy_spatial as numpy_sparse
from tinytorch.core.kernels.numpy_spatial import FEW_ROWS, KERNELS, sparse_linear
from tinytorch.core.kernels.reference_quantized import pack_sparse
from tinytorch.errors import ShapeError


def test_it_computes_what_the_reference_computes():
    check_every_call(KERNELS, "sparse_linear")


@pytest.mark.parametrize("rows", [FEW_ROWS, FEW_ROWS + 1])
def test_both_ways_give_whole_numbers_exactly(rows, rng, monkeypatch):
    monkeypatch.setattr(numpy_sparse, "FILLED", 100)  # a few columns at a time
    weight = rng.integers(-9, 9, (30, 20)) * (rng.random((30, 20)) < 0.1)
    x = rng.integers(-9, 9, (rows, 30)).astype(np.float32)
    result = sparse_linear(x, *pack_sparse(weight.astype(np.float32)))
    np.testing.assert_array_equal(result, x @ weight)


@pytest.mark.parametrize("rows", [1, FEW_ROWS + 1])
def test_what_meets_only_zeros_does_not_matter(rows):
    weight = np.eye(3, dtype=np.float32)
    x = np.full((rows, 3), np.inf, np.float32)
    x[:, 1] = 2
    result = sparse_linear(x, *pack_sparse(weight))
    np.testing.assert_array_equal(result, x)


def test_an_input_of_the_wrong_width_is_refused():
    with pytest.raises(ShapeError, match="takes input 2, and x has 2 inputs"):
        sparse_linear(np.ones((2, 2), np.float32), *pack_sparse(np.ones((3, 4), np.float32)))
