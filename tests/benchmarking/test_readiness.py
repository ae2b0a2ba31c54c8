import pytest
from parts import require_part

from tinytorch.benchmarking.checks import held_ready
from tinytorch.core.layers import Dropout, Linear, Sequential
from tinytorch.models.adapter import adapter_for


@pytest.fixture
def model():
    return Sequential(Linear(4, 4, rng=0), Dropout(0.5), Linear(4, 2, rng=1))


def modes(model):
    return [layer.training for layer in adapter_for(model, ()).modules(model).values()]


def test_a_model_is_held_in_evaluation_mode_and_put_back(model):
    model.train()
    before = modes(model)
    with held_ready(adapter_for(model, ()), model) as was_training:
        assert was_training
        assert not any(modes(model))
    assert modes(model) == before
    assert any(before)


def test_a_model_that_is_ready_is_not_said_to_be_training(model):
    model.eval()
    with held_ready(adapter_for(model, ()), model) as was_training:
        assert not was_training


def test_modes_that_are_changed_inside_are_put_back_too(model):
    model.eval()
    with held_ready(adapter_for(model, ()), model):
        model.train()
    assert not any(modes(model))


def test_a_mode_of_the_class_stays_one_of_the_class():
    class Layer:
        training = True

        def forward(self, x):
            return x

    model = Layer()
    with held_ready(adapter_for(model, ()), model):
        pass
    assert vars(model) == {}
    assert model.training


def test_statistics_of_batches_are_put_back():
    torch = require_part("torch")
    layer = torch.nn.BatchNorm1d(3).train()
    x = torch.ones(4, 3) * 7
    with held_ready(adapter_for(layer, (x,)), layer):
        layer.train()(x)
        assert layer.running_mean.sum() > 0
    assert layer.running_mean.sum() == 0
    assert layer.training
