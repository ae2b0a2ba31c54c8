import pytest
from example_work import Part, linear, on_gpu, work_profile

from tinytorch.tuning.facts import SPREAD, gather_facts
from tinytorch.tuning.rules_program import (
    book_keeping,
    busy_machine,
    launches,
    not_counted,
    python_overhead,
    synchronisations,
)


def found(rule, profile):
    return {each.entry: each for each in rule(profile, gather_facts(profile))}


def test_a_waiting_device_is_advised_to_get_its_kernels_at_once():
    advice = found(launches, on_gpu(linear(6), Part("aten.relu", 2), idle=0.5))
    assert advice["captured"].predicted.value == pytest.approx(2.0)
    assert advice["captured"].predicted.low == pytest.approx(1 / SPREAD)
    assert advice["captured"].evidence[0].startswith("50%")
    assert "host-bound" in advice["captured"].evidence[0]
    # Of the other half a quarter stands between products.
    assert advice["compiled-captured"].predicted.value == pytest.approx(2.0)
    assert advice["compiled-captured"].predicted.high == pytest.approx(SPREAD / 0.375)


def test_a_busy_device_has_nothing_to_gain_from_that():
    assert not found(launches, on_gpu(linear(6), idle=0.01))


def test_a_processor_launches_nothing():
    assert not found(launches, work_profile(linear(6), outside_ms=6))


def test_time_in_no_operation_is_the_programs():
    advice = found(python_overhead, work_profile(linear(4), outside_ms=6))[""]
    assert advice.share == pytest.approx(0.6)
    assert "60%" in advice.evidence[0]
    assert "2.5x" in advice.not_predicted
    assert not found(python_overhead, work_profile(linear(9), outside_ms=1))


def test_book_keeping_matters_where_operations_are_small():
    profile = work_profile(linear(5), Part("aten.relu", 5))
    assert "2 operations" in found(book_keeping, profile)["inference-mode"].evidence[0]
    assert not found(book_keeping, work_profile(linear(99), Part("aten.relu", 1)))


def test_dropout_in_inference_is_told():
    profile = work_profile(linear(99), Part("aten.native_dropout", 1))
    advice = found(book_keeping, profile)["inference-mode"]
    assert "1 dropout in layers.1" in advice.evidence[2]
    assert advice.share == pytest.approx(0.01)


def test_a_training_step_needs_its_book_keeping():
    profile = work_profile(linear(5), Part("aten.relu", 5), mode="training")
    assert not found(book_keeping, profile)


def test_a_number_for_the_program_makes_it_wait():
    item = Part("aten._local_scalar_dense", 1, "movement", path="gate")
    advice = found(synchronisations, on_gpu(linear(6), item))[""]
    assert advice.evidence[0].startswith("1 operation in gate")
    assert "_local_scalar_dense" in advice.evidence[0]
    assert not found(synchronisations, on_gpu(linear(6)))
    assert not found(synchronisations, work_profile(linear(6), item))


def test_much_time_in_unknown_operations_is_told():
    odd = Part("custom.op", 5, None)
    advice = found(not_counted, work_profile(linear(5), odd))[""]
    assert "50%" in advice.evidence[0]
    assert "custom.op (1 times)" in advice.evidence[0]
    assert not found(not_counted, work_profile(linear(99), Part("custom.op", 1, None)))


def test_a_busy_machine_is_told_by_its_disturbances():
    disturbances = ("the load average is 8.1 on 2 usable cores",)
    profile = work_profile(linear(6), notes=("3 layers are busy",), disturbances=disturbances)
    assert found(busy_machine, profile)[""].evidence == disturbances
    assert not found(busy_machine, work_profile(linear(6), notes=("3 layers are busy",)))
