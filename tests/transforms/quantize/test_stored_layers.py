import numpy as np
import pytest

from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.layers import Linear
from tinytorch.core.spatial import Conv2d
from tinytorch.errors import CheckpointError
from tinytorch.formats.affine import Scheme, quantize_array
from tinytorch.transforms.quantize.layers import (
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedPositionalEmbedding,
)
from tinytorch.transforms.quantize.saving import LayerReader, stored_weight, within

NO_STEPS = np.empty((0, 2), np.float32)
PAIRS = [
    (Linear(8, 6, rng=0), QuantizedLinear),
    (Conv2d(4, 6, (2, 3), groups=2, rng=0), QuantizedConv2d),
    (Embedding(70, 6, rng=0), QuantizedEmbedding),
    (PositionalEmbedding(7, 6, rng=0), QuantizedPositionalEmbedding),
]


@pytest.mark.parametrize(("layer", "kind"), PAIRS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_weight_is_stored_in_the_shape_of_the_float_layer(layer, kind):
    stored = stored_weight(kind(layer))
    assert stored.values.shape == layer.weight.shape
    largest = np.abs(layer.weight.data).max()
    np.testing.assert_allclose(stored.dequantize(), layer.weight.data, atol=largest / 250)


def test_names_of_the_model_itself_have_no_dot():
    assert (within("", "weight"), within("a.b", "weight")) == ("weight", "a.b.weight")


@pytest.mark.parametrize(
    "scheme", [Scheme(8), Scheme(8, axis=1), Scheme(8, symmetric=True, axis=0)], ids=str
)
def test_a_weight_that_kernels_cannot_use_says_so(scheme):
    layer = Linear(8, 6, rng=0)
    reader = LayerReader({"weight": quantize_array(layer.weight.data, scheme)}, steps=NO_STEPS)
    with pytest.raises(CheckpointError, match="its weight is quantized as Scheme"):
        reader.read("", layer, {"mode": "dynamic"})


def test_a_plain_array_is_no_quantized_weight():
    reader = LayerReader({"weight": np.zeros((8, 6))}, steps=NO_STEPS)
    with pytest.raises(CheckpointError, match="no quantized weight"):
        reader.read("", Linear(8, 6), {"mode": "dynamic"})


def test_steps_must_be_as_many_as_static_layers():
    layer = Linear(8, 6, bias=False, rng=0)
    reader = LayerReader({"weight": stored_weight(QuantizedLinear(layer))}, steps=NO_STEPS)
    reader.read("", layer, {"mode": "static"})
    with pytest.raises(CheckpointError, match="do not fit 1 static layers"):
        reader.give_steps()
