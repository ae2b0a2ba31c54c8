from dataclasses import replace

import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor, Workload, use_backend
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.errors import SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.transforms.compiled_kernels import CompiledKernels
from tinytorch.transforms.kernel_choice import (
    FASTER,
    Choice,
    Rival,
    choices_file,
    model_backend,
    save_choices,
)
from tinytorch.transforms.optimized_backend import OptimizedBackend
from tinytorch.transforms.plan import Transform

X = Tensor(np.ones((2, 3), np.float32))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path))


@pytest.fixture
def workload():
    return Workload("own", Sequential(Linear(3, 4, rng=0), ReLU(), Linear(4, 4, rng=1)), (X,))


REFERENCE = CompiledKernels("reference")  # any other backend than numpy will do here


def test_it_is_a_transform():
    assert isinstance(CompiledKernels(), Transform)


def test_layers_whose_kernels_are_replaced_are_steps_and_others_skipped(workload):
    plan = REFERENCE.plan(workload)
    assert plan.layers == ("layers.0", "layers.2")
    assert plan.steps[0].what == "linear by reference"
    assert [(each.layer, each.reason) for each in plan.skipped] == [
        ("layers.1", "reference computes relu as numpy does")
    ]


def test_the_copy_runs_on_the_backend_and_the_model_stays(workload):
    model = REFERENCE.apply(workload, REFERENCE.plan(workload))
    assert model_backend(model).name == "reference"
    assert model_backend(workload.model) is None
    np.testing.assert_allclose(model(X).data, workload.run().data, rtol=1e-5)


def test_without_measured_choices_no_speedup_is_predicted(workload):
    plan = REFERENCE.plan(workload)
    assert plan.speedup is None
    assert "2 of 2 operations have no measured ratio" in plan.not_predicted["speedup"]
    assert "tune(workload)" in plan.not_predicted["speedup"]


def test_a_speedup_is_predicted_from_measured_choices(workload):
    tuned = OptimizedBackend(["reference", "numpy"], keep=False).tune(workload)
    rows = [row for row in tuned.rows if row.op == "linear"]
    # As if the linear layers were exactly four times as fast.
    rivals = (Rival("numpy", Estimate(4.0, 3.0, 5.0)),)
    choices = {
        (row.op, row.size_class): Choice(
            row.op, row.size_class, "reference", "numpy", rivals, 9, FASTER, 1e-6
        )
        for row in rows
    }
    save_choices(choices, choices_file(tuned.fingerprint))
    gain = REFERENCE.plan(workload).speedup
    assert 1 < gain.low < gain.value < gain.high <= 5
    assert gain.basis.startswith("2 operations")


def test_a_backend_that_changes_nothing_has_an_empty_plan(workload):
    plan = CompiledKernels("numpy").plan(workload)
    assert plan.is_empty
    assert plan.not_predicted["speedup"] == "nothing changes"
    assert all("as numpy does" in each.reason for each in plan.skipped)
    assert model_backend(CompiledKernels("numpy").apply(workload, plan)) is None


def test_a_process_that_computes_so_already_is_noted(workload):
    with use_backend("reference"):
        assert "reference already" in REFERENCE.plan(workload).notes[0]


def test_what_cannot_be_is_skipped_with_the_reason(workload):
    assert "unknown backend 'gpu'" in CompiledKernels("gpu").plan(workload).skipped[0].reason
    function = replace(workload, model=lambda x: x * 2)
    assert "is no Module" in REFERENCE.plan(function).skipped[0].reason


def test_a_model_of_torch_is_left_alone():
    torch = require_part("torch")
    plan = REFERENCE.plan(Workload("own", torch.nn.Linear(2, 2), (torch.ones(1, 2),)))
    assert plan.is_empty
    assert "a model of pytorch" in plan.skipped[0].reason


def test_a_plan_for_another_backend_is_refused(workload):
    with pytest.raises(SettingError, match=r"not by CompiledKernels\(backend='reference'\)"):
        REFERENCE.apply(workload, CompiledKernels("numpy").plan(workload))
