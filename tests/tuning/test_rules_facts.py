from dataclasses import replace

import pytest
from example_profiles import empty_profile, example_profile, training_profile
from example_work import Part, linear, on_gpu, work_profile

from tinytorch.measure.samples import Samples
from tinytorch.models.records import LayerCall
from tinytorch.transforms.plan import Plan, Step
from tinytorch.tuning.catalog import find_entries
from tinytorch.tuning.facts import (
    Facts,
    counted,
    gather_facts,
    inside_share,
    named_layers,
    share_of,
    time_text,
)

NOT_PREDICTED = {"speedup": "nobody knows", "shrinkage": "nobody knows"}


def plan_of(*layers):
    return Plan("X", {}, tuple(Step(x, "", "") for x in layers), not_predicted=NOT_PREDICTED)


def test_shares_are_those_of_the_layers_in_watched_calls():
    facts = gather_facts(work_profile(linear(6), Part("aten.relu", 3), outside_ms=1))
    assert [each.share for each in facts.work] == pytest.approx([0.6, 0.3])
    assert facts.outside_share == pytest.approx(0.1)


def test_a_slow_recording_does_not_make_an_operation_take_longer_than_its_layer():
    facts = gather_facts(work_profile(linear(6, recorded_ms=60), Part("aten.relu", 4)))
    assert [each.share for each in facts.work] == pytest.approx([0.6, 0.4])


def test_what_a_layer_has_on_top_of_its_operations_is_outside():
    facts = gather_facts(work_profile(linear(6, recorded_ms=1), Part("aten.relu", 4)))
    assert [each.share for each in facts.work] == pytest.approx([0.6, 0.4])
    assert [each.inside for each in facts.work] == pytest.approx([1 / 6, 1])
    assert facts.outside_share == pytest.approx(0.5)


def test_calls_that_were_slower_than_the_recording_are_compared_by_the_shortest():
    calm = work_profile(linear(3), Part("aten.relu", 1), outside_ms=1)
    slow = tuple(LayerCall(x.path, 10 * x.start, 10 * x.end) for x in calm.runs[0])
    busy = replace(
        calm, runs=(calm.runs[0], slow, slow, slow), watched=Samples("watched", (0.05,) * 4)
    )
    assert [each.inside for each in gather_facts(busy).work] == [1.0, 1.0]


def test_operations_of_one_layer_share_its_time_as_they_were_recorded():
    # 9 ms of operations in the example: of head, a product of 2 ms and another of 1 ms in 2 ms.
    facts = gather_facts(example_profile())
    head = [each.seconds for each in facts.work if each.layer == "head"]
    assert head == pytest.approx([2e-3 * 2 / 3, 2e-3 * 1 / 3])


@pytest.mark.parametrize("make", [example_profile, training_profile, empty_profile])
def test_all_shares_together_are_at_most_the_call(make):
    facts = gather_facts(make())
    assert 0 <= inside_share(facts.work) + facts.outside_share <= 1 + 1e-9
    assert 0 <= sum(each.share for each in facts.work) <= 1 + 1e-9


def test_the_backward_pass_and_the_update_have_shares_too():
    layers = {each.layer for each in gather_facts(training_profile()).work}
    assert {"<backward>", "<update>"} <= layers


def test_on_a_gpu_work_is_a_share_of_the_call_with_its_gaps():
    facts = gather_facts(on_gpu(linear(4), Part("aten.relu", 1), idle=0.5))
    assert [each.share for each in facts.work] == pytest.approx([0.4, 0.1])
    assert facts.outside_share == pytest.approx(0.5)


def test_the_weight_of_a_product_is_the_parameter_of_its_layer():
    relu = Part("aten.relu", 1)
    facts = gather_facts(work_profile(linear(6, rows=3, inside=20, outside=30), relu))
    assert facts.work[0].weight.shape == (30, 20)
    assert facts.work[0].rows == 3
    assert facts.work[1].weight is None


def test_a_product_of_activations_has_no_weight_even_when_sizes_agree_by_chance():
    batched = Part("aten.bmm", 2, "contraction", ((2, 10, 50),) * 2, (2, 10, 10), macs=10_000)
    facts = gather_facts(work_profile(linear(6, inside=100, outside=10), batched))
    assert facts.work[0].weight is not None
    assert facts.work[1].weight is None


def test_a_matrix_of_another_layer_is_a_tied_weight():
    tied = Part("aten.mm", 2, "contraction", ((1, 100), (100, 10)), (1, 10), macs=1000)
    facts = gather_facts(work_profile(linear(6, inside=100, outside=10), tied))
    assert facts.work[1].weight.shape == (100, 10)


def test_without_entries_those_that_fit_the_framework_and_the_device_are_offered():
    on_cpu = gather_facts(work_profile(linear(6)))
    assert "compiled" in on_cpu.offered
    assert not {"captured", "compiled-kernels"} & set(on_cpu.offered)
    assert "captured" in gather_facts(on_gpu(linear(6))).offered
    assert "compiled-kernels" in gather_facts(work_profile(linear(6), framework="core")).offered


def test_with_entries_only_these_are_offered():
    facts = gather_facts(work_profile(linear(6)), find_entries(["compiled"]))
    assert [each.name for each in facts.entries("compiled", "int8-weights")] == ["compiled"]


def test_an_empty_plan_takes_an_entry_away():
    profile = work_profile(linear(6))
    empty = {"compiled": (Plan("X", {}, ()),)}
    assert gather_facts(profile).entries("compiled")
    assert not gather_facts(profile, (), empty).entries("compiled")
    assert gather_facts(profile, (), {"compiled": (plan_of(""),)}).entries("compiled")


def test_a_plan_says_which_work_changes():
    facts = gather_facts(
        work_profile(linear(6), linear(2)), (), {"int8-dynamic": (plan_of("layers.1"),)}
    )
    assert [x.layer for x in facts.changed_by("int8-dynamic", facts.work)] == ["layers.1"]
    assert len(facts.changed_by("compiled", facts.work)) == 2


def test_a_transform_says_of_which_layers_it_computes_the_products():
    """INT8 in PyTorch gains nothing in an LSTM, and cannot touch a convolution without ranges."""
    kinds = {"": "Net", "layers.0": "Linear", "layers.1": "LSTM", "layers.2": "Conv2d"}
    facts = gather_facts(work_profile(linear(6), linear(2), linear(2), kinds=kinds))

    def changed(entry):
        return [x.layer for x in facts.changed_by(entry, facts.work)]

    assert changed("int8-dynamic") == ["layers.0"]
    assert changed("int8-static") == ["layers.0", "layers.2"]
    assert changed("int8-weights") == []
    assert len(changed("bfloat16")) == 3


def test_a_plan_for_the_model_itself_changes_all_of_it():
    facts = gather_facts(work_profile(linear(6), linear(2)), (), {"compiled": (plan_of(""),)})
    assert len(facts.changed_by("compiled", facts.work)) == 2


def test_layers_are_named_together_and_the_slowest_first():
    facts: Facts = gather_facts(work_profile(linear(2), linear(2), linear(9, path="head")))
    assert named_layers(facts.work) == "head, layers.{0,1}"


def test_a_share_is_never_above_the_whole():
    facts = gather_facts(work_profile(linear(2), linear(2)))
    assert share_of((*facts.work, *facts.work)) == 1.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.5e-6, "8.5 us"), (2.69e-3, "2.69 ms"), (1.2, "1.2 s"), (4321.0, "4,321 s")],
)
def test_times_are_written_with_three_digits(seconds, text):
    assert time_text(seconds) == text


def test_one_thing_has_no_plural():
    assert (counted(1, "layer"), counted(1200, "layer")) == ("1 layer", "1,200 layers")
