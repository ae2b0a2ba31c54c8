import numpy as np
import pytest

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.spatial import BatchNorm2d, Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.transforms.support.channels import Place
from tinytorch.transforms.support.trimming import joined, trim, zero_out


def test_units_are_joined_in_order():
    here, there = Place("a", 0), Place("b", 1)
    assert joined([{here: (4, 1), there: (0,)}, {here: (2, 4)}]) == {here: (1, 2, 4), there: (0,)}


def test_indices_are_cut_out_and_the_rest_stays():
    net = Sequential(Linear(3, 4, rng=0), Linear(4, 2, rng=1))
    before = net.layers[0].weight.data.copy()
    trim(
        net,
        {
            Place("layers.0.weight", 1): (1, 3),
            Place("layers.0.bias", 0): (1, 3),
            Place("layers.1.weight", 0): (1, 3),
        },
    )
    assert np.array_equal(net.layers[0].weight.data, before[:, [0, 2]])
    assert (net.layers[0].out_features, net.layers[1].in_features) == (2, 2)
    assert net(Tensor(np.ones((5, 3), np.float32))).shape == (5, 2)


@pytest.mark.parametrize(
    ("layer", "removal", "sizes"),
    [
        (Conv2d(4, 6, 3), {("weight", 0): (0,), ("bias", 0): (0,)}, {"out_channels": 5}),
        (Conv2d(4, 6, 3), {("weight", 1): (0, 1)}, {"in_channels": 2, "groups": 1}),
        (
            Conv2d(6, 6, 3, groups=6),
            {("weight", 0): (5,), ("bias", 0): (5,)},
            {"in_channels": 5, "out_channels": 5, "groups": 5},
        ),
        (BatchNorm2d(3), {("weight", 0): (0,), ("bias", 0): (0,)}, {"num_features": 2}),
    ],
)
def test_layers_know_their_new_sizes(layer, removal, sizes):
    trim(layer, {Place(*place): indices for place, indices in removal.items()})
    assert {name: getattr(layer, name) for name in sizes} == sizes


def test_a_convolution_in_groups_that_is_not_cut_keeps_its_sizes():
    net = Sequential(Conv2d(4, 8, 3, groups=2), Conv2d(8, 2, 1))
    trim(net, {Place("layers.1.weight", 0): (0,), Place("layers.1.bias", 0): (0,)})
    assert (net.layers[0].in_channels, net.layers[0].out_channels, net.layers[0].groups) == (
        4,
        8,
        2,
    )


def test_attention_counts_the_heads_that_are_left():
    layer = MultiHeadAttention(12, 3, rng=0)
    gone = (4, 5, 6, 7)
    removal = {Place(f"{each}_proj.weight", 1): gone for each in "qkv"}
    removal |= {Place(f"{each}_proj.bias", 0): gone for each in "qkv"}
    trim(layer, removal | {Place("out_proj.weight", 0): gone})
    assert (layer.num_heads, layer.head_dim, layer.embed_dim) == (2, 4, 12)
    assert layer(Tensor(np.ones((1, 5, 12), np.float32))).shape == (1, 5, 12)


def test_zeros_keep_the_shape():
    layer = Linear(3, 4, rng=0)
    old = layer.weight.data
    zero_out(layer, {Place("weight", 0): (1,)})
    assert not layer.weight.data[1].any()
    assert layer.weight.data[[0, 2]].all()
    assert old.all(), "the array that somebody else may hold is not changed"


@pytest.mark.parametrize("place", [("other", 0), ("weight", 2), ("weight", 1)])
def test_a_removal_for_another_model_is_an_error(place):
    layer = Linear(3, 4)
    with pytest.raises(SettingError, match="make a plan for this model"):
        trim(layer, {Place(*place): (4,)})
    assert layer.weight.shape == (3, 4)
