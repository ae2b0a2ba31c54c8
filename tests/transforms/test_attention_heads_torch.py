import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
require_part("transformers")

from tiny_transformers import tiny

from tinytorch.transforms.remove_channels.groups import find_heads
from tinytorch.transforms.support.channels import Place


def heads_of(name, **changes):
    return find_heads(tiny(name, **changes).model)


@pytest.mark.parametrize(("name", "size"), [("llama", 2), ("gpt2", 4), ("bert", 4), ("vit", 4)])
def test_every_attention_layer_has_its_heads(name, size):
    groups = heads_of(name)
    assert len(groups) == 3
    assert {group.size for group in groups} == {size}
    assert {group.kind for group in groups} == {"heads"}
    assert all(len(group.consumers) == 1 for group in groups)


def test_heads_that_share_keys_are_one_unit():
    group = heads_of("llama")[0]
    prefix = "model.layers.0.self_attn"
    assert group.layers == (prefix, *(f"{prefix}.{name}_proj" for name in "qkv"))
    widths = {place.tensor: indices.shape for place, indices in group.places.items()}
    # 4 heads of 8 channels, two of which share keys and values
    assert widths == {
        f"{prefix}.q_proj.weight": (2, 16),
        f"{prefix}.k_proj.weight": (2, 8),
        f"{prefix}.v_proj.weight": (2, 8),
        f"{prefix}.o_proj.weight": (2, 16),
    }


def test_queries_keys_and_values_of_one_layer_are_found_in_its_thirds():
    group = heads_of("gpt2")[1]
    indices = group.places[Place("transformer.h.1.attn.c_attn.weight", 1)]
    expected = [*range(8, 16), *range(40, 48), *range(72, 80)]
    np.testing.assert_array_equal(np.sort(indices[1]), expected)
    assert group.sizes == {"transformer.h.1.attn": {"num_heads": 1, "split_size": 8}}


def test_what_is_no_attention_has_no_heads():
    assert find_heads(nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 2))) == []


def test_shared_projections_stay():
    model = tiny("vit").model
    first, second = (layer.attention for layer in model.vit.layers[:2])
    second.q_proj.weight = first.q_proj.weight
    reasons = [group.reason for group in find_heads(model)]
    assert "shared under the name 'vit.layers.1.attention.q_proj.weight'" in reasons[0]
