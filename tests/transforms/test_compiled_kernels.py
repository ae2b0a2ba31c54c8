from dataclasses import replace

import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor, Workload, use_backend
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.errors import SettingError
from tinytorch.transforms.compiled_kernels import CompiledKernels
from tinytorch.transforms.kernel_choice import model_backend
from tinytorch.transforms.plan import Transform

X = Tensor(np.ones((2, 3), np.float32))


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


def test_the_speedup_is_left_to_measuring(workload):
    plan = REFERENCE.plan(workload)
    assert plan.speedup is None
    assert set(plan.not_predicted) == {"speedup", "shrinkage"}


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
