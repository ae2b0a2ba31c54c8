"""The function `count_flops`; the counts themselves are pinned in test_flops_*.py."""

import pytest
from parts import require_part

from tinytorch import Tensor, load_workload
from tinytorch.core.layers import Linear
from tinytorch.errors import GraphError, ModelError
from tinytorch.profiling.flops import count_flops, record_call


class OnlyForward:
    """A model that cannot be called, only forwarded."""

    def __init__(self):
        self.first = Linear(8, 4, rng=0)

    def forward(self, x):
        return self.first(x) @ x[:, :4].transpose()


def test_an_object_with_only_forward_counts_its_layers_and_its_own_products():
    x = Tensor([[1.0] * 8] * 3)
    assert count_flops(OnlyForward(), x) == 2 * (3 * 8 * 4 + 3 * 3 * 4)
    paths = [r.path for r in record_call(OnlyForward(), x).operations if r.macs]
    assert paths == ["first", ""]


def test_the_whole_batch_counts():
    assert count_flops(Linear(8, 4), Tensor([[1.0] * 8] * 5)) == 5 * 64


def test_settings_go_to_the_model():
    torch = require_part("torch")

    class Scaled(torch.nn.Module):
        def forward(self, x, *, times):
            for _ in range(times):
                x = x @ x
            return x

    assert count_flops(Scaled(), torch.eye(3), times=4) == 4 * 2 * 27


def test_the_model_is_left_as_it_was(rng):
    workload = load_workload("mlp")
    parameter = workload.model.parameters()[0]
    parameter.grad = kept = rng.normal(size=parameter.shape)
    before = parameter.data.copy()
    count_flops(workload.model, *workload.inputs, backward=True)
    assert parameter.grad is kept
    assert (parameter.data == before).all()


def test_a_failing_layer_is_named():
    torch = require_part("torch")
    layers = [torch.nn.Linear(4, 4) for _ in range(6)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(5, 4))
    with pytest.raises(ModelError, match=r"layer '6' \(Linear\) raised RuntimeError: .*4x4|5x4"):
        count_flops(model, torch.ones(2, 4))
    assert not any("forward" in vars(module) for module in model.modules())


def test_nothing_to_differentiate_is_an_error_that_says_so():
    with pytest.raises(GraphError, match="nothing to run a backward pass from"):
        count_flops(lambda x: x, Tensor([1.0]), backward=True)
