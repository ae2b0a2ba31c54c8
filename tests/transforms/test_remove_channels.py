import numpy as np
import pytest
from small_models import workload

from tinytorch.core.layers import Linear
from tinytorch.errors import SettingError
from tinytorch.models.core import named_tensors
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import Transform
from tinytorch.transforms.remove_channels import RemoveChannels


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "say how much goes"),
        ({"ratio": 0.5, "macs": 0.5}, "say how much goes"),
        ({"ratio": 1.0}, "below 1, got 1.0"),
        ({"ratio": -0.1}, "got -0.1"),
        ({"ratio": float("nan")}, "got nan"),
        ({"macs": 0}, "above 0 and at most 1, got 0"),
        ({"macs": 50}, "got 50"),
        ({"ratio": 0.5, "importance": "luck"}, "unknown importance 'luck'; there are magnitude"),
        ({"ratio": 0.5, "round_to": 0}, "from 1 on, got 0"),
        ({"ratio": 0.5, "round_to": 2.5}, "from 1 on, got 2.5"),
        ({"ratio": 0.5, "keep": "head"}, r"keep=\('head',\)"),
    ],
)
def test_settings_check_themselves(settings, message):
    with pytest.raises(SettingError, match=message):
        RemoveChannels(**settings)


def test_it_is_a_transform():
    assert isinstance(RemoveChannels(ratio=0.5), Transform)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_the_model_of_the_workload_stays_as_it_is(name):
    work = workload(name)
    before = {name: tensor.data.tobytes() for name, tensor in named_tensors(work.model).items()}
    transform = RemoveChannels(ratio=0.5)
    small = transform.apply(work, transform.plan(work))
    after = {name: tensor.data.tobytes() for name, tensor in named_tensors(work.model).items()}
    assert before == after
    assert small.num_parameters() < work.model.num_parameters()


def test_the_result_is_an_ordinary_model_that_trains():
    work = workload("mlp")
    transform = RemoveChannels(ratio=0.5)
    small = transform.apply(work, transform.plan(work))
    assert type(small.layers[0]) is Linear
    loss = (small(*work.inputs) ** 2).sum()
    loss.backward()
    assert all(np.isfinite(each.grad).all() for each in small.parameters())


def test_workloads_that_do_not_do_are_errors():
    with pytest.raises(SettingError, match="a plan is made for a Workload, got Linear"):
        RemoveChannels(ratio=0.5).plan(Linear(2, 2))
    with pytest.raises(SettingError, match="has no inputs; give the workload one example"):
        RemoveChannels(ratio=0.5).plan(Workload("bare", Linear(2, 2), ()))


def test_a_plan_of_other_settings_is_an_error():
    work = workload("mlp")
    plan = RemoveChannels(ratio=0.5).plan(work)
    with pytest.raises(SettingError, match="this plan was made by RemoveChannels"):
        RemoveChannels(ratio=0.4).apply(work, plan)
