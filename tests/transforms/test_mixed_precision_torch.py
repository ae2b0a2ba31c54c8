"""MixedPrecision: each layer gets what it was planned, and only what was shown to be faster."""

import copy
from dataclasses import asdict

import pytest
from parts import require_part

torch = require_part("torch")
require_part("torchao")
nn = torch.nn

from tinytorch.errors import SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.models.workload import Workload
from tinytorch.transforms.mixed_precision import FORMS, MixedPrecision
from tinytorch.transforms.mixed_precision.torch import (
    FLOAT,
    NOT_PREDICTED,
    WORTH,
    Group,
    _groups,
    _steps_of_forms,
    carry_out,
)
from tinytorch.transforms.plan import Step
from tinytorch.tuning.loading import load_optimized
from tinytorch.tuning.saving import write_stack


def workload(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
    )
    return Workload("small", model.eval(), (torch.randn(8, 32),), **settings)


def plan_of(forms, it):
    """Return a plan in which layers have these forms, whatever is faster here."""
    transform = MixedPrecision(budget_s=0.1)
    steps = _steps_of_forms(it, transform)
    made = [
        Step(path, form, "asked for", {"form": form, "step": asdict(steps[form][path])})
        for path, form in forms.items()
    ]
    return transform, transform.planned(made, not_predicted=NOT_PREDICTED)


MIXED = {"0": "bfloat16", "2": "int8-dynamic", "3": "int8-weights"}


def test_each_layer_gets_its_own_form():
    it = workload()
    transform, plan = plan_of(MIXED, it)
    model = transform.apply(it, plan)
    assert type(model[0]).__name__ == "LowerLinear"
    assert type(model[2]).__module__.startswith("torch.ao.nn.quantized")
    assert type(model[3].weight).__module__.startswith("torchao")
    assert type(model[4]) is nn.Linear
    assert type(it.model[0]) is nn.Linear
    found, expected = model(*it.inputs), it.model(*it.inputs)
    assert (found - expected).abs().max() <= 0.05 * expected.abs().max()


def test_a_mixed_model_is_saved_and_loaded(tmp_path):
    it = workload()
    transform, plan = plan_of(MIXED, it)
    path = write_stack(tmp_path, it, name="small", stack=["mixed-precision"], plans=[plan])
    again = load_optimized(path, it)
    assert torch.equal(again(*it.inputs), transform.apply(it, plan)(*it.inputs))


def test_a_plan_takes_only_what_is_shown_to_be_faster_and_says_what_else_was_seen():
    it = workload()
    before = copy.deepcopy(it.model.state_dict())
    plan = MixedPrecision(budget_s=0.3).plan(it)
    words = " ".join(plan.notes)
    assert "(32, 64)" in words or "(64, 32)" in words
    for step in plan.steps:
        assert step.settings["form"] in FORMS
    if not plan.is_empty:
        assert {*plan.layers, *(each.layer for each in plan.skipped)} >= {"0", "2", "3"}
    assert all(torch.equal(before[name], each) for name, each in it.model.state_dict().items())


def test_layers_of_one_size_are_one_group():
    it = workload()
    paths = {"0", "2", "3", "4"}
    groups = {tuple(each.paths) for each in _groups(it, MixedPrecision(), paths)}
    assert groups == {("0",), ("2", "3"), ("4",)}


@pytest.mark.parametrize(
    ("ratios", "chosen"),
    [
        ({}, FLOAT),
        ({"bfloat16": (0.5, 0.4, 0.6), "int8-dynamic": (0.4, 0.3, 0.5)}, "int8-dynamic"),
        ({"bfloat16": (0.5, 0.4, 0.6), "int8-dynamic": (0.4, 0.3, 1.1)}, "bfloat16"),
        ({"bfloat16": (0.97, 0.96, WORTH + 0.01)}, FLOAT),
        ({"bfloat16": (1.5, 1.4, 1.6)}, FLOAT),
    ],
)
def test_a_form_is_taken_where_it_is_shown_to_be_faster(ratios, chosen):
    group = Group(["0"], nn.Linear(2, 2), (torch.ones(1, 2),))
    group.ratios = {form: Estimate(*each, coverage=0.98, n=9) for form, each in ratios.items()}
    group.choose()
    assert group.chosen == chosen


def test_layers_that_share_a_weight_stay():
    it = workload()
    it.model[3].weight = it.model[2].weight
    groups = _groups(it, MixedPrecision(), {"0", "2", "3", "4"})
    assert {path for each in groups for path in each.paths} == {"0", "4"}


def test_kept_layers_have_no_other_form():
    steps = _steps_of_forms(workload(), MixedPrecision(keep=("2",)))
    assert all("2" not in each for each in steps.values())


def test_nothing_within_the_tolerance_is_skipped_with_what_was_seen():
    plan = MixedPrecision(budget_s=0.1, tolerance=0.0).plan(workload())
    assert plan.is_empty
    assert plan.notes


def test_what_changes_nothing_gives_the_model_back():
    it = workload()
    assert carry_out(it.model, it, ()) is it.model


@pytest.mark.parametrize(
    "settings", [{"forms": ("int3",)}, {"forms": ()}, {"budget_s": 0.0}, {"tolerance": -1.0}]
)
def test_settings_are_checked(settings):
    with pytest.raises(SettingError):
        MixedPrecision(**settings)


def test_a_model_in_training_mode_is_skipped():
    it = workload()
    it.model.train()
    plan = MixedPrecision().plan(it)
    assert plan.is_empty
    assert "eval()" in plan.skipped[0].reason
