"""Layers in two thin parts."""

import numpy as np
import pytest

from tinytorch.core.autograd import check_gradients
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.models.workload import Workload
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.support.weights import (
    FactoredConv2d,
    FactoredLinear,
    factored_layer,
)


def halves(rng, *shapes):
    return tuple(Parameter(rng.normal(size=shape)) for shape in shapes)


@pytest.fixture
def linear(rng):
    layer = Linear(9, 7, rng=0).astype(np.float64)
    return layer, factored_layer(layer, *halves(rng, (9, 2), (2, 7)))


@pytest.fixture
def convolution(rng):
    layer = Conv2d(3, 5, (3, 2), stride=2, padding=1, dilation=(1, 2), rng=0).astype(np.float64)
    return layer, factored_layer(layer, *halves(rng, (2, 3, 3, 2), (5, 2, 1, 1)))


def test_each_layer_has_its_own_kind(linear, convolution):
    assert type(linear[1]) is FactoredLinear
    assert type(convolution[1]) is FactoredConv2d


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_a_layer_with_its_weight_computes_the_same(kind, request, rng):
    layer, factored = request.getfixturevalue(kind)
    shape = (4, 9) if kind == "linear" else (2, 3, 8, 9)
    x = Tensor(rng.normal(size=shape))
    assert factored.weight.shape == layer.weight.shape
    layer.weight = factored.weight
    np.testing.assert_allclose(factored(x).data, layer(x).data, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_gradients_go_through_the_weight_to_both_parts(kind, request):
    _, factored = request.getfixturevalue(kind)

    def function(first, second):
        factored.layers[0].weight, factored.layers[1].weight = first, second
        return (factored.weight**2).sum()

    first, second = (each.weight for each in factored.layers)
    check_gradients(function, first, second)
    assert first.grad is not None


def test_they_have_what_the_layers_have(linear, convolution):
    for layer, factored in (linear, convolution):
        assert factored.bias is layer.bias
        for name, value in vars(layer).items():
            if not isinstance(value, Tensor) and not name.startswith("_"):
                assert getattr(factored, name) == value, name


def test_only_both_parts_and_the_bias_are_held(linear):
    _, factored = linear
    assert list(factored.state_dict()) == ["layers.0.weight", "layers.1.weight", "layers.1.bias"]


def test_a_model_of_them_can_lose_channels(rng):
    model = Sequential(Linear(12, 40, rng=0), ReLU(), Linear(40, 5, rng=1))
    factored = factored_layer(model.layers[0], *halves(rng, (12, 2), (2, 40)))
    model.layers[0] = factored.astype(np.float32)
    work = Workload("thin", model.eval(), (Tensor(np.ones((3, 12), np.float32)),))
    transform = RemoveChannels(ratio=0.5)
    smaller = transform.apply(work, transform.plan(work))
    first = smaller.layers[0]
    assert (first.in_features, first.out_features) == first.weight.shape == (12, 20)
