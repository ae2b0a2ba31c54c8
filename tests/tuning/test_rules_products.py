import pytest
from example_work import Part, linear, machine, work_profile

from tinytorch.measure.roofline import amdahl
from tinytorch.transforms.plan import Plan, Step
from tinytorch.tuning.facts import SPREAD, gather_facts
from tinytorch.tuning.rules_products import (
    compute_bound_products,
    fewer_products,
    memory_bound_products,
)

RELU = Part("aten.relu", 2)


def of_tinytorch(*parts, **changes):
    """Give a profile of TinyTorch's own layers, whose kernels read weights in fewer bits."""
    return work_profile(*parts, framework="core", **changes)


NOT_PREDICTED = {"speedup": "nobody knows", "shrinkage": "nobody knows"}


def found(rule, profile, **plans):
    named = {name.replace("_", "-"): (plan,) for name, plan in plans.items()}
    return {each.entry: each for each in rule(profile, gather_facts(profile, (), named))}


def plan_of(*layers):
    return Plan("X", {}, tuple(Step(x, "", "") for x in layers), not_predicted=NOT_PREDICTED)


# ---------------------------------------------------------------- memory-bound


def test_memory_bound_weights_are_advised_in_fewer_bytes():
    advice = found(memory_bound_products, of_tinytorch(linear(8), RELU))
    assert set(advice) == {"int8-weights", "int4-weights"}
    # In PyTorch these become floats again at every call: nothing supports a prediction.
    assert set(found(memory_bound_products, work_profile(linear(8), RELU))) == {"bfloat16"}
    assert "1 memory-bound" in advice["int8-weights"].evidence[0]
    assert "used once" in advice["int8-weights"].evidence[1]
    assert advice["int8-weights"].share == pytest.approx(0.8)


def test_fewer_bytes_bring_no_more_than_computing_allows():
    # 4.008 MB at 1 GB/s; in 8 bits 1.008 MB, but 2 MFLOP take 2 ms whatever the bytes.
    gain = found(memory_bound_products, of_tinytorch(linear(8), RELU))["int8-weights"].predicted
    assert gain.value == pytest.approx(amdahl(0.8, 4.008 / 2))
    assert gain.high == pytest.approx(SPREAD * amdahl(0.8, 8 / 2))
    assert gain.low == pytest.approx(1 / 1.4 / SPREAD)
    assert "weights in 8 bits" in gain.basis


def test_with_a_faster_processor_bytes_are_the_limit():
    quick = machine({"float32": 100e9})
    gain = found(memory_bound_products, of_tinytorch(linear(8), RELU, ceilings=quick))
    assert gain["int8-weights"].predicted.high == pytest.approx(SPREAD * amdahl(0.8, 8 / 1.008))
    assert gain["int4-weights"].predicted.high == pytest.approx(SPREAD * amdahl(0.8, 8 / 0.508))
    gain = found(memory_bound_products, work_profile(linear(8), RELU, ceilings=quick))
    assert "bfloat16" in gain["bfloat16"].not_predicted


def test_half_the_bits_everywhere_halve_the_rest_and_no_more():
    # The product of 4.008 ms at its roof has 2.004 left; the other 4 ms are far from any roof.
    relu = Part("aten.relu", 4, inputs=((1, 1000),), output=(1, 1000))
    gain = found(memory_bound_products, work_profile(linear(4.008), relu))["bfloat16"].predicted
    assert gain.value == gain.high / SPREAD == pytest.approx(2.0)


def test_compute_bound_products_need_no_smaller_weights():
    assert not found(memory_bound_products, work_profile(linear(8, rows=100), RELU))


def test_without_ceilings_nothing_is_known_to_be_memory_bound():
    assert not found(memory_bound_products, work_profile(linear(8), ceilings=None))


def test_products_that_take_no_time_are_left_alone():
    profile = work_profile(linear(0.1), Part("aten.relu", 10))
    assert not found(memory_bound_products, profile)
    assert not found(compute_bound_products, profile)


def test_a_plan_that_leaves_most_of_them_alone_is_not_advised():
    profile = of_tinytorch(linear(8), linear(0.1))
    assert "int8-weights" in found(memory_bound_products, profile, int8_weights=plan_of(""))
    little = found(memory_bound_products, profile, int8_weights=plan_of("layers.1"))
    assert "int8-weights" not in little


# ---------------------------------------------------------------- compute-bound


def test_compute_bound_products_are_advised_in_fewer_bits():
    advice = found(compute_bound_products, work_profile(linear(800, rows=100), RELU))
    assert set(advice) == {"int8-dynamic", "int8-static", "bfloat16-layers", "bfloat16"}
    assert "1 compute-bound" in advice["int8-dynamic"].evidence[0]
    assert "25% of the measured" in advice["int8-dynamic"].evidence[1]
    assert advice["int8-dynamic"].evidence[2].startswith("4 G operations/s")


def test_integers_bring_what_the_measured_rate_allows():
    # 200 MFLOP: 200 ms in float32, 50 ms in int8; 200 ms were not reached, 800 ms were.
    profile = work_profile(linear(800, rows=100), Part("aten.relu", 200))
    gain = found(compute_bound_products, profile)["int8-dynamic"].predicted
    assert gain.value == pytest.approx(amdahl(0.8, 4))
    assert gain.high == pytest.approx(SPREAD * amdahl(0.8, 16))


def on_tensor_cores(*parts):
    return work_profile(*parts, device="cuda:0", ceilings=machine({"float32": 1e9, "tf32": 8e9}))


def test_a_gpu_multiplies_float32_as_tf32():
    gain = found(compute_bound_products, on_tensor_cores(linear(800, rows=100)))["tf32"].predicted
    assert gain.value == pytest.approx(8)
    assert "unchanged bytes" in gain.basis


def test_convolutions_choose_tf32_by_themselves():
    conv = linear(800, rows=100, kind="aten.convolution")
    assert "tf32" not in found(compute_bound_products, on_tensor_cores(conv))


def test_a_rate_that_was_not_measured_predicts_nothing():
    ceilings = machine({"float32": 1e9}, missing={"int8 rate": "import torch first"})
    profile = work_profile(linear(800, rows=100), ceilings=ceilings)
    advice = found(compute_bound_products, profile)["int8-dynamic"]
    assert advice.predicted is None
    assert "import torch first" in advice.not_predicted


def test_a_machine_that_is_no_faster_in_integers_is_not_advised_to_use_them():
    ceilings = machine({"float32": 1e9, "int8": 1e9, "bfloat16": 2e9})
    advice = found(compute_bound_products, work_profile(linear(800, rows=100), ceilings=ceilings))
    assert "int8-dynamic" not in advice
    assert "bfloat16-layers" in advice


def test_without_ceilings_products_are_named_and_nothing_is_predicted():
    advice = found(compute_bound_products, work_profile(linear(8), ceilings=None))
    assert "-bound" not in advice["int8-dynamic"].evidence[0]
    assert advice["int8-dynamic"].predicted is None
    assert "ceilings were not measured" in advice["int8-dynamic"].not_predicted


def test_no_entry_is_advised_by_both_rules():
    profile = work_profile(linear(400), linear(400, rows=100))
    memory, compute = (found(x, profile) for x in (memory_bound_products, compute_bound_products))
    assert memory
    assert compute
    assert not set(memory) & set(compute)


def test_tinytorch_models_are_not_told_about_bfloat16():
    profile = work_profile(linear(800, rows=100, kind="linear"), framework="core")
    assert set(found(compute_bound_products, profile)) == {"int8-dynamic", "int8-static"}


# ---------------------------------------------------------------- fewer of them


def test_half_the_products_take_half_the_time_at_best():
    advice = found(fewer_products, work_profile(linear(8), RELU))
    assert advice["fewer-channels"].predicted.value == pytest.approx(amdahl(0.8, 2))
    assert advice["fewer-channels"].predicted.high == pytest.approx(SPREAD * 2.0)
    assert advice["low-rank"].predicted is None
    assert "ranks" in advice["low-rank"].not_predicted


def test_where_products_are_little_fewer_of_them_are_no_advice():
    assert not found(fewer_products, work_profile(linear(3), Part("aten.relu", 7)))


def test_a_removed_layer_takes_no_time():
    profile = work_profile(linear(8, path="blocks.0"), linear(2, path="blocks.1"))
    assert "fewer-layers" not in found(fewer_products, profile)
    advice = found(fewer_products, profile, fewer_layers=plan_of("blocks.1"))["fewer-layers"]
    assert advice.predicted.high == pytest.approx(SPREAD / 0.8)
    assert advice.evidence == ("20.0% of a call is in 'blocks.1'",)
