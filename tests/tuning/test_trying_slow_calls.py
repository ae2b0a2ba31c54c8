"""How often a model is called, whose calls take long, from its outputs to the confirmation."""

from dataclasses import dataclass

import numpy as np
import pytest

from tinytorch.comparison.sides import LocalSide
from tinytorch.core.tensor import Tensor
from tinytorch.measure.interleaving import FEWEST
from tinytorch.models.adapter import GeneratingModel
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import GOALS, Plan, Step
from tinytorch.tuning.attempt import Settings
from tinytorch.tuning.catalog import Entry
from tinytorch.tuning.trying import Trials

CALL_S, BUDGET_S = 0.8, 1e-6
OUTPUTS = 1
SETTLING = 1
SETTLING_OF_UNKNOWN = 3
"""A copy until two calls agree, then the model itself."""
MEMORY = 1
X = Tensor(np.ones((2, 3), np.float32))


class Sluggish(GeneratingModel):
    """Counts its calls, of copies too; everybody believes that each takes long."""

    def __init__(self, calls=None, short=False):
        self.calls = {"long": 0, "short": 0} if calls is None else calls
        self.short = short

    def __deepcopy__(self, memo):
        return Sluggish(self.calls, self.short)

    def forward(self, x):
        self.calls["short" if self.short else "long"] += 1
        return x * 2.0

    def shortened_for_profile(self):
        return Sluggish(self.calls, short=True), "it is shorter"


@dataclass(frozen=True)
class Renewed:
    """Gives another model that computes the same."""

    def plan(self, workload, profile=None):
        unknown = {"speedup": "none", "shrinkage": "none"}
        return Plan("Renewed", {}, (Step("", "made anew", "a test"),), not_predicted=unknown)

    def apply(self, workload, plan):
        return Sluggish()


ENTRY = Entry("renewed", (Renewed(),), "calling", 1, "exact", frozenset(GOALS), "")


@pytest.fixture
def trials(monkeypatch):
    """Give trials of a sluggish model, after its outputs are known."""

    def call_seconds(side):
        side.call()
        return CALL_S

    measure = LocalSide.outputs_and_seconds
    monkeypatch.setattr(LocalSide, "call_seconds", call_seconds)
    monkeypatch.setattr(LocalSide, "outputs_and_seconds", lambda side: (measure(side)[0], CALL_S))
    return Trials(Workload("text", Sluggish(), (X,)), Settings())


def test_a_verdict_takes_hardly_more_calls_than_its_rounds(trials):
    attempt, built = trials.attempt([ENTRY], budget_s=BUDGET_S)
    assert attempt.is_acceptable
    assert attempt.comparison.n == FEWEST
    names = (attempt.comparison.baseline_name, attempt.comparison.candidate_name)
    assert names == ("baseline", "renewed")
    about = [each for each in attempt.comparison.notes if "is not built anew" in each]
    assert [each.split()[0] for each in about] == ["baseline", "candidate"]
    own = trials.workload.model.calls
    assert own == {"long": OUTPUTS + SETTLING + FEWEST + MEMORY, "short": 2}
    assert built.model.calls["long"] == OUTPUTS + SETTLING_OF_UNKNOWN + FEWEST + MEMORY


def test_the_memory_of_the_model_as_it_is_is_measured_once(trials):
    trials.attempt([ENTRY], budget_s=BUDGET_S)
    own = trials.workload.model.calls
    before = own["long"]
    trials.attempt([ENTRY], budget_s=BUDGET_S)
    assert own["long"] - before == SETTLING + FEWEST


def test_a_confirmation_asks_for_no_outputs_that_are_known(trials):
    _, built = trials.attempt([ENTRY], budget_s=BUDGET_S)
    calls = trials.workload.model.calls, built.model.calls
    before = [each["long"] for each in calls]
    confirmed, _ = trials.confirm([ENTRY], built, budget_s=BUDGET_S)
    assert confirmed.comparison.outputs.is_identical
    assert all(each.peak_bytes for each in confirmed.comparison.resources)
    spent = [each["long"] - once for each, once in zip(calls, before, strict=True)]
    assert spent[0] == SETTLING + FEWEST  # its memory is known from the attempt
    assert spent[1] == OUTPUTS + SETTLING_OF_UNKNOWN + FEWEST + MEMORY
