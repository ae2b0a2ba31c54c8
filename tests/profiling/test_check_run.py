import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor
from tinytorch.core.layers import Dropout, Linear, Sequential
from tinytorch.errors import ModelError, ShapeError
from tinytorch.models.adapter import adapter_for
from tinytorch.profiling.model_profile import check_run

X = Tensor(np.ones((2, 4), np.float32))


def checked(model, x=X):
    return check_run(adapter_for(model), model, lambda: model(x))


def test_a_plain_model_gives_no_note():
    assert checked(Sequential(Linear(4, 4), Linear(4, 2))) == ()


def test_a_layer_that_draws_random_numbers_is_named():
    (note,) = checked(Sequential(Linear(4, 4), Dropout(0.5, rng=0)))
    assert "not deterministic: 'layers.1' (Dropout) gave different outputs" in note


def test_a_model_that_takes_another_way_is_noted():
    torch = require_part("torch")

    class Wandering(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.ways = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.ReLU()])
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.ways[self.calls % 2](x)

    (note,) = checked(Wandering(), torch.ones(3))
    assert "not deterministic" in note
    assert "'ways.0'" in note


@pytest.mark.parametrize("nothing", [None, "a string"])
def test_an_output_without_a_tensor_is_an_error(nothing):
    with pytest.raises(ModelError, match="holds no tensor"):
        checked(lambda x: nothing)


def test_an_error_of_ours_keeps_its_path():
    with pytest.raises(ShapeError, match=r"layers\.1"):
        checked(Sequential(Linear(4, 4), Linear(5, 4)))
