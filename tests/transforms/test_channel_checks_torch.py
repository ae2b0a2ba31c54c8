import copy

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
require_part("torch_pruning")

from channel_models_torch import MODELS

from tinytorch.models.workload import Workload
from tinytorch.transforms.remove_channels import ChannelGroup
from tinytorch.transforms.remove_channels.groups import trace_groups
from tinytorch.transforms.remove_channels.torch import leave_broken
from tinytorch.transforms.support.channels import Place
from tinytorch.transforms.support.observing import calls_of


def free_groups(case):
    model = copy.deepcopy(case.model)
    found = trace_groups(model, calls_of(case)[0])
    return [group for group in found if not group.reason]


@pytest.mark.parametrize("name", MODELS)
def test_what_is_followed_rightly_may_go(name):
    model, x = MODELS[name]()
    case = Workload(name, model, (x,))
    groups = free_groups(case)
    leave_broken(case, groups)
    broken = [group.layers[0] for group in groups if group.reason]
    # a sum with the inputs of the model is none of what a gradient shows
    assert broken == (["down"] if name == "gated" else [])
    assert len(groups) > len(broken)


class Fixed(nn.Module):
    """A size that is written down in the code, behind a layer that may shrink."""

    def __init__(self):
        super().__init__()
        self.free = nn.Linear(6, 8)
        self.fixed = nn.Linear(8, 12)
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        x = self.fixed(torch.relu(self.free(x)))
        return self.head(x.reshape(-1, 3, 4).softmax(-1).reshape(-1, 12))


class Mixing(nn.Module):
    """An operation that looks at all channels, which nobody can see in its gradient."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.layer(x)
        return self.head(x / x.abs().mean(-1, keepdim=True))


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        (Fixed(), {"free": "", "fixed": "the model does not compute without some of its channels"}),
        (Mixing(), {"layer": "the model computes something else without some of its channels"}),
    ],
)
def test_what_a_trace_does_not_see_is_found_by_computing(model, reasons):
    case = Workload("hidden", model.eval(), (torch.randn(4, 6),))
    groups = free_groups(case)
    leave_broken(case, groups)
    found = {group.layers[0]: group.reason for group in groups}
    assert found.keys() == reasons.keys()
    assert all(found[layer].startswith(reasons[layer]) for layer in found)


def test_another_shape_of_the_outputs_is_a_reason():
    model = nn.Sequential(nn.Linear(4, 6))
    places = {
        Place("0.weight", 0): np.arange(6)[:, None],
        Place("0.bias", 0): np.arange(6)[:, None],
    }
    group = ChannelGroup(("0",), "channels", places)
    leave_broken(Workload("x", model, (torch.randn(2, 4),)), [group])
    assert group.reason.startswith("the outputs of the model have another shape")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_checked_as_well(dtype):
    model = Mixing().to(dtype).eval()
    case = Workload("halves", model, (torch.randn(4, 6, dtype=dtype),))
    groups = free_groups(case)
    leave_broken(case, groups)
    assert groups[0].reason.startswith("the model computes something else")
    assert model.layer.weight.dtype == dtype
