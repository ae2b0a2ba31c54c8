import numpy as np
import pytest
from small_models import workload

from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import SettingError
from tinytorch.formats.ranges import METHODS
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize import Quantize


def planned(model, shape=(2, 8), *, calibration=(), **settings):
    x = Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    work = Workload("model", model, (x,), calibration=calibration)
    return Quantize(**settings).plan(work)


def reasons(plan):
    return {each.layer: each.reason for each in plan.skipped}


class Doubled(Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Scaled(Module):
    def __init__(self):
        self.gain = Parameter(np.ones(8, np.float32))

    def forward(self, x):
        return x * self.gain


def test_a_layer_that_nobody_knows_is_skipped_with_a_reason():
    plan = planned(Sequential(Linear(8, 8, rng=0), Scaled(), Doubled(8, 8, rng=1), ReLU()))
    assert plan.layers == ("layers.0",)
    assert reasons(plan) == {
        "layers.1": "Scaled is not a layer that can be quantized; its 8 numbers stay",
        "layers.2": "a Doubled is a Linear that may compute something else",
    }


def test_a_layer_whose_weight_is_used_without_calling_it_is_skipped():
    class Direct(Module):
        def __init__(self):
            self.used = Linear(8, 8, rng=0)
            self.called = Linear(8, 8, rng=1)

        def forward(self, x):
            return self.called(x) @ self.used.weight

    plan = planned(Direct())
    assert plan.layers == ("called",)
    assert "it was not called" in reasons(plan)["used"]


def test_a_weight_that_stays_in_floats_for_another_layer_is_not_held_twice():
    work = workload("shared")
    plan = Quantize(keep=("twin",)).plan(work)
    assert plan.is_empty
    assert reasons(plan)["first"] == "it shares its weight with 'twin', which is not changed"
    tied = Quantize(keep=("head",)).plan(workload("gpt"))
    assert "shares its weight with 'head'" in reasons(tied)["token_embedding"]


def test_a_weight_that_an_unknown_layer_holds_too_stays():
    class Holder(Module):
        def __init__(self):
            self.layer = Linear(8, 8, rng=0)
            self.same = self.layer.weight

        def forward(self, x):
            return self.layer(x) @ self.same

    assert reasons(planned(Holder())) == {
        "layer": "it shares its weight with '', which is not changed",
        "": "Holder is not a layer that can be quantized; its 64 numbers stay",
    }


def test_a_layer_that_would_not_become_smaller_stays():
    plan = planned(Sequential(Linear(8, 8, rng=0), Linear(8, 1, rng=1)))
    assert plan.layers == ("layers.0",)
    assert "bytes instead of 36" in reasons(plan)["layers.1"]


def test_a_weight_with_nan_stays():
    layer = Linear(8, 8, rng=0)
    layer.weight.data[0, 0] = np.nan
    assert reasons(planned(layer)) == {"": "its weight holds NaN or infinity"}


def test_a_group_size_that_does_not_divide_gives_eight_bits_or_an_error():
    model = Sequential(Linear(48, 32, rng=0), Linear(32, 8, rng=1))
    plan = planned(model, (2, 48), mode="weight_only", bits=4, group_size=32)
    assert [step.settings["bits"] for step in plan.steps] == [8, 4]
    assert "no group of 32 divides 48 inputs" in plan.steps[0].why
    with pytest.raises(
        SettingError, match=r"group_size=64 divides the inputs of no layer \(32, 48"
    ):
        planned(model, (2, 48), mode="weight_only", bits=4, group_size=64)


def test_four_bits_fall_back_to_eight_where_there_is_no_kernel_or_no_group():
    model = Sequential(Linear(48, 33, rng=0), Linear(33, 16, rng=1))
    plan = planned(model, (2, 48), mode="weight_only", bits=4)
    assert [step.settings["bits"] for step in plan.steps] == [4, 8]
    assert plan.steps[0].settings["group_size"] == 16
    assert "no group of 8 divides 33 inputs" in plan.steps[1].why
    conv = planned(Conv2d(8, 8, 3, rng=0), (1, 8, 5, 5), mode="weight_only", bits=4)
    assert conv.steps[0].what == "INT8 weight"
    assert "INT4 has no kernel for this layer" in conv.steps[0].why


def test_a_grouped_convolution_computes_in_floats():
    plan = planned(Conv2d(8, 8, 3, groups=4, rng=0), (1, 8, 5, 5))
    assert plan.steps[0].settings["mode"] == "weight_only"
    assert "in 4 groups" in plan.steps[0].why


@pytest.mark.parametrize("ranges", METHODS)
def test_calibrated_ranges_stand_in_the_plan_with_what_was_seen(ranges):
    work = workload("mlp")
    plan = Quantize("static", ranges=ranges).plan(work)
    first = plan.steps[0].settings
    seen = np.concatenate([x.data for (x,) in work.calibration])
    assert first["seen"]["values"] == seen.size
    assert (first["seen"]["low"], first["seen"]["high"]) == (seen.min(), seen.max())
    low, high = first["input_range"]
    assert seen.min() <= low < 0 < high <= seen.max()
    assert first["input_scale"] == pytest.approx((high - low) / 255, rel=1e-6)
    hidden = plan.steps[1].settings
    assert hidden["input_zero_point"] == -128  # after a ReLU nothing is below zero


def test_static_quantization_without_calibration_says_what_to_do():
    with pytest.raises(SettingError, match="needs calibration data"):
        planned(Linear(8, 8), mode="static")


def test_what_the_calibration_data_does_not_reach_stays():
    class Choosing(Module):
        def __init__(self):
            self.often, self.seldom = Linear(8, 8, rng=0), Linear(8, 8, rng=1)

        def forward(self, x):
            return self.often(x) if x.shape[0] < 10 else self.seldom(x)

    batch = (Tensor(np.ones((2, 8), np.float32)),)
    plan = planned(Choosing(), mode="static", calibration=(batch,))
    assert plan.layers == ("often",)
    assert "it was not called" in reasons(plan)["seldom"]


def test_a_model_without_inputs_is_planned_by_its_layers():
    work = Workload("model", Sequential(Linear(8, 8), ReLU()), ())
    assert Quantize().plan(work).layers == ("layers.0",)


def test_the_model_stays_in_its_mode_and_unwatched():
    work = workload("mlp")
    work.model.train()
    Quantize("static").plan(work)
    assert work.model.training
    assert not any(module.is_watched for module in work.model.modules())


def test_a_pattern_that_matches_nothing_is_noted():
    plan = planned(Sequential(Linear(8, 8, rng=0), ReLU()), keep=("laers.0", "layers.*"))
    assert plan.notes == ("keep='laers.0' matches no layer that can be quantized",)


def test_a_function_without_layers_says_so():
    plan = planned(lambda x: x)
    assert reasons(plan) == {"": "no layer of tinytorch was found in model"}


def test_a_pattern_means_the_parts_of_a_layer_too():
    plan = Quantize(keep=("blocks.0",)).plan(workload("gpt"))
    kept = {each.layer for each in plan.skipped if "keep=" in each.reason}
    assert len(kept) == 6
    assert all(path.startswith("blocks.0.") for path in kept)
    assert plan.notes == ()


def test_a_forward_that_was_replaced_on_the_object_is_kept():
    layer = Linear(8, 8, rng=0)
    original = layer.forward
    layer.forward = lambda x: original(x) * 2
    plan = planned(Sequential(layer, Linear(8, 8, rng=1)))
    assert plan.layers == ("layers.1",)
    assert "its forward was replaced" in reasons(plan)["layers.0"]


def test_inputs_that_were_all_zero_tell_no_range():
    zeros = (Tensor(np.zeros((2, 8), np.float32)),)
    plan = planned(Linear(8, 8, rng=0), mode="static", calibration=(zeros,))
    assert "all zero on the calibration data" in reasons(plan)[""]


def test_what_got_only_empty_inputs_has_no_range():
    class Experts(Module):
        def __init__(self):
            self.one, self.other = Linear(8, 8, rng=0), Linear(8, 8, rng=1)

        def forward(self, x):
            return self.one(x) + self.other(x[:0]).sum()

    batch = (Tensor(np.ones((2, 8), np.float32)),)
    plan = planned(Experts(), mode="static", calibration=(batch,))
    assert plan.layers == ("one",)
    assert "never reached it with a number" in reasons(plan)["other"]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("mode", ["weight_only", "dynamic", "static"])
def test_bytes_are_predicted_exactly_for_every_dtype(dtype, mode):
    work = workload("mlp")
    work.model.astype(dtype)
    batches = tuple((Tensor(x.data.astype(dtype)),) for (x,) in work.calibration)
    work = Workload("mlp", work.model, batches[0], calibration=batches)
    assert_prediction_holds(work, Quantize(mode))


def test_bytes_are_predicted_exactly_where_things_are_shared_in_odd_ways():
    class Odd(Module):
        def __init__(self):
            self.table, self.positions = Embedding(32, 32, rng=0), PositionalEmbedding(32, 32)
            self.more = PositionalEmbedding(32, 32)
            self.one, self.two = Linear(32, 32, rng=0), Linear(32, 32, rng=1)
            self.one.weight = self.table.weight  # the other way around than the table
            self.more.weight = self.positions.weight
            self.two.bias = self.one.bias

        def forward(self, tokens):
            x = self.more(self.positions(self.table(tokens)))
            return self.two(self.one(x))

    batch = (Tensor(np.arange(20).reshape(2, 10)),)
    work = Workload("odd", Odd(), batch, calibration=(batch,))
    for mode in ("weight_only", "dynamic", "static"):
        assert_prediction_holds(work, Quantize(mode))


def assert_prediction_holds(work, settings):
    plan = settings.plan(work)
    before, after = (
        sum(each.nbytes for each in adapter_for(model).parameters(model))
        for model in (work.model, settings.apply(work, plan))
    )
    assert plan.shrinkage.value == before / after


def test_a_plan_of_another_model_is_refused():
    x = (Tensor(np.ones((1, 8), np.float32)),)
    one, other = Sequential(Linear(8, 8), ReLU()), Sequential(ReLU(), Linear(8, 8))
    plan = Quantize().plan(Workload("one", one, x))
    with pytest.raises(SettingError, match=r"no layer 'layers.0' that can be quantized"):
        Quantize().apply(Workload("other", other, x), plan)


def test_gradients_of_what_stays_are_not_held():
    work = workload("gpt")
    work.model(*work.inputs).sum().backward()
    model = Quantize().apply(work, Quantize().plan(work))
    assert all(parameter.grad is None for parameter in model.parameters())
