import pytest

from tinytorch.errors import SettingError
from tinytorch.models.targets import load_workload
from tinytorch.transforms.compile_model import MODES, CompileModel
from tinytorch.transforms.plan import Plan, Transform


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "fastest"}, "unknown mode 'fastest'; there are default, reduce-overhead"),
        ({"dynamic": "yes"}, "dynamic is None, True or False"),
        ({"tolerance": -1.0}, "as a share of the largest one"),
        ({"tolerance": float("nan")}, "as a share of the largest one"),
        ({"limit_s": 0}, "it must be a positive number of seconds"),
        ({"limit_s": float("nan")}, "it must be a positive number of seconds"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(SettingError, match=message):
        CompileModel(**settings)


def test_modes_are_those_of_the_compiler():
    from parts import require_part

    require_part("torch")
    from tinytorch.models import pytorch_compile

    assert MODES == pytorch_compile.MODES


def test_it_is_a_transform():
    assert isinstance(CompileModel(), Transform)


def test_models_of_core_are_left_alone():
    workload, transform = load_workload("mlp"), CompileModel()
    plan = transform.plan(workload)
    assert plan.is_empty
    assert plan.skipped[0].reason.startswith("it is a model of core, and ")
    copy = transform.apply(workload, plan)
    assert type(copy) is type(workload.model)
    assert copy is not workload.model


def test_plans_are_made_for_workloads():
    with pytest.raises(SettingError, match="made for a Workload"):
        CompileModel().plan("mlp")


def test_a_plan_of_other_settings_is_refused():
    plan = Plan("CompileModel", {"mode": "max-autotune"}, ())
    with pytest.raises(SettingError, match="make one with its own plan"):
        CompileModel().apply(load_workload("mlp"), plan)
