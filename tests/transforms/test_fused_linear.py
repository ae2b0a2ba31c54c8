import copy

import numpy as np
import pytest

from tinytorch import Tensor, no_grad
from tinytorch.core.activations import GELU, ReLU, Sigmoid, Softmax, Tanh
from tinytorch.core.autograd import check_gradients
from tinytorch.core.dispatch import recording
from tinytorch.core.layers import Linear, Sequential
from tinytorch.errors import ShapeError
from tinytorch.transforms.fuse_layers import (
    FusedLinear,
    InFront,
    activation_word,
)

ACTIVATIONS = [ReLU(), Tanh(), Sigmoid(), GELU(), GELU("none")]
WORDS = ["relu", "tanh", "sigmoid", "gelu_tanh", "gelu"]


def pair(activation, bias=True):
    linear = Linear(3, 4, bias=bias, rng=0)
    return Sequential(linear, activation), FusedLinear(copy.deepcopy(linear), activation)


def test_the_kernel_has_a_word_for_each_activation():
    assert [activation_word(each) for each in ACTIVATIONS] == WORDS
    assert activation_word(Softmax()) == ""


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=WORDS)
def test_outputs_and_gradients_are_those_of_the_two_layers(activation, bias, rng):
    plain, fused = pair(activation, bias)
    x = rng.standard_normal((2, 5, 3)).astype(np.float32)
    inputs = [Tensor(x.copy(), requires_grad=True) for _ in range(2)]
    for model, tensor in zip((plain, fused), inputs, strict=True):
        (model(tensor) ** 2).sum().backward()
    np.testing.assert_allclose(fused(Tensor(x)).data, plain(Tensor(x)).data, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inputs[1].grad, inputs[0].grad, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=WORDS)
def test_gradients_are_those_of_central_differences(activation, rng):
    fused = pair(activation)[1].astype(np.float64)
    x = Tensor(rng.standard_normal((2, 3)), requires_grad=True)
    check_gradients(lambda x, *_: (fused(x) ** 2).sum(), x, *fused.parameters())
    assert x.grad is not None


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=WORDS)
def test_without_gradients_it_is_one_kernel(activation):
    seen = []
    with no_grad(), recording(lambda call: seen.append((call.kind, dict(call.settings)))):
        pair(activation)[1](Tensor(np.ones((2, 3), np.float32)))
    assert seen == [("linear", {"activation": activation_word(activation)})]


def test_inputs_that_do_not_fit_are_explained():
    fused = pair(ReLU())[1]
    with pytest.raises(ShapeError, match=r"bias=True, activation='relu'\) needs"):
        fused(Tensor(np.ones((2, 5), np.float32)))


def test_the_empty_layer_gives_back_what_it_gets():
    x = Tensor([1.0])
    assert InFront()(x) is x
