"""What products with sparse weights mean."""

import numpy as np
import pytest

from tinytorch.core.kernels.reference_quantized import (
    check_sparse,
    index_type,
    pack_sparse,
    sparse_linear,
    unpack_sparse,
)
from tinytorch.errors import ShapeError

WEIGHT = np.array([[0, 2, 0, 0], [3, 0, 0, 5], [7, 0, 0, 0]], np.float32)


def test_a_weight_is_given_output_by_output():
    values, indices, pointers = pack_sparse(WEIGHT)
    assert values.tolist() == [3, 7, 2, 5]
    assert indices.tolist() == [1, 2, 0, 1]
    assert pointers.tolist() == [0, 2, 3, 3, 4]
    assert (values.dtype, indices.dtype, pointers.dtype) == (np.float32, np.uint16, np.int32)


def test_the_weight_comes_back_with_its_zeros():
    np.testing.assert_array_equal(unpack_sparse(*pack_sparse(WEIGHT), inputs=3), WEIGHT)


def test_negative_zeros_are_zeros():
    values, _, _ = pack_sparse(np.array([[-0.0, 1.0]], np.float32))
    assert values.tolist() == [1]


def test_two_bytes_count_up_to_65536_inputs():
    assert index_type(65536) == np.uint16
    assert index_type(65537) == np.int32


def test_each_output_adds_up_the_inputs_that_matter_to_it():
    x, bias = np.array([[1, 10, 100]], np.float32), np.array([0, 0, 4, -99], np.float32)
    result = sparse_linear(x, *pack_sparse(WEIGHT), bias, activation="relu")
    assert result.dtype == np.float32
    assert result.tolist() == [[730, 2, 4, 0]]


def test_what_meets_only_zeros_does_not_matter():
    x = np.array([np.nan, 1, 1], np.float32)
    result = sparse_linear(x, *pack_sparse(WEIGHT))
    assert np.isnan(result).tolist() == [False, True, False, False]


def test_inputs_of_float64_give_float64():
    assert sparse_linear(np.ones(3), *pack_sparse(WEIGHT)).dtype == np.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": 2}, "takes input 2, and x has 2 inputs"),
        ({"values": np.ones(3)}, r"one index for each value, got \(4,\) and \(3,\)"),
        ({"pointers": np.array([0, 2, 3])}, "ascend from 0 to its 4 values"),
        ({"pointers": np.array([0, 3, 2, 4])}, "ascend from 0 to its 4 values"),
        ({"pointers": np.array([], int)}, "ascend from 0 to its 4 values"),
        ({"indices": np.array([0, -1, 1, 1])}, "has 3 inputs"),
    ],
)
def test_arrays_that_are_no_sparse_matrix_are_refused(changes, message):
    values, indices, pointers = pack_sparse(WEIGHT)
    arrays = {"values": values, "indices": indices, "pointers": pointers, "inputs": 3} | changes
    with pytest.raises(ShapeError, match=message):
        check_sparse(**arrays)
