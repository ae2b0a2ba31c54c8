import copy

import numpy as np
import pytest

from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ShapeError, TokenError
from tinytorch.transforms.quantize.layers import QuantizedEmbedding, QuantizedPositionalEmbedding


def test_a_looked_up_row_is_within_half_a_step():
    table = Embedding(150, 24, rng=0)
    layer = QuantizedEmbedding(table)
    ids = np.array([[0, 63, 64], [127, 128, 149]])
    half_step = np.abs(table.weight.data[ids]).max(axis=-1, keepdims=True) / 127 / 2
    assert (np.abs(layer(ids).data - table(ids).data) <= half_step * (1 + 1e-4)).all()
    np.testing.assert_array_equal(layer(ids).data, layer.weight.data[ids])


def test_a_table_is_a_quarter_of_its_size():
    layer = QuantizedEmbedding(Embedding(1000, 512, rng=0))
    assert layer.memory_usage()["compression_ratio"] > 3.9
    assert copy.deepcopy(layer).values.data.ctypes.data % 64 == 0


def test_tokens_are_checked():
    with pytest.raises(TokenError, match=r"outside of the vocabulary 0\.\.9"):
        QuantizedEmbedding(Embedding(10, 4))([10])


@pytest.mark.parametrize(("start", "padding"), [(0, None), (3, None), (1, np.array([0, 2]))])
def test_positions_are_those_of_the_float_layer_but_for_rounding(rng, start, padding):
    floats = PositionalEmbedding(8, 16, rng=0)
    layer = QuantizedPositionalEmbedding(floats)
    x = Tensor(rng.standard_normal((2, 4, 16)).astype(np.float32))
    largest = np.abs(floats.weight.data).max()
    np.testing.assert_allclose(
        layer(x, start, padding).data, floats(x, start, padding).data, atol=largest / 250
    )
    assert layer.memory_usage()["original_bytes"] == 8 * 16 * 4
    assert layer.memory_usage()["quantized_bytes"] == 8 * 16 + 8 * 4


def test_a_sequence_that_is_too_long_says_so():
    layer = QuantizedPositionalEmbedding(PositionalEmbedding(8, 16))
    with pytest.raises(ShapeError, match="has 8 positions, the sequence needs 9"):
        layer(Tensor(np.zeros((1, 9, 16), np.float32)))


def test_a_table_of_positions_can_be_copied(rng):
    layer = QuantizedPositionalEmbedding(PositionalEmbedding(64, 129, rng=0))
    twin = copy.deepcopy(layer)
    layer.values.data[...] = 0
    assert twin.values.shape == (64, 129)
    assert twin.values.data.any()
