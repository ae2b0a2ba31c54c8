import pytest

from tinytorch import load_workload
from tinytorch.core.module import Module
from tinytorch.errors import SettingError
from tinytorch.transforms.plan import Transform
from tinytorch.transforms.set_threads import SetThreads


def test_it_is_a_transform():
    assert isinstance(SetThreads(), Transform)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "two"])
def test_a_number_of_threads_is_a_whole_number(threads):
    with pytest.raises(SettingError, match="whole number from 1 on"):
        SetThreads(threads)


@pytest.mark.parametrize("budget_s", [0, -1, float("inf"), float("nan")])
def test_measuring_needs_time(budget_s):
    with pytest.raises(SettingError, match="positive number of seconds"):
        SetThreads(budget_s=budget_s)


def test_a_model_of_core_is_left_alone():
    workload = load_workload("mlp")
    plan = SetThreads().plan(workload)
    assert plan.is_empty
    told = "it is a model of core, and SetThreads is for models of pytorch"
    assert plan.skipped[0].reason == told
    copy = SetThreads().apply(workload, plan)
    assert isinstance(copy, Module)
    assert copy is not workload.model


def test_a_plan_of_other_settings_is_refused():
    workload = load_workload("mlp")
    with pytest.raises(SettingError, match="this plan was made by SetThreads"):
        SetThreads(2).apply(workload, SetThreads(1).plan(workload))


def test_only_workloads_are_planned_for():
    with pytest.raises(SettingError, match="made for a Workload"):
        SetThreads().plan(load_workload("mlp").model)
