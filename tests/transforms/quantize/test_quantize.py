"""The transform as a whole: models of any structure, and what stays as it was."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from small_models import workload

from tinytorch.core.autograd import no_grad
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.fuse_layers import FuseLayers
from tinytorch.transforms.kernel_choice import model_backend, set_model_backend
from tinytorch.transforms.plan import Transform
from tinytorch.transforms.quantize import Quantize

TRANSFORMS = [
    Quantize("weight_only"),
    Quantize("weight_only", bits=4),
    Quantize("dynamic"),
    Quantize("static"),
]
IDS = ["weight_only_8", "weight_only_4", "dynamic", "static"]


def outputs(model, work):
    with no_grad():
        return model(*work.inputs).data


def calibration_error(work, model):
    batch = Tensor(np.concatenate([x.data for (x,) in work.calibration]))
    with no_grad():
        expected, found = work.model(batch).data, model(batch).data
    return np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))


def held(model):
    return sum(each.nbytes for each in adapter_for(model).parameters(model))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=IDS)
@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "branches", "shared"])
def test_models_of_any_structure_become_smaller_and_stay_close(name, transform):
    work = workload(name)
    before = {key: array.copy() for key, array in work.model.state_dict().items()}
    plan = transform.plan(work)
    model = transform.apply(work, plan)
    assert calibration_error(work, model) < (0.2 if transform.bits == 4 else 0.03)
    assert held(model) < held(work.model)
    assert plan.shrinkage.value == held(work.model) / held(model)
    for key, array in work.model.state_dict().items():
        np.testing.assert_array_equal(array, before[key])


def test_it_is_a_transform():
    assert isinstance(Quantize(), Transform)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=IDS)
def test_the_float_weights_are_gone_from_memory(transform):
    work = workload("gpt")
    model = transform.apply(work, transform.plan(work))
    floats = [
        array
        for name, array in model.state_dict().items()
        if array.dtype.kind == "f" and array.ndim == 2 and "scales" not in name
    ]
    assert floats == []
    source = weakref.ref(work.model)
    del work
    gc.collect()
    assert source() is None


def test_a_layer_in_two_places_stays_one_layer():
    work = workload("shared")
    model = Quantize().apply(work, Quantize().plan(work))
    assert model.first is model.again
    assert model.twin.values is model.first.values  # another layer with the same weight


def test_an_embedding_and_the_head_tied_to_it_hold_the_same_bytes():
    work = workload("gpt")
    for transform in TRANSFORMS:
        model = transform.apply(work, transform.plan(work))
        assert model.head.values is model.token_embedding.values
        assert model.head.scales is model.token_embedding.scales


def test_a_quantized_gpt_generates_what_its_forward_pass_predicts():
    work = workload("gpt")
    for transform in TRANSFORMS:
        model = transform.apply(work, transform.plan(work))
        text = model.generate([1, 2, 3], 8)
        again = model.generate([1, 2, 3], 8, use_cache=False)
        if transform.mode == "weight_only":
            np.testing.assert_array_equal(text.data, again.data)
        assert text.shape == again.shape == (11,)


def test_keep_leaves_layers_in_floats_with_the_reason():
    work = workload("cnn")
    plan = Quantize(keep=("layers.7", "*.0")).plan(work)
    reasons = {each.layer: each.reason for each in plan.skipped}
    assert reasons == {
        "layers.0": "kept by keep='*.0'",
        "layers.7": "kept by keep='layers.7'",
    }
    assert plan.layers == ("layers.3",)


def test_a_plan_is_carried_out_exactly():
    work = workload("mlp")
    plan = Quantize().plan(work)
    part = replace(plan, steps=plan.steps[1:])
    model = Quantize().apply(work, part)
    assert [type(layer).__name__ for layer in model.layers][:3] == [
        "Linear",
        "ReLU",
        "QuantizedLinear",
    ]


def test_an_empty_plan_gives_a_copy():
    work = workload("mlp")
    transform = Quantize(keep=("*",))
    plan = transform.plan(work)
    assert plan.is_empty
    assert plan.not_predicted["shrinkage"] == "nothing changes"
    model = transform.apply(work, plan)
    assert model is not work.model
    np.testing.assert_array_equal(outputs(model, work), outputs(work.model, work))


def test_a_plan_of_another_transform_is_refused():
    work = workload("mlp")
    with pytest.raises(SettingError, match="this plan was made by Quantize"):
        Quantize("weight_only").apply(work, Quantize().plan(work))


def test_a_model_that_is_quantized_already_says_so():
    work = workload("mlp")
    model = Quantize().apply(work, Quantize().plan(work))
    with pytest.raises(SettingError, match=r"quantized already .*'layers.0'"):
        Quantize().plan(replace(work, model=model))


def test_a_single_layer_is_a_model_too():
    layer = Linear(32, 16, rng=0)
    work = Workload("layer", layer, (Tensor(np.ones((1, 32), np.float32)),))
    model = Quantize().apply(work, Quantize().plan(work))
    assert type(model).__name__ == "QuantizedLinear"
    assert isinstance(work.model, Linear)


def test_modes_and_backends_of_layers_stay():
    work = workload("mlp")
    set_model_backend(work.model.layers[0], "reference")
    work.model.layers[2].eval()
    model = Quantize().apply(work, Quantize().plan(work))
    assert model_backend(model.layers[0]).name == "reference"
    assert not model.layers[2].training


def test_what_is_quantized_is_not_trained():
    work = workload("gpt")
    model = Quantize().apply(work, Quantize().plan(work))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert any(parameter.requires_grad for parameter in work.model.parameters())


def test_quantized_layers_can_be_fused_with_their_activation():
    work = workload("mlp")
    transform = Quantize("static")
    quantized = replace(work, model=transform.apply(work, transform.plan(work)))
    plan = FuseLayers().plan(quantized)
    fused = FuseLayers().apply(quantized, plan)
    assert plan.layers == ("layers.0", "layers.2")
    assert fused.layers[0].activation == "relu"
    np.testing.assert_allclose(
        outputs(fused, work), outputs(quantized.model, work), rtol=1e-5, atol=1e-6
    )
    assert quantized.model.layers[0].activation is None


def test_layers_that_hurt_stay_in_floats_until_the_error_is_small():
    work = workload("mlp")
    work.model.layers[0].bias.data[0] = -100.0  # never active, and yet
    work.model.layers[2].weight.data[0] = 20.0  # it decides the steps of all outputs
    transform = Quantize(max_error=0.02)
    plan = transform.plan(work)
    assert plan.layers == ("layers.0", "layers.4")
    assert "quantized alone it changes the outputs by" in plan.skipped[-1].reason
    assert calibration_error(work, transform.apply(work, plan)) <= 0.02


def test_four_bits_become_eight_where_they_hurt():
    work = workload("mlp")
    transform = Quantize("weight_only", bits=4, max_error=0.06)
    plan = transform.plan(work)
    assert {step.settings["bits"] for step in plan.steps} == {4, 8}
    wide = next(step for step in plan.steps if step.settings["bits"] == 8)
    assert "with four bits the model would be beyond max_error=0.06" in wide.why
    assert wide.settings["error_with_int4"] > 0.01
    model = transform.apply(work, plan)
    assert calibration_error(work, model) <= 0.06
    assert plan.shrinkage.value == pytest.approx(held(work.model) / held(model))


def test_an_error_that_nothing_meets_leaves_everything_in_floats():
    work = workload("mlp")
    plan = Quantize(max_error=1e-9).plan(work)
    assert plan.is_empty
    assert plan.not_predicted["shrinkage"] == "nothing changes"


def test_an_error_that_everything_meets_changes_nothing():
    work = workload("mlp")
    plan, free = Quantize(max_error=0.5).plan(work), Quantize().plan(work)
    assert (plan.steps, plan.skipped) == (free.steps, free.skipped)


def test_a_plain_object_with_layers_inside_can_be_quantized():
    class Plain:
        def __init__(self):
            self.net = Sequential(Linear(32, 32, rng=0), ReLU())

        def forward(self, x):
            return self.net(x)

    work = Workload("plain", Plain(), (Tensor(np.ones((2, 32), np.float32)),))
    model = Quantize().apply(work, Quantize().plan(work))
    assert type(model.net.layers[0]).__name__ == "QuantizedLinear"
    np.testing.assert_allclose(
        model.forward(*work.inputs).data, work.model.forward(*work.inputs).data, atol=0.02
    )


@pytest.mark.parametrize("wrong", ["mlp", Linear(2, 2)])
def test_something_that_is_no_workload_says_how_to_get_one(wrong):
    with pytest.raises(SettingError, match="a plan is made for a Workload, got"):
        Quantize().plan(wrong)


def test_an_error_keeps_an_embedding_and_its_head_together():
    work = workload("gpt")
    work.model.token_embedding.weight.data[0] = 3.0  # a token that hurts the head
    for limit in (0.003, 0.006, 0.01, 0.02):
        transform = Quantize("dynamic", max_error=limit)
        plan = transform.plan(work)
        assert ("head" in plan.layers) == ("token_embedding" in plan.layers)
        model = transform.apply(work, plan)
        assert calibration_error(work, model) <= limit
        assert held(model) <= held(work.model)


def test_an_error_cannot_be_judged_without_data():
    with pytest.raises(SettingError, match="seen on calibration data, and there is none"):
        Quantize(max_error=0.1).plan(Workload("model", Sequential(Linear(8, 8)), ()))


def test_parameters_of_a_quantized_model_are_still_counted():
    for name in ("mlp", "cnn", "gpt"):
        work = workload(name)
        for transform in TRANSFORMS:
            model = transform.apply(work, transform.plan(work))
            specs = adapter_for(model).parameters(model)
            counted = sum(each.size for each in specs if not each.is_buffer)
            assert counted == work.model.num_parameters()
