"""The short way of a single token through a block: the same numbers, and never when it matters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.activations import GELU, ReLU
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import recording, use_backend
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT, TransformerBlock


def decoded(model, tokens, *, short):
    """Give the logits of tokens that come one at a time, the short way or through all layers."""
    with pytest.MonkeyPatch.context() as patch:
        if not short:
            patch.setattr(TransformerBlock, "_is_plain", lambda block: False)
        cache = model.make_cache(len(tokens))
        steps = [model.forward_with_cache(tokens[:, [k]], cache)[0].data for k in range(5)]
    return np.concatenate(steps, axis=1)


def takes_the_short_way(model):
    taken = []
    with pytest.MonkeyPatch.context() as patch, no_grad():
        plain = TransformerBlock._decode
        patch.setattr(
            TransformerBlock, "_decode", lambda self, *given: taken.append(1) or plain(self, *given)
        )
        model.forward_with_cache(np.array([[1]]), None)
    return len(taken) == model.num_layers


def small(**settings):
    return GPT(13, 8, 2, 2, max_seq_len=8, rng=0, **settings).eval()


@pytest.mark.parametrize("backend", ["numpy", "reference"])
@pytest.mark.parametrize("approximate", ["tanh", "none"])
@given(
    tokens=st.lists(st.lists(st.integers(0, 12), min_size=5, max_size=5), min_size=1, max_size=3)
)
def test_both_ways_give_the_same_numbers(backend, approximate, tokens):
    model, ids = small(approximate=approximate), np.array(tokens)
    with use_backend(backend):
        assert takes_the_short_way(model)
        # the same kernels on the same arrays; the activation may be rounded once less
        np.testing.assert_allclose(
            decoded(model, ids, short=True), decoded(model, ids, short=False), atol=1e-6
        )
        with no_grad():
            np.testing.assert_allclose(decoded(model, ids, short=True), model(ids).data, atol=1e-5)


def test_who_records_sees_every_layer():
    calls = []
    model = small()
    with recording(calls.append):
        model.forward_with_cache(np.array([[1]]), None)
    assert {"blocks.0.mlp.layers.0", "blocks.1.attention.q_proj"} <= {call.path for call in calls}


def test_a_hook_on_any_layer_is_called():
    for name, _ in small().named_modules():
        if not name.startswith("blocks.0.") or name.endswith("dropout"):
            continue
        model, seen = small(), []
        dict(model.named_modules())[name].register_forward_hook(lambda *_, log=seen: log.append(1))
        model.forward_with_cache(np.array([[1]]), None)
        assert seen == [1], name


class Doubled(Linear):
    """A layer that computes something else than it inherits."""

    def forward(self, x):
        return super().forward(x) * 2.0


def replace_forward(model):
    layer = model.blocks[0].mlp.layers[0]
    layer.forward = lambda x: Linear.forward(layer, x) * 2.0


def replace_layer(model):
    twin = Doubled(8, 32)
    twin.load_state_dict(model.blocks[0].mlp.layers[0].state_dict())
    model.blocks[0].mlp.layers[0] = twin


def replace_activation(model):
    up, _, down = model.blocks[0].mlp.layers
    model.blocks[0].mlp = Sequential(up, ReLU(), down)


def lengthen(model):
    up, _, down = model.blocks[0].mlp.layers
    model.blocks[0].mlp = Sequential(up, GELU(), ReLU(), down)


@pytest.mark.parametrize("change", [replace_forward, replace_layer, replace_activation, lengthen])
def test_layers_that_are_not_the_usual_ones_are_called(change):
    model = small()
    change(model)
    assert not takes_the_short_way(model)
    ids = np.arange(5)[None]
    with no_grad():
        expected = model(ids).data
    np.testing.assert_allclose(decoded(model, ids, short=True), expected, atol=1e-5)


def test_a_layer_with_its_own_product_takes_the_short_way():
    class Halved(Linear):
        def forward(self, x):
            return Tensor(super().forward(x).data * np.float32(0.5))

        def product(self):
            kind, (weight, bias), settings = super().product()
            return kind, (weight * np.float32(0.5), bias * np.float32(0.5)), settings

    model = small()
    model.blocks[0].attention.k_proj = Halved(8, 8, rng=3)
    ids = np.arange(5)[None]
    assert takes_the_short_way(model)
    np.testing.assert_allclose(
        decoded(model, ids, short=True), decoded(model, ids, short=False), atol=1e-6
    )
