import pytest

from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.layers import Linear
from tinytorch.core.spatial import Conv2d
from tinytorch.core.transformers import TiedHead
from tinytorch.transforms.quantize.layers import (
    CATALOG,
    PackedWeights,
    extra_bytes,
    held_bytes,
    why_not_packed,
)

STATIC = {"mode": "static", "bits": 8, "input_scale": 0.1, "input_zero_point": 3}
EIGHT = {"mode": "weight_only", "bits": 8}
LAYERS = [
    (Linear(40, 70, rng=0), EIGHT),
    (Linear(40, 70, rng=0), {"mode": "dynamic", "bits": 8}),
    (Linear(40, 70, rng=0), {"mode": "weight_only", "bits": 4, "group_size": 8}),
    (Linear(40, 70, rng=0), STATIC),
    (Conv2d(3, 5, 3, rng=0), EIGHT),
    (Embedding(70, 12, rng=0), EIGHT),
    (PositionalEmbedding(7, 12, rng=0), EIGHT),
    (TiedHead(Embedding(70, 12, rng=0)), {"mode": "dynamic", "bits": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "settings"), LAYERS, ids=lambda each: type(each).__name__)
def test_bytes_by_the_shapes_are_the_bytes_that_are_held(layer, settings):
    entry = CATALOG[type(layer)]
    made = entry.build(layer, settings, PackedWeights())
    outputs = entry.matrix(entry.weight(layer).data).shape[1]
    expected = held_bytes(entry, layer, settings) + extra_bytes(layer, settings, outputs)
    assert made.memory_usage()["quantized_bytes"] == expected


def test_one_weight_is_packed_once_for_each_way_to_hold_it():
    layer, packed = Linear(8, 8, rng=0), PackedWeights()
    entry = CATALOG[Linear]
    assert packed.of(layer.weight, entry, EIGHT) is packed.of(layer.weight, entry, EIGHT)
    four = {"mode": "weight_only", "bits": 4, "group_size": 8}
    assert packed.of(layer.weight, entry, four).bits == 4


def test_what_cannot_be_packed_says_why():
    entry, wide = CATALOG[Linear], Linear(70_000, 1)
    assert "may not fit into 32 bits" in why_not_packed(entry, wide, EIGHT)
    assert why_not_packed(entry, Linear(8, 8), EIGHT) == ""
