import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor, Workload, load_workload
from tinytorch.core.layers import GELU, Linear, ReLU, Sequential, Softmax
from tinytorch.core.transformers import GPT
from tinytorch.errors import SettingError
from tinytorch.transforms.compiled_kernels import CompiledKernels
from tinytorch.transforms.fuse_layers import FusedLinear, FuseLayers
from tinytorch.transforms.kernel_choice import set_model_backend
from tinytorch.transforms.plan import Transform

X = Tensor(np.ones((2, 3), np.float32))


def fused(workload):
    return FuseLayers().apply(workload, FuseLayers().plan(workload))


def workload_of(*layers):
    return Workload("own", Sequential(*layers), (X,))


def test_it_is_a_transform():
    assert isinstance(FuseLayers(), Transform)


def test_pairs_are_found_and_others_have_a_reason():
    class Special(Linear):
        pass

    busy = Linear(3, 3)
    set_model_backend(busy, "reference")
    layers = [Linear(3, 3), ReLU(), Linear(3, 3), Softmax(), Special(3, 3), ReLU(), busy, ReLU()]
    plan = FuseLayers().plan(workload_of(*layers, Sequential(Linear(3, 3), GELU(), Linear(3, 2))))
    assert {step.layer: step.settings["activation"] for step in plan.steps} == {
        "layers.0": "relu",
        "layers.8.layers.0": "gelu_tanh",
    }
    reasons = {each.layer: each.reason for each in plan.skipped}
    assert reasons.keys() == {"layers.2", "layers.4", "layers.6", "layers.8.layers.2"}
    assert reasons["layers.2"] == "the Softmax that follows is not fused"
    assert "is a Special" in reasons["layers.4"]
    assert "its own backend or checkpoint" in reasons["layers.6"]
    assert plan.speedup is None
    assert "compare() measures it" in plan.not_predicted["speedup"]


def test_the_copy_computes_the_same_with_the_same_names_and_the_model_stays():
    workload = load_workload("mlp")
    model = fused(workload)
    assert isinstance(model, Sequential)
    assert sum(isinstance(each, FusedLinear) for each in model.modules()) == 2
    assert not any(isinstance(each, FusedLinear) for each in workload.model.modules())
    assert model.state_dict().keys() == workload.model.state_dict().keys()
    np.testing.assert_allclose(
        model(*workload.inputs).data, workload.run().data, rtol=1e-4, atol=1e-4
    )


def test_the_networks_of_a_gpt_are_fused(rng):
    gpt = GPT(7, 8, 2, 2, 8, rng=0)
    ids = rng.integers(0, 7, (1, 8))
    workload = Workload("gpt", gpt, (ids,))
    assert FuseLayers().plan(workload).layers == ("blocks.0.mlp.layers.0", "blocks.1.mlp.layers.0")
    np.testing.assert_allclose(fused(workload)(ids).data, gpt(ids).data, rtol=1e-4, atol=1e-5)


def test_a_shared_layer_stays_shared():
    linear = Linear(3, 3, rng=0)
    model = fused(workload_of(linear, ReLU(), linear, ReLU()))
    assert model.layers[0].weight is model.layers[2].weight


def test_a_model_of_torch_is_left_alone():
    torch = require_part("torch")
    workload = Workload("own", torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    plan = FuseLayers().plan(workload)
    assert plan.is_empty
    assert "FuseLayers is for models of core" in plan.skipped[0].reason
    assert isinstance(FuseLayers().apply(workload, plan), torch.nn.Linear)


def test_a_plan_of_another_transform_is_refused():
    workload = workload_of(Linear(3, 3), ReLU())
    plan = CompiledKernels("numpy").plan(workload)
    with pytest.raises(SettingError, match=r"made by CompiledKernels\(backend='numpy'\)"):
        FuseLayers().apply(workload, plan)
