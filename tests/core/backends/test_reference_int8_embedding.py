import numpy as np
import pytest
from oracles import torch

from tinytorch.core.kernels.packing import pack_int8
from tinytorch.core.kernels.reference_quantized import int8_embedding
from tinytorch.errors import DTypeError, ShapeError


@pytest.fixture
def packed(rng):
    weight = rng.integers(-128, 128, (6, 70)).astype(np.int8)
    return pack_int8(weight, rng.uniform(0.001, 0.01, 70).astype(np.float32))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (2, 0, 3)])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_rows_are_those_of_the_table_of_floats(shape, dtype, packed, rng):
    weight = rng.integers(-128, 128, (6, 70)).astype(np.int8)
    packed = pack_int8(weight, packed.scales)
    ids = np.asarray(rng.integers(0, 70, shape), dtype)
    rows = int8_embedding(ids, packed.values, packed.scales, width=6)
    table = torch.tensor((weight * packed.scales).T)
    expected = torch.nn.functional.embedding(torch.tensor(ids.astype(np.int64)), table)
    np.testing.assert_array_equal(rows, expected.numpy())
    assert rows.dtype == np.float32
    assert rows.shape == (*shape, 6)


def test_an_id_outside_of_the_table_is_an_error(packed):
    with pytest.raises(IndexError, match="70 is out of bounds"):
        int8_embedding(np.array([0, 70]), packed.values, packed.scales, width=6)


def test_ids_are_integers(packed):
    with pytest.raises(DTypeError, match="token ids must be integers, got float64"):
        int8_embedding(np.array([1.0]), packed.values, packed.scales, width=6)


def test_a_table_of_another_size_is_refused(packed):
    ids = np.array([1])
    with pytest.raises(ShapeError, match="packed weight of 9 inputs and 70 outputs"):
        int8_embedding(ids, packed.values, packed.scales, width=9)
    with pytest.raises(ShapeError, match=r"one scale for each token, got shape \(70, 1\)"):
        int8_embedding(ids, packed.values, packed.scales[:, None], width=6)
