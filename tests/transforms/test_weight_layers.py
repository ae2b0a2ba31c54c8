import numpy as np
import pytest
from small_models import workload

from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import Plan, Step
from tinytorch.transforms.support.weights import (
    carry_out,
    find_weight_layers,
)

NOTHING = dict.fromkeys(("speedup", "shrinkage"), "a test")


def plan_for(*layers):
    return Plan("Test", {}, tuple(Step(each, "new", "") for each in layers), not_predicted=NOTHING)


def test_linear_layers_and_convolutions_are_found_and_others_named():
    layers = find_weight_layers(workload("branches"), (), verb="changed")
    assert list(layers.found) == ["stem", "paths.wide.0", "paths.narrow.0", "head.layers.1"]
    assert [each.layer for each in layers.others] == ["norm"]
    assert "BatchNorm2d is not a layer that can be changed" in layers.others[0].reason


def test_layers_with_one_weight_are_fitted_once_and_get_the_same():
    layers = find_weight_layers(workload("shared"), (), verb="changed")
    fitted = []

    def fit(each):
        fitted.append(each)
        each.what, each.new_bytes = "halved", each.weight.nbytes // 2

    layers.choose(fit)
    assert len(fitted) == 1
    assert [(step.layer, step.what) for step in layers.steps] == [
        ("first", "halved"),
        ("twin", "halved"),
    ]
    weight, biases = 24 * 24 * 4, 2 * 24 * 4
    assert layers.shrinkage.value == (weight + biases) / (weight / 2 + biases)


def test_nothing_that_changes_has_no_shrinkage():
    layers = find_weight_layers(workload("mlp"), ("*",), verb="changed")
    layers.choose(lambda each: pytest.fail("nothing is left to fit"))
    assert layers.shrinkage is None
    assert layers.steps == ()


def test_models_that_are_no_modules_are_looked_into():
    class Plain:
        def __init__(self):
            self.layer = Linear(4, 4, rng=0)

        def forward(self, x):
            return self.layer(x)

    work = Workload("plain", Plain(), (Tensor(np.ones((1, 4), np.float32)),))
    assert list(find_weight_layers(work, (), verb="changed").found) == ["layer"]
    model = carry_out(work.model, plan_for("layer"), lambda layer, _: Sequential(layer))
    assert isinstance(model.layer, Sequential)


def test_a_function_without_layers_says_so():
    work = Workload("function", lambda x: x, (Tensor(np.ones(2)),))
    layers = find_weight_layers(work, (), verb="changed")
    assert layers.skipped[0].reason == "no layer of tinytorch was found in function"


def test_a_layer_that_is_not_there_is_an_error():
    with pytest.raises(SettingError, match=r"no layer 'layers\.1' as the plan of Test knows it"):
        carry_out(workload("mlp").model, plan_for("layers.1"), lambda layer, _: layer)
