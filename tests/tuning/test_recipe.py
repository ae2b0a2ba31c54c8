import json
from dataclasses import asdict, replace
from functools import cache

import pytest
from optimized_stacks import recommending

from tinytorch.errors import CheckpointError, SettingError
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import load_zoo
from tinytorch.transforms.plan import Plan, Skipped
from tinytorch.transforms.prune import Prune
from tinytorch.transforms.quantize import Quantize
from tinytorch.tuning.catalog import CATALOG
from tinytorch.tuning.recipe import (
    TRANSFORMS,
    Recipe,
    carry_out,
    last_change,
    rebuilt_plan,
    rebuilt_transform,
    recipe_text,
)


@cache
def example_plans():
    return recommending(load_zoo("mlp"), "low-rank", "int8-dynamic").recommended.plans


def a_recipe(**changes):
    fields = {
        "name": "mlp",
        "framework": "core",
        "device": "cpu",
        "model": "Sequential",
        "stack": ("low-rank", "int8-dynamic"),
        "plans": example_plans(),
        "weights_after": 2,
        "weights_sha256": "0" * 64,
        "tensors": {"layers.0.weight": (784, 128)},
        "versions": {"numpy": "2.0"},
    }
    return Recipe(**fields | changes)


def through_json(value):
    return json.loads(json.dumps(value))


def test_every_transform_of_the_catalog_can_be_rebuilt():
    transforms = [each for entry in CATALOG for each in entry.transforms]
    rebuilt = [rebuilt_transform(type(t).__name__, through_json(asdict(t))) for t in transforms]
    assert rebuilt == transforms


def test_each_transform_stands_under_its_own_name():
    assert all(name == transform.__name__ for name, transform in TRANSFORMS.items())


def test_a_plan_from_json_is_the_plan_of_its_transform_again():
    workload = load_zoo("mlp")
    transform = Quantize(mode="static", keep=("layers.0",))
    plan = transform.plan(workload)
    read = Plan.from_dict(through_json(plan.to_dict()))
    with pytest.raises(SettingError, match="this plan was made by"):
        transform.apply(workload, read)
    assert rebuilt_plan(read).settings == plan.settings
    transform.apply(workload, rebuilt_plan(read))


def test_a_recipe_comes_back_from_its_text():
    recipe = a_recipe()
    read = Recipe.from_dict(json.loads(recipe_text(recipe.to_dict())))
    assert read.to_dict() == recipe.to_dict()
    assert read.tensors == recipe.tensors


def test_numbers_that_json_does_not_have_become_none():
    plan = a_recipe().plans[0]
    step = replace(plan.steps[0], settings={**plan.steps[0].settings, "gain": float("inf")})
    fields = a_recipe(plans=(replace(plan, steps=(step,)),), weights_after=1).to_dict()
    assert fields["plans"][0]["steps"][0]["settings"]["gain"] is None
    assert "Infinity" not in recipe_text(fields)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"format": "another"}, "no file of save_optimized"),
        ({"schema": 99}, "update TinyTorch"),
        ({"plans": [{"transform": "Quantize"}]}, "recipe is damaged"),
        ({"plans": 3}, "recipe is damaged"),
        ({"weights_after": 7}, "after 7 of 2 plans"),
        ({"weights_after": True}, "True"),
        ({"tensors": {"a": 3}}, "recipe is damaged"),
        ({"versions": None}, "recipe is damaged"),
    ],
)
def test_a_damaged_recipe_is_refused(changes, expected):
    with pytest.raises(CheckpointError, match=expected):
        Recipe.from_dict(through_json(a_recipe().to_dict() | changes))


@pytest.mark.parametrize("fields", [None, [], "text", {}])
def test_what_is_no_recipe_is_refused(fields):
    with pytest.raises(CheckpointError, match="no recipe"):
        Recipe.from_dict(fields)


def test_an_unknown_transform_is_refused():
    with pytest.raises(CheckpointError, match=r"'os\.system', which this TinyTorch does not know"):
        rebuilt_transform("os.system", {"command": "true"})


@pytest.mark.parametrize("settings", [{"mode": "none"}, {"colour": 1}, 5])
def test_settings_that_a_transform_does_not_take_are_refused(settings):
    with pytest.raises(CheckpointError, match="Quantize does not take"):
        rebuilt_transform("Quantize", settings)


def test_settings_that_are_missing_are_not_guessed():
    plan = Plan("Prune", {"sparsity": 0.5}, (), (Skipped("", "none"),))
    with pytest.raises(CheckpointError, match="has the settings"):
        rebuilt_plan(plan)


def test_weights_change_until_the_last_plan_that_changes_them():
    names = ("LowRank", "Quantize", "FuseLayers", "CompiledKernels")
    plans = [replace(a_recipe().plans[0], transform=name) for name in names]
    assert last_change(plans) == 2
    assert last_change(plans[2:]) == 0


def test_another_architecture_is_named_by_its_first_difference():
    with pytest.raises(CheckpointError, match=r"'layers.0.weight' is \(784, 128\) there and \(2,"):
        a_recipe().check_fits({"layers.0.weight": (2, 2)}, model=object())
    with pytest.raises(CheckpointError, match="missing here"):
        a_recipe().check_fits({}, model=object())
    assert a_recipe().check_fits({"layers.0.weight": (784, 128)}, model=object()) is None


def test_no_more_tensors_differ_than_there_are():
    others = dict.fromkeys(("a", "b", "c"), (2, 2))
    with pytest.raises(CheckpointError, match=r"\(4 of 4 tensors differ\)"):
        a_recipe().check_fits(others, model=object())
    with pytest.raises(CheckpointError, match=r"\(1 of 2 tensors differ\)"):
        a_recipe().check_fits({**a_recipe().tensors, "a": (2, 2)}, model=object())


def test_what_is_prepared_needs_inputs():
    plan = replace(a_recipe().plans[0], transform="CompileModel")
    with pytest.raises(SettingError, match="give a workload"):
        carry_out(Workload("model", load_zoo("mlp").model, ()), [plan])


def test_a_plan_of_another_model_says_what_could_not_be_done():
    workload = load_zoo("mlp")
    plan = Prune().plan(workload)
    with pytest.raises(CheckpointError, match="Prune cannot be carried out on this"):
        carry_out(load_zoo("gpt"), [plan])
    assert carry_out(workload, []) is workload.model
