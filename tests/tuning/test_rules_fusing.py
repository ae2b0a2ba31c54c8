import pytest
from example_work import Part, linear, work_profile

from tinytorch.measure.roofline import amdahl
from tinytorch.transforms.plan import Plan, Step
from tinytorch.tuning.facts import SPREAD, gather_facts
from tinytorch.tuning.rules import (
    PACKED,
    SLOWER,
    batch_norms,
    convolution_layout,
    own_kernels,
    small_operations,
)

NOT_PREDICTED = {"speedup": "nobody knows", "shrinkage": "nobody knows"}


def found(rule, profile, **plans):
    named = {name.replace("_", "-"): (plan,) for name, plan in plans.items()}
    return {each.entry: each for each in rule(profile, gather_facts(profile, (), named))}


def plan_of(*layers):
    return Plan("X", {}, tuple(Step(x, "", "") for x in layers), not_predicted=NOT_PREDICTED)


def conv(ms, **changes):
    shapes = {"inputs": ((1, 3, 8, 8),), "output": (1, 4, 8, 8), "weight": (4, 3, 3, 3)}
    return Part("aten.convolution", ms, "contraction", macs=6912, **shapes, **changes)


def norm(ms, **changes):
    return Part("aten.native_batch_norm", ms, "normalisation", **changes)


def test_a_run_of_neighbours_takes_as_long_as_the_slowest_of_them():
    profile = work_profile(linear(6), Part("aten.add", 3), Part("aten.relu", 1))
    advice = found(small_operations, profile)["compiled"]
    assert advice.predicted.value == pytest.approx(1 / 0.9)
    assert advice.predicted.high == pytest.approx(SPREAD / (0.6 * PACKED))
    assert advice.predicted.low == pytest.approx(1 / SLOWER / SPREAD)
    assert not any("at most" in each for each in advice.evidence)
    assert advice.evidence[0].startswith("40%")
    assert "2 operations" in advice.evidence[0]
    assert "add 30.0%, relu 10.0%" in advice.evidence[0]
    assert advice.evidence[1].startswith("1 ")


def test_a_product_between_them_parts_two_runs():
    profile = work_profile(Part("aten.add", 2), linear(6), Part("aten.relu", 2))
    assert found(small_operations, profile)["compiled"].predicted.value == pytest.approx(1.0)


def test_views_are_no_work_but_calls():
    view = Part("aten.view", 0.0, "view")
    profile = work_profile(linear(4), view, view, Part("aten.relu", 2), outside_ms=4)
    advice = found(small_operations, profile)["compiled"]
    # Two of four calls are left, and so is half of the time that no operation takes.
    assert advice.predicted.value == pytest.approx(1 / 0.8)
    assert advice.predicted.high == pytest.approx(SPREAD / (0.4 * PACKED))
    assert "from 4 to 2" in advice.predicted.basis


def test_where_there_is_nothing_but_small_operations_one_pass_is_left():
    profile = work_profile(Part("aten.add", 3), Part("aten.relu", 1))
    gain = found(small_operations, profile)["compiled"].predicted
    assert gain.value == gain.high / SPREAD == pytest.approx(4 / 3)


def test_little_between_products_is_no_reason_to_compile():
    assert not found(small_operations, work_profile(linear(19), Part("aten.relu", 1)))


def test_activations_of_tinytorch_are_fused_with_the_product_before():
    profile = work_profile(
        linear(6, kind="linear"), Part("relu", 3), Part("add", 1), framework="core"
    )
    advice = found(small_operations, profile)["fused-layers"]
    assert advice.predicted.high == pytest.approx(SPREAD / 0.7)
    assert "1 activation" in advice.evidence[1]
    assert "fused-layers" in found(small_operations, profile, fused_layers=plan_of("layers.0"))
    assert "fused-layers" not in found(small_operations, profile, fused_layers=plan_of("other"))


def test_kernels_are_advised_without_a_guess():
    profile = work_profile(linear(6, kind="linear"), Part("relu", 3), framework="core")
    advice = found(own_kernels, profile)["compiled-kernels"]
    assert advice.predicted is None
    assert "tune" in advice.not_predicted
    assert advice.evidence[1].startswith("67%")
    assert "linear in layers.0" in advice.evidence[1]


def test_a_model_of_pytorch_has_no_such_kernels():
    assert not found(own_kernels, work_profile(linear(6)))


def test_folded_batch_norms_take_no_time():
    advice = found(batch_norms, work_profile(conv(6), norm(2), conv(1), norm(1)))
    assert advice["fold-batch-norm"].predicted.value == pytest.approx(amdahl(0.3))
    assert "2 batch norms" in advice["fold-batch-norm"].evidence[0]


def test_only_norms_of_the_plan_are_folded():
    profile = work_profile(conv(6), norm(2), conv(1), norm(1))
    advice = found(batch_norms, profile, fold_batch_norm=plan_of("layers.1"))["fold-batch-norm"]
    assert advice.share == pytest.approx(0.2)


def test_batch_norms_in_training_are_left_alone():
    assert not found(batch_norms, work_profile(conv(6), norm(2), mode="training"))


def test_batch_norms_that_take_no_time_are_no_advice():
    assert not found(batch_norms, work_profile(conv(60), norm(1)))


def test_convolutions_may_be_faster_in_another_layout():
    advice = found(convolution_layout, work_profile(conv(6), norm(4)))["channels-last"]
    assert advice.share == pytest.approx(0.6)
    assert advice.predicted is None
    assert advice.not_predicted
    assert not found(convolution_layout, work_profile(linear(6)))
