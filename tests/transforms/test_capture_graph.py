import pytest

from tinytorch.errors import SettingError
from tinytorch.models.targets import load_workload
from tinytorch.transforms.capture_graph import CaptureGraph
from tinytorch.transforms.plan import Plan, Transform


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"most": 0}, "most must be at least 1"),
        ({"tolerance": -1.0}, "as a share of the largest one"),
        ({"limit_s": -3.0}, "it must be a positive number of seconds"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(SettingError, match=message):
        CaptureGraph(**settings)


def test_it_is_a_transform():
    assert isinstance(CaptureGraph(), Transform)


def test_models_of_core_are_left_alone():
    workload, transform = load_workload("mlp"), CaptureGraph()
    plan = transform.plan(workload)
    assert plan.is_empty
    assert plan.skipped[0].reason.startswith("it is a model of core, and ")
    assert type(transform.apply(workload, plan)) is type(workload.model)


def test_plans_are_made_for_workloads():
    with pytest.raises(SettingError, match="made for a Workload"):
        CaptureGraph().plan(None)


def test_a_plan_of_other_settings_is_refused():
    with pytest.raises(SettingError, match="make one with its own plan"):
        CaptureGraph().apply(load_workload("mlp"), Plan("CaptureGraph", {"most": 3}, ()))
