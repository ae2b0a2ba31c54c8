import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")

from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.perf.acceleration.pytorch_only import checked_copy, why_not_pytorch
from tinytorch.workloads.plan import Plan
from tinytorch.workloads.workload import Workload


def test_a_model_of_tinytorch_is_told_so():
    case = Workload("own", Linear(3, 2), (Tensor(np.zeros((1, 3))),))
    assert why_not_pytorch(case, "this") == "it is a model of core; this is for PyTorch models"


def test_a_model_of_pytorch_is_fine():
    assert why_not_pytorch(Workload("theirs", torch.nn.Linear(3, 2), ()), "this") == ""


def test_anything_but_a_workload_is_an_error():
    with pytest.raises(SettingError, match="made for a Workload, got Linear"):
        why_not_pytorch(torch.nn.Linear(3, 2), "this")


def test_plans_are_carried_out_on_copies_by_whoever_made_them():
    case = Workload("theirs", torch.nn.Linear(3, 2), ())
    plan = Plan("This", {"size": 1}, ())
    copy = checked_copy(case, plan, "This", {"size": 1})
    assert copy is not case.model
    assert torch.equal(copy.weight, case.model.weight)
    with pytest.raises(SettingError, match="made by This"):
        checked_copy(case, plan, "That", {"size": 1})
    with pytest.raises(SettingError, match="made for a Workload"):
        checked_copy(case.model, plan, "This", {"size": 1})
