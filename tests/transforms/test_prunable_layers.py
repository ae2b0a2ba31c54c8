import numpy as np
import pytest
from small_models import workload

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.spatial import BatchNorm2d, Conv2d
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import SettingError
from tinytorch.models.core import CoreAdapter
from tinytorch.transforms.prune.layers import (
    check_rankable,
    find_prunables,
    kind_of,
)


class Named(Linear):
    """Computes as its base does."""

    def extra_repr(self):
        return "named"


class Doubled(Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Padded(Conv2d):
    def _convolve(self, x):
        return super()._convolve(x) + 1


class Packed(Module):
    def __init__(self):
        self.values = Tensor(np.ones((4, 4), np.int8))

    def forward(self, x):
        return x


def reasons(model, **settings):
    prunables, skipped = find_prunables(model, **settings)
    left = {path: why for each in prunables for path, why in each.reasons.items() if why}
    return {each.layer: each.reason for each in skipped} | left


def test_subclasses_count_if_they_inherit_how_they_compute():
    assert kind_of(Named(2, 2)) is kind_of(Linear(2, 2))
    assert kind_of(Doubled(2, 2)) is None
    assert kind_of(Padded(1, 1, 1)) is None
    assert kind_of(ReLU()) is None


def test_other_layers_are_skipped_with_a_reason():
    model = Sequential(
        Linear(4, 4), Doubled(4, 4), BatchNorm2d(3), Packed(), ReLU(), Padded(1, 1, 1)
    )
    assert reasons(model) == {
        "layers.1": "a Doubled is a Linear that may compute something else",
        "layers.2": "BatchNorm2d is not a layer that is pruned; its 6 numbers stay",
        "layers.3": "Packed holds its weight in another form (int8); prune the float model that "
        "it was made from",
        "layers.5": "a Padded is a Conv2d that may compute something else",
    }


def test_a_layer_whose_forward_was_replaced_is_left_alone():
    layer = Linear(4, 4)
    vars(layer)["forward"] = lambda x: x
    assert "forward was replaced" in reasons(layer)[""]


def test_a_shared_weight_comes_once_with_all_its_layers():
    prunables, _ = find_prunables(workload("shared").model)
    assert [(each.name, each.layers) for each in prunables] == [("first.weight", ("first", "twin"))]
    assert prunables[0].size == 24 * 24


def test_two_tensors_on_one_array_are_one_weight():
    model = Sequential(Linear(4, 4), Linear(4, 4))
    model.layers[1].weight = Parameter(model.layers[0].weight.data)
    prunables, _ = find_prunables(model)
    assert [each.layers for each in prunables] == [("layers.0", "layers.1")]


def test_a_weight_that_one_layer_keeps_stays_for_all():
    left = reasons(workload("shared").model, keep=("twin",))
    assert left["twin"] == "kept by keep='twin'"
    prunables, _ = find_prunables(workload("shared").model, keep=("twin",))
    assert prunables[0].is_left


def test_a_weight_that_an_unknown_layer_holds_too_stays():
    class Holder(Module):
        def __init__(self):
            self.layer = Linear(8, 8, rng=0)
            self.same = self.layer.weight

        def forward(self, x):
            return self.layer(x) @ self.same

    assert "shares its weight with '', which is not pruned" in reasons(Holder())["layer"]


def test_tables_are_left_alone_unless_asked_for():
    model = workload("gpt").model
    left = reasons(model)
    for path in ("token_embedding", "position_embedding", "head"):
        assert "prune_embeddings=True" in left[path]
    prunables, _ = find_prunables(model, embeddings=True)
    tied = next(each for each in prunables if "head" in each.layers)
    assert tied.layers == ("token_embedding", "head")
    assert tied.name == "token_embedding.weight"


def test_integers_and_empty_weights_are_left_alone():
    layer = Linear(3, 3, rng=0)
    layer.weight.data = layer.weight.data.astype(np.int32)
    assert reasons(layer)[""] == "its weight holds int32, no floats"
    layer.weight.data = np.empty((0, 3), np.float32)
    assert reasons(layer)[""] == "its weight is empty"


def test_what_is_no_number_is_found_but_cannot_be_ranked():
    broken = Sequential(Linear(3, 3, rng=0))
    broken.layers[0].weight.data[1, 1] = np.nan
    prunables, _ = find_prunables(broken)
    with pytest.raises(SettingError, match=r"'layers\.0' holds NaN or infinity.*keep="):
        check_rankable(CoreAdapter(), prunables)
    check_rankable(CoreAdapter(), find_prunables(broken, keep=("layers.0",))[0])
    assert reasons(broken, keep=("layers.0",))["layers.0"].startswith("kept by")


def test_names_are_those_of_the_state():
    for name in ("mlp", "cnn", "gpt", "branches", "shared"):
        model = workload(name).model
        tensors = CoreAdapter().named_tensors(model)
        assert list(tensors) == list(model.state_dict())
