import subprocess
import sys

import pytest

from tinytorch import load_workload
from tinytorch.core.module import Module
from tinytorch.errors import SettingError
from tinytorch.transforms.pinned_transfers import PinnedTransfers
from tinytorch.transforms.plan import Transform

WITHOUT_TORCH = """
import sys
from tinytorch.transforms.pinned_transfers import prefetching
try:
    prefetching([], "cuda")
except ValueError as error:
    print(error)
print("torch" in sys.modules)
"""


def test_it_is_a_transform():
    assert isinstance(PinnedTransfers(), Transform)


def test_a_model_of_core_is_left_alone():
    workload = load_workload("mlp")
    plan = PinnedTransfers().plan(workload)
    assert plan.is_empty
    assert "it is a model of core" in plan.skipped[0].reason
    assert isinstance(PinnedTransfers().apply(workload, plan), Module)


def test_only_workloads_are_planned_for():
    with pytest.raises(SettingError, match="made for a Workload"):
        PinnedTransfers().plan(load_workload("mlp").model)


def test_nothing_imports_torch_before_the_user_does():
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True
    )
    message, is_imported = ran.stdout.splitlines()
    assert "import torch before" in message
    assert is_imported == "False"
