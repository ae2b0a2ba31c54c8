import json

import pytest
from example_comparisons import comparison
from example_optimizations import attempt

from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.models.workload import Preparation
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step
from tinytorch.tuning.attempt import (
    BETTER,
    FAILED,
    INACCURATE,
    OUTCOMES,
    SKIPPED,
    Attempt,
    Measured,
)


def test_json_gives_it_back():
    plan = Plan(
        "Quantize",
        {"mode": "dynamic"},
        (Step("fc1", "INT8", "it is a Linear"),),
        (Skipped("fc2", "too small"),),
        speedup=Gain(2.0, 1.0, float("inf"), basis="bytes"),
        shrinkage=Gain.of_bytes(400, 100, "weights"),
    )
    one = attempt("a", "b", time=0.5, plans=(plan,), seconds=1.5, notes=("busy",))
    again = Attempt.from_dict(json.loads(json.dumps(one.to_dict())))
    assert again == one
    assert again.name == "a + b"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_outcome_says_whether_it_may_be_ranked(outcome):
    expected = outcome in {BETTER, "no gain", "worse", INCONCLUSIVE}
    assert attempt("a", outcome=outcome).is_acceptable is expected


def test_without_a_comparison_nothing_is_known():
    assert attempt("a", outcome=FAILED).measured == Measured()
    assert attempt("a", outcome=INACCURATE).to_dict()["comparison"] is None


def test_what_is_done_once_is_summed_up():
    twice = ((), (Preparation("compiled", 1.5), Preparation("captured", 0.25)))
    assert attempt("a", comparison=comparison(preparations=twice)).once_s == 1.75
    assert attempt("a", time=0.5).once_s == 0
    assert attempt("a", outcome=FAILED).once_s is None


def test_outcomes_of_former_versions_are_read():
    fields = Attempt(("a",), INCONCLUSIVE, "").to_dict() | {"outcome": "not shown"}
    assert Attempt.from_dict(fields).outcome == INCONCLUSIVE


def test_an_outcome_of_an_older_record_has_the_name_of_today():
    fields = Attempt(("a",), SKIPPED, "A: no layer").to_dict() | {"outcome": "nothing to do"}
    assert Attempt.from_dict(fields).outcome == SKIPPED
