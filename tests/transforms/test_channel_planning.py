from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import workload

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.spatial import BatchNorm2d, Conv2d
from tinytorch.core.tensor import Tensor, concatenate
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.core import named_tensors
from tinytorch.models.workload import Workload
from tinytorch.transforms.fuse_layers import FuseLayers
from tinytorch.transforms.kv_cache import enable_kv_cache
from tinytorch.transforms.low_rank import LowRank
from tinytorch.transforms.plan import Step
from tinytorch.transforms.prune import Prune
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.sparse_layers import SparseLayers
from tinytorch.transforms.support.channels import Place, trace_channels
from tinytorch.transforms.support.trimming import joined, zero_out
from tinytorch.transforms.support.weights import count_macs


def reasons(plan):
    return {each.layer: each.reason for each in plan.skipped}


def work_on(model, *shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return Workload("work", model, (Tensor(x),))


def removed_units(plan, graph):
    """Give the units of a graph whose indices a plan removes."""
    gone = {
        Place(tensor, axis): set(indices)
        for step in plan.steps
        for tensor, axes in step.settings["removed"].items()
        for axis, indices in axes.items()
    }
    return [
        (family, unit)
        for family in graph.families
        for unit in family.units
        if all(set(indices) <= gone.get(place, set()) for place, indices in unit.items())
    ]


class Residual(Module):
    """Residual sums, a batch norm, one filter per channel, and two branches that are joined."""

    def __init__(self, rng):
        self.stem, self.norm = Conv2d(3, 12, 3, padding=1, rng=rng), BatchNorm2d(12)
        self.norm.running_mean.data = rng.standard_normal(12).astype(np.float32)
        self.norm.running_var.data = rng.uniform(0.5, 2, 12).astype(np.float32)
        self.depthwise = Conv2d(12, 12, 3, padding=1, groups=12, rng=rng)
        self.point = Conv2d(12, 12, 1, bias=False, rng=rng)
        self.wide, self.head = Conv2d(12, 20, 1, rng=rng), Linear(20, 3, rng=rng)
        self.activation = ReLU()

    def forward(self, x):
        x = self.activation(self.norm(self.stem(x)))
        x = x + self.point(self.activation(self.depthwise(x)))
        return self.head(self.activation(self.wide(x)).mean(axis=(2, 3)))


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["mlp", "cnn", "gpt", "residual"]),
    st.floats(0, 0.95),
    st.sampled_from(["magnitude", "activation"]),
    st.integers(1, 4),
)
def test_the_smaller_model_is_the_large_one_with_zeros(name, ratio, importance, round_to):
    if name == "residual":
        work = work_on(Residual(np.random.default_rng(3)).eval(), 2, 3, 6, 6)
        work = Workload("residual", work.model, work.inputs, (work.inputs,))
    else:
        work = workload(name)
    transform = RemoveChannels(ratio=ratio, importance=importance, round_to=round_to)
    plan = transform.plan(work)
    small = transform.apply(work, plan)
    adapter = adapter_for(work.model)
    zeroed = adapter.clone(work.model)
    units = removed_units(plan, trace_channels(work))
    zero_out(zeroed, joined({p: unit[p] for p in family.consumers} for family, unit in units))
    found, expected = small(*work.inputs).data, zeroed(*work.inputs).data
    # sums of at most a few hundred floats in another order, through a few layers
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5 * float(np.abs(expected).max()))
    held = sum(each.nbytes for each in adapter.parameters(small))
    before = sum(each.nbytes for each in adapter.parameters(work.model))
    assert before / held == pytest.approx(1 if plan.shrinkage is None else plan.shrinkage.value)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
@pytest.mark.parametrize("share", [0.8, 0.5, 0.3])
def test_the_multiply_accumulates_that_remain_are_just_few_enough(name, share):
    work = workload(name)
    transform = RemoveChannels(macs=share)
    small = transform.apply(work, transform.plan(work))
    total = count_macs(work.model, work)
    assert 0.5 * share * total < count_macs(small, work) <= share * total


def test_a_share_that_cannot_be_reached_says_what_can():
    with pytest.raises(SettingError, match=r"macs=0.001 cannot be reached: .* remain"):
        RemoveChannels(macs=0.001).plan(workload("gpt"))


def test_the_least_important_go_and_the_order_of_the_others_stays():
    net = Sequential(Linear(4, 5, rng=0), ReLU(), Linear(5, 2, rng=1))
    net.layers[0].weight.data[:, [1, 3]] *= 1e-3
    net.layers[2].weight.data[[1, 3]] *= 1e-3
    work = work_on(net, 1, 4)
    transform = RemoveChannels(ratio=0.4)
    small = transform.apply(work, transform.plan(work))
    assert np.array_equal(small.layers[0].weight.data, net.layers[0].weight.data[:, [0, 2, 4]])
    assert np.array_equal(small.layers[2].weight.data, net.layers[2].weight.data[[0, 2, 4]])


def test_one_channel_stays_whatever_is_asked():
    work = workload("mlp")
    transform = RemoveChannels(ratio=0.999)
    small = transform.apply(work, transform.plan(work))
    assert small.layers[0].weight.shape == (64, 1)
    assert small(*work.inputs).shape == (2, 10)


def test_counts_are_rounded_up_to_multiples():
    plan = RemoveChannels(ratio=0.5, round_to=10).plan(workload("mlp"))
    assert [step.what for step in plan.steps] == [
        "remove 18 of 48 channels",  # 24 would stay, so 30 do
        "remove 12 of 32 channels",
    ]


def test_kept_layers_keep_their_outputs():
    plan = RemoveChannels(ratio=0.5, keep=("layers.0", "laers")).plan(workload("mlp"))
    assert plan.layers == ("layers.2",)
    assert reasons(plan)["layers.0"] == "kept by keep='layers.0'"
    assert "keep='laers' matches no layer that can be made smaller" in plan.notes


def test_heads_go_in_all_layers_of_a_model_with_a_cache_or_in_none():
    plan = RemoveChannels(ratio=0.5, keep=("blocks.1.attention",)).plan(workload("gpt"))
    assert plan.layers == ("blocks.0.mlp.layers.0", "blocks.1.mlp.layers.0")
    assert "as many heads" in reasons(plan)["blocks.0.attention"]


def test_a_model_with_fewer_heads_generates_what_it_predicts():
    work = workload("gpt")
    transform = RemoveChannels(ratio=0.5)
    small = transform.apply(work, transform.plan(work))
    assert small.num_heads == 2
    cached = small.generate([1, 2, 3], 8).data
    assert np.array_equal(cached, small.generate([1, 2, 3], 8, use_cache=False).data)


class Written(Module):
    """Sizes that are written down in the code."""

    def __init__(self):
        self.first, self.second, self.last = Linear(4, 6, rng=0), Linear(6, 8), Linear(8, 2)

    def forward(self, x):
        x = self.second(self.first(x).reshape(-1, 6))
        return self.last(x)


def test_a_layer_whose_size_is_written_in_the_code_is_left_alone_with_the_reason():
    work = work_on(Written(), 2, 4)
    transform = RemoveChannels(ratio=0.5)
    plan = transform.plan(work)
    assert plan.layers == ("second",)
    assert "does not compute without some of its channels" in reasons(plan)["first"]
    assert transform.apply(work, plan)(*work.inputs).shape == (2, 2)


class OfSizes(Module):
    """A model that computes with a size that it knows."""

    def __init__(self):
        self.first, self.last = Linear(4, 6, rng=0), Linear(6, 2, rng=1)

    def forward(self, x):
        return self.last(self.first(x) * (6 / self.first.out_features))


def test_a_model_that_computes_something_else_is_noticed():
    plan = RemoveChannels(ratio=0.5).plan(work_on(OfSizes(), 2, 4))
    assert plan.is_empty
    assert "computes something else" in reasons(plan)["first"]


def test_weights_that_are_no_numbers_are_an_error():
    work = workload("mlp")
    work.model.layers[0].weight.data[0, 0] = np.nan
    with pytest.raises(SettingError, match=r"'layers.0.weight' holds NaN"):
        RemoveChannels(ratio=0.5).plan(work)


def test_ratio_zero_does_nothing_and_says_so():
    work = workload("mlp")
    plan = RemoveChannels(ratio=0).plan(work)
    assert plan.is_empty
    assert "ratio=0 is too few" in reasons(plan)["layers.0"]
    small = RemoveChannels(ratio=0).apply(work, plan)
    assert np.array_equal(small(*work.inputs).data, work.run().data)


def test_a_plan_for_another_model_is_an_error():
    work = workload("mlp")
    plan = RemoveChannels(ratio=0.5).plan(work)
    with pytest.raises(SettingError, match="make a plan for this model"):
        RemoveChannels(ratio=0.5).apply(workload("cnn"), plan)


def test_the_settings_of_a_step_survive_json():
    step = RemoveChannels(ratio=0.5).plan(workload("mlp")).steps[0]
    as_read = Step(
        step.layer,
        step.what,
        step.why,
        {"removed": {"layers.2.weight": {"0": list(range(16))}}},
    )
    plan = RemoveChannels(ratio=0.5).plan(workload("mlp"))
    object.__setattr__(plan, "steps", (as_read,))
    assert RemoveChannels(ratio=0.5).apply(workload("mlp"), plan).layers[2].weight.shape == (32, 32)


def test_every_layer_that_changes_is_named():
    work = work_on(Residual(np.random.default_rng(3)).eval(), 2, 3, 6, 6)
    (first, *_) = RemoveChannels(ratio=0.5).plan(work).steps
    assert first.layer == "stem"
    for layer in ("norm", "depthwise", "point", "wide"):
        assert layer in first.why


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "branches", "shared"])
def test_every_layer_with_weights_is_a_step_or_left_alone(name):
    work = workload(name)
    plan = RemoveChannels(ratio=0.5).plan(work)
    said = " ".join([*plan.layers, *reasons(plan), *(step.why for step in plan.steps)])
    weights = [name for name, each in named_tensors(work.model).items() if each.ndim > 1]
    for path in {name.rpartition(".")[0] for name in weights}:
        assert path in said or path.rpartition(".")[0] in plan.layers


class ByNumber(Module):
    """A channel that is read by its number, where no graph sees it."""

    def __init__(self, width=16, number=5):
        self.first, self.last = Linear(6, width, rng=0), Linear(width, 4, rng=1)
        self.number = number

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden) + Tensor(hidden.data[:, self.number : self.number + 1].copy())


@pytest.mark.parametrize("number", [0, 3, 5, 10])
def test_exactly_what_goes_is_tried_before(number):
    work = work_on(ByNumber(number=number), 3, 6)
    plan = RemoveChannels(ratio=0.5).plan(work)
    small = RemoveChannels(ratio=0.5).apply(work, plan)
    if plan.is_empty:
        assert "of it" in reasons(plan)["first"]
    else:
        assert number not in plan.steps[0].settings["removed"]["first.weight"][1]
    assert small(*work.inputs).shape == (3, 4)


class Pair(Module):
    """Two layers of which either one may be smaller, but not both."""

    def __init__(self):
        self.a, self.b, self.last = Linear(4, 6, rng=0), Linear(4, 6, rng=1), Linear(12, 2, rng=2)
        self.c, self.d = Linear(6, 6, rng=3), Linear(6, 6, rng=4)

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        if a.shape[-1] < 6 and b.shape[-1] < 6:
            raise ValueError("one of them must be wide")
        return self.last(concatenate([self.c(a), self.d(b)], 1))


def test_layers_that_cannot_both_shrink_are_told_apart():
    work = work_on(Pair(), 2, 4)
    transform = RemoveChannels(ratio=0.5, keep=("c", "d"))
    plan = transform.plan(work)
    assert plan.layers == ("a",)
    assert "without channels of it and of a" in reasons(plan)["b"]
    assert transform.apply(work, plan)(*work.inputs).shape == (2, 2)


def test_a_plan_for_another_width_is_an_error():
    plan = RemoveChannels(ratio=0.5).plan(work_on(ByNumberless(8), 1, 6))
    with pytest.raises(SettingError, match=r"of 8 of axis 1 of 'first.weight'.*shape \(6, 16\)"):
        RemoveChannels(ratio=0.5).apply(work_on(ByNumberless(16), 1, 6), plan)


class ByNumberless(Module):
    def __init__(self, width):
        self.first, self.last = Linear(6, width, rng=0), Linear(width, 4, rng=1)

    def forward(self, x):
        return self.last(self.first(x))


def test_a_function_around_layers_is_left_as_it_is():
    net = Sequential(Linear(6, 16, rng=0), ReLU(), Linear(16, 4, rng=1))
    work = work_on(lambda x: net(x), 3, 6)
    transform = RemoveChannels(ratio=0.5)
    small = transform.apply(work, transform.plan(work))
    assert net.layers[0].weight.shape == (6, 16)
    assert small(*work.inputs).shape == (3, 4)


def test_a_model_with_a_cache_attached_says_what_to_do():
    work = workload("gpt")
    enable_kv_cache(work.model, batch_size=2)
    with pytest.raises(SettingError, match="call disable_kv_cache"):
        RemoveChannels(ratio=0.5).plan(work)


def test_heads_of_a_model_that_is_attention_itself_are_heads():
    work = work_on(MultiHeadAttention(16, 4, rng=0), 1, 5, 16)
    plan = RemoveChannels(ratio=0.5, round_to=3).plan(work)
    assert [(step.layer, step.what) for step in plan.steps] == [("", "remove 2 of 4 heads")]


def test_an_activation_that_a_layer_keeps_is_no_weight():
    class Keeps(ByNumberless):
        def forward(self, x):
            self.kept = self.first(x)
            return self.last(self.kept)

    work = work_on(Keeps(8), 3, 6)
    work.run()
    plan = RemoveChannels(ratio=0.5).plan(work)
    floats = 6 * 8 + 8 + 8 * 4 + 4, 6 * 4 + 4 + 4 * 4 + 4
    assert plan.shrinkage.value == pytest.approx(floats[0] / floats[1])


@pytest.mark.parametrize(
    "transform",
    [
        Quantize("weight_only"),
        Quantize("dynamic"),
        SparseLayers(goal="memory"),
        LowRank(energy=0.5),
        FuseLayers(),
        Prune(0.9),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_models_that_were_changed_before_lose_channels_or_say_why_not(name, transform):
    work = workload(name)
    pruned = Prune(0.9).apply(work, Prune(0.9).plan(work))
    before = replace(work, model=pruned)
    changed = replace(work, model=transform.apply(before, transform.plan(before)))
    removing = RemoveChannels(ratio=0.5)
    plan = removing.plan(changed)
    small = removing.apply(changed, plan)
    assert small(*work.inputs).shape == work.run().shape
    packed = [each.reason for each in plan.skipped if "packed" in each.reason]
    assert plan.steps or packed
