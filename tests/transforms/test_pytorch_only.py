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
from tinytorch.transforms.plan import Step, TorchTransform, Transform

OWN = Workload("own", Linear(3, 2), (Tensor(np.zeros((1, 3))),))
THEIRS = Workload("theirs", torch.nn.Linear(3, 2), ())


@dataclass(frozen=True)
class Doubled(TorchTransform):
    """Doubles the weights."""

    times: int = 1

    @property
    def torch_code(self):
        return sys.modules[f"{__name__}_torch"]


@pytest.fixture(autouse=True)
def half(monkeypatch):
    """Stand in for the file beside that of the settings."""

    def plan_torch(workload, settings):
        unknown = {"speedup": "nobody knows", "shrinkage": "nobody knows"}
        step = Step("", "doubled", "for this test")
        return settings.planned([step], not_predicted=unknown)

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
    told = "it is a model of core, and Doubled is for models of pytorch"
    assert plan.skipped[0].reason == told
    assert Doubled().apply(OWN, plan) is not OWN.model


def test_others_may_be_told_more(monkeypatch):
    monkeypatch.setattr(Doubled, "for_others", "use Tripled")
    assert Doubled().plan(OWN).skipped[0].reason.endswith("of pytorch; use Tripled")


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
