import subprocess
import sys

import pytest
from parts import require_part
from project_files import ROOT

from tinytorch.errors import MissingPartError, SettingError
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import Workload
from tinytorch.transforms import static_generation
from tinytorch.transforms.plan import Plan, Transform
from tinytorch.transforms.static_generation import StaticGeneration, static_generator


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 1}, "length=1; a prompt and a new token need at least 2"),
        ({"length": 8.5}, "length=8.5; a prompt"),
        ({"length": True}, "length=True; a prompt"),
        ({"limit_s": 0}, "limit_s=0; it must be a positive number"),
        ({"limit_s": float("nan")}, "limit_s=nan"),
        ({"limit_s": float("inf")}, "limit_s=inf"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(SettingError, match=message):
        StaticGeneration(**settings)


def test_it_is_a_transform():
    assert isinstance(StaticGeneration(), Transform)


def test_models_of_core_are_left_alone():
    workload, transform = load_workload("gpt"), StaticGeneration()
    plan = transform.plan(workload)
    assert plan.is_empty
    assert plan.skipped[0].reason.endswith("; its own generate(cache=...) keeps a cache")
    copy = transform.apply(workload, plan)
    assert type(copy) is type(workload.model)
    assert copy is not workload.model


def test_plans_are_made_for_workloads():
    with pytest.raises(SettingError, match="made for a Workload"):
        StaticGeneration().plan("gpt")


def test_a_plan_of_other_settings_is_refused():
    plan = Plan("StaticGeneration", {"length": 12}, ())
    with pytest.raises(SettingError, match="make one with its own plan"):
        StaticGeneration().apply(load_workload("gpt"), plan)


def test_a_model_whose_call_gives_no_text_is_left_alone_with_advice():
    torch = require_part("torch")
    workload = Workload("layer", torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    plan = StaticGeneration().plan(workload)
    assert plan.is_empty
    assert "generation_call(model, max_new_tokens=...)" in plan.skipped[0].reason


def test_transformers_is_not_loaded_for_a_model_of_something_else():
    require_part("torch")
    code = (
        "import sys, torch\n"
        "from tinytorch.transforms.static_generation import StaticGeneration\n"
        "from tinytorch.models.workload import Workload\n"
        "case = Workload('layer', torch.nn.Linear(2, 2), (torch.ones(1, 2),))\n"
        "assert StaticGeneration().plan(case).is_empty\n"
        "assert 'transformers' not in sys.modules\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("no", name="transformers"), "pip install transformers"),
        (ModuleNotFoundError("no tokenizers", name="tokenizers"), "cannot be used: no tokenizers"),
        (ImportError("cannot import name 'CacheLayerMixin'"), "CacheLayerMixin.*; update it"),
    ],
)
def test_a_missing_or_old_transformers_is_said(monkeypatch, error, message):
    require_part("torch")

    def failing():
        raise error

    monkeypatch.setattr(static_generation, "_import_caches", failing)
    with pytest.raises(MissingPartError, match=message):
        static_generator(object())


def test_a_length_is_checked_for_generators_too():
    with pytest.raises(SettingError, match="length=0"):
        static_generator(object(), length=0)
