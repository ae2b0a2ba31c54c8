from dataclasses import replace

import numpy as np
import pytest
from small_models import workload

from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.remove_layers import (
    OutputChange,
    remove_items,
    survey_layers,
)

X = Tensor(np.ones((2, 4), np.float32))


def square(count, **places):
    model = Sequential(*(Linear(4, 4, rng=seed) for seed in range(count)))
    return Workload("square", model.eval(), (X,), **places)


def test_items_of_lists_are_found_wherever_the_lists_are():
    class Nested(Module):
        def __init__(self):
            self.branches = {"one": [Linear(4, 4, rng=0), Linear(4, 4, rng=1)]}
            self.fixed = (Linear(4, 4, rng=2), [Linear(4, 4, rng=3)])
            self.head = Linear(4, 2, rng=4)

        def forward(self, x):
            for layer in (*self.branches["one"], self.fixed[0], *self.fixed[1]):
                x = layer(x)
            return self.head(x)

    survey = survey_layers(Workload("nested", Nested().eval(), (X,)), ())
    assert survey.candidates == ("branches.one.0", "branches.one.1", "fixed.1.0")
    assert [each.layer for each in survey.skipped] == ["fixed.0", "head"]
    assert survey.removable_beside(()) == ["branches.one.0", "branches.one.1"]
    assert survey.removable_beside(("branches.one.0",)) == []


def test_models_that_are_no_modules_are_looked_into():
    class Plain:
        def __init__(self):
            self.layers = [Linear(4, 4, rng=seed) for seed in range(3)]

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    work = Workload("plain", Plain(), (X,))
    assert survey_layers(work, ()).candidates == ("layers.0", "layers.1")
    change, reason = OutputChange(work).without(("layers.0",))
    assert change > 0
    assert reason == ""
    assert len(work.model.layers) == 3


def test_the_change_is_relative_to_the_outputs():
    work = square(2)
    with_both, last = work.model(X).data, work.model.layers[1](X).data
    expected = np.linalg.norm(last - with_both) / np.linalg.norm(with_both)
    assert OutputChange(work).without(("layers.0",))[0] == pytest.approx(expected, rel=1e-5)


def test_outputs_that_are_not_finite_are_a_reason():
    work = square(2)
    work.model.layers[0].weight.data[:] = 0
    work.model.layers[1].weight.data[:] = 1e30
    huge = replace(work, inputs=(Tensor(np.full((2, 4), 1e30, np.float32)),))
    with np.errstate(over="ignore"):
        change, reason = OutputChange(huge).without(("layers.0",))
    assert change == np.inf
    assert reason == "without it the outputs are not finite"


def test_watching_leaves_no_trace_on_the_model():
    work = square(2)
    survey_layers(work, ())
    OutputChange(work).without(("layers.0",))
    assert all("forward" not in vars(each) for each in work.model.modules())


def test_a_model_without_numbers_cannot_be_judged():
    work = Workload("argmax", lambda x: int(x.data.argmax()), (X,))
    with pytest.raises(SettingError, match="returns no floating-point numbers"):
        OutputChange(work)


def test_removing_is_all_or_nothing():
    model = workload("gpt").model
    with pytest.raises(SettingError, match=r"no layer 'blocks\.7' in a list"):
        remove_items(model, ["blocks.0", "blocks.7"])
    assert model.num_layers == 2
    assert remove_items(model, ["blocks.0"]) == ""
    assert model.num_layers == 1
