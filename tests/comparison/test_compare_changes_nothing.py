"""A comparison changes nothing: models, gradients, inputs and random numbers are as before."""

import numpy as np
import pytest
from two_sides import SHORT, TORCH_X, WIDE, nn, torch, torch_model

from tinytorch import compare
from tinytorch.comparison.compare import FLOOR_OF_FINISHED
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.spatial import BatchNorm2d
from tinytorch.core.tensor import Tensor
from tinytorch.measure.estimate import SLOWER


class Noisy(nn.Module):
    """Everything that a call of a model may change."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.dropout(self.norm(self.linear(x)))


@pytest.mark.slow
def test_a_torch_model_is_as_it_was_before():
    model, x = Noisy().train(), torch.randn(4, 8)
    hooked = []
    handle = model.linear.register_forward_hook(lambda *args: hooked.append(1))
    model(x).sum().backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradient, other = model.linear.weight.grad, Noisy()
    values, random, given = gradient.clone(), torch.get_rng_state(), x.clone()
    compare(model, other, inputs=x, **SHORT)
    after = model.state_dict()
    assert all(torch.equal(state[name], after[name]) for name in state)
    assert model.linear.weight.grad is gradient
    assert torch.equal(gradient, values)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(x, given)
    assert model.training
    assert torch.is_grad_enabled()
    before = len(hooked)
    model(x)
    assert len(hooked) == before + 1
    handle.remove()


def test_a_core_model_is_as_it_was_before():
    model = Sequential(Linear(4, 4, rng=0), BatchNorm2d(3))
    model.train()
    x = Tensor(np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32))
    model(x).sum().backward()
    norm = model.layers[1]
    held = [tensor for tensor in vars(norm).values() if isinstance(tensor, Tensor)]
    before = [tensor.data.copy() for tensor in held]
    gradients = [parameter.grad.copy() for parameter in model.parameters()]
    given = x.data.copy()
    compare(model, model, inputs=x, **SHORT)
    assert all(np.array_equal(old, new.data) for old, new in zip(before, held, strict=True))
    for old, parameter in zip(gradients, model.parameters(), strict=True):
        np.testing.assert_array_equal(old, parameter.grad)
    np.testing.assert_array_equal(x.data, given)
    assert model.training


def test_a_model_that_cannot_be_copied_is_timed_as_it_is():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("calls", torch.zeros(()))

        def __deepcopy__(self, memo):
            raise TypeError("there can be only one")

        def forward(self, x):
            self.calls += 1
            return self.linear(x)

    single = Single()
    found = compare(single, torch_model(WIDE), inputs=TORCH_X, **SHORT)
    assert found.verdict == SLOWER
    assert any("there can be only one" in note for note in found.notes)
    assert found.floor == FLOOR_OF_FINISHED
    assert single.calls == 0
    assert found.resources[0].parameter_bytes > 0
