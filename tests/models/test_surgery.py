from dataclasses import dataclass

import numpy as np
import pytest

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.models.adapter import replace_layers
from tinytorch.transforms.kernel_choice import model_backend, set_model_backend


class Holder(Module):
    """Layers in every kind of place where a model may keep them."""

    def __init__(self):
        self.direct = Linear(2, 2, rng=0)
        self.listed = [Linear(2, 2, rng=1), [Linear(2, 2, rng=2)]]
        self.paired = (Linear(2, 2, rng=3), "name")
        self.named = {"a": Linear(2, 2, rng=4), "b": {"c": Linear(2, 2, rng=5)}}
        self.inner = Sequential(Linear(2, 2, rng=6), ReLU())
        self.again = self.direct

    def forward(self, x):
        return x


def test_layers_are_found_wherever_a_model_keeps_them():
    model = Holder()
    before = {name: each for name, each in model.named_modules() if isinstance(each, Linear)}
    new = {name: ReLU() for name in before}
    replace_layers(model, {id(each): new[name] for name, each in before.items()})
    after = dict(model.named_modules())
    assert set(before) == {
        "direct", "listed.0", "listed.1.0", "paired.0", "named.a", "named.b.c", "inner.layers.0",
    }  # fmt: skip
    assert all(after[name] is new[name] for name in before)
    assert model.paired[1] == "name"


def test_a_layer_in_two_places_is_replaced_in_both():
    model = Holder()
    new = ReLU()
    replace_layers(model, {id(model.direct): new})
    assert model.direct is new
    assert model.again is new


def test_a_model_that_is_the_layer_gives_the_new_one():
    old, new = Linear(2, 2), ReLU()
    assert replace_layers(old, {id(old): new}) is new


@pytest.mark.parametrize("mode", [True, False])
def test_the_new_layer_takes_over_mode_and_backend(mode):
    model = Sequential(Linear(2, 2), ReLU())
    model.train(mode)
    set_model_backend(model.layers[0], "reference")
    replace_layers(model, {id(model.layers[0]): Sequential(Linear(2, 2))})
    assert model.layers[0].layers[0].training is mode
    assert model_backend(model.layers[0]).name == "reference"


def test_plain_objects_that_hold_layers_are_looked_into():
    class Inner:
        def __init__(self):
            self.layer = Linear(2, 2)

        def forward(self, x):
            return self.layer(x)

    class Outer:
        def __init__(self):
            self.parts = [Inner()]

        def forward(self, x):
            return self.parts[0].forward(x)

    model = Outer()
    doubled = Linear(2, 2, bias=False)
    doubled.weight.data = 2 * np.eye(2, dtype=np.float32)
    replace_layers(model, {id(model.parts[0].layer): doubled})
    np.testing.assert_array_equal(model.forward(Tensor([[1.0, 3.0]])).data, [[2, 6]])


def test_a_circle_of_modules_ends():
    model = Holder()
    model.inner.parent = model
    new = ReLU()
    assert replace_layers(model, {id(model.direct): new}) is model
    assert model.direct is new


@dataclass(eq=False)
class Block(Module):
    layer: Linear

    def forward(self, x):
        return self.layer(x)


class Layers(list):
    def __init__(self, *items):
        super().__init__(items)


def test_a_module_that_is_a_dataclass_is_looked_into():
    model = Sequential(Block(Linear(2, 2)))
    new = ReLU()
    replace_layers(model, {id(model.layers[0].layer): new})
    assert model.layers[0].layer is new


def test_lists_of_other_classes_and_lists_in_two_places_stay_what_they_are():
    model = Holder()
    model.own = Layers(Linear(2, 2), ReLU())
    model.same = model.own
    new = ReLU()
    replace_layers(model, {id(model.own[0]): new})
    assert type(model.own) is Layers
    assert model.own[0] is new
    assert model.same is model.own
