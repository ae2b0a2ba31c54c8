import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")

from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import Plan, Step, TorchTransform, Transform

OWN = Workload("own", Linear(3, 2), (Tensor(np.zeros((1, 3))),))
THEIRS = Workload("theirs", torch.nn.Linear(3, 2), ())


@dataclass(frozen=True)
class Doubled(TorchTransform):
    """Doubles the weights."""

    subject = "doubling"

    times: int = 1
    refused: bool = False

    def why_not(self, workload):
        return "it was refused" if self.refused else ""

    @property
    def torch_code(self):
        return sys.modules[f"{__name__}_torch"]


@pytest.fixture(autouse=True)
def half(monkeypatch):
    """Stand in for the file beside that of the settings."""

    def plan_torch(workload, settings):
        unknown = {"speedup": "nobody knows", "shrinkage": "nobody knows"}
        step = Step("", "doubled", "for this test")
        return Plan("Doubled", vars(settings), (step,), not_predicted=unknown)

    def apply_torch(model, workload, plan, settings):
        with torch.no_grad():
            model.weight *= 2**settings.times
        return model

    found = SimpleNamespace(plan_torch=plan_torch, apply_torch=apply_torch)
    monkeypatch.setitem(sys.modules, f"{__name__}_torch", found)
    return found


def test_it_is_a_transform():
    assert isinstance(Doubled(), Transform)


def test_a_model_of_tinytorch_is_told_so():
    plan = Doubled().plan(OWN)
    assert plan.skipped[0].reason == "it is a model of core; doubling is for PyTorch models"
    assert Doubled().apply(OWN, plan) is not OWN.model


def test_a_reason_of_its_own_is_told_before_the_other_half_is_imported(half):
    half.plan_torch = None
    assert Doubled(refused=True).plan(THEIRS).skipped[0].reason == "it was refused"


def test_the_other_half_plans_and_carries_out_on_a_copy():
    before = THEIRS.model.weight.clone()
    transform = Doubled(times=2)
    copy = transform.apply(THEIRS, transform.plan(THEIRS))
    assert torch.equal(copy.weight, 4 * before)
    assert torch.equal(THEIRS.model.weight, before)


def test_plans_of_others_are_refused():
    with pytest.raises(SettingError, match="made by Doubled"):
        Doubled(times=2).apply(THEIRS, Doubled().plan(THEIRS))


def test_anything_but_a_workload_is_an_error():
    with pytest.raises(SettingError, match="made for a Workload, got Linear"):
        Doubled().plan(THEIRS.model)
    with pytest.raises(SettingError, match="made for a Workload, got Linear"):
        Doubled().apply(THEIRS.model, Doubled().plan(THEIRS))
