import pytest
from example_work import Part, linear, machine, parameter_memory, work_profile

from tinytorch.models.records import Allocation, Recording
from tinytorch.tuning.facts import gather_facts
from tinytorch.tuning.rules import parameters_dominate, small_batch


def found(rule, profile):
    return list(rule(profile, gather_facts(profile)))


def test_parameters_that_fill_the_memory_are_held_in_fewer_bytes():
    (advice,) = found(parameters_dominate, work_profile(linear(8)))
    assert advice.entry == "int8-weights"
    assert "100%" in advice.evidence[0]
    assert "4.00x" in advice.evidence[1]
    assert advice.predicted is None
    assert advice.predicted is None


def test_a_weight_that_is_used_twice_is_held_once():
    profile = work_profile(linear(4, path="tied"), linear(4, path="tied"))
    held = profile.parameters[:1]
    recording = Recording(profile.operations, (parameter_memory(held[0].nbytes),), 1.0)
    again = work_profile(
        linear(4, path="tied"), linear(4, path="tied"), parameters=held, recording=recording
    )
    (advice,) = found(parameters_dominate, again)
    assert advice.evidence[1].startswith("4 MB")


def test_activations_that_fill_the_memory_are_another_matter():
    profile = work_profile(linear(8))
    large = Allocation(100_000_000, "activations", "", "forward", 0.0, None)
    recording = Recording(profile.operations, (*profile.recording.allocations, large), 1.0)
    assert not found(parameters_dominate, work_profile(linear(8), recording=recording))


def test_the_batch_that_leaves_the_memory_bound_side_is_computed():
    # 4 MB of weights and 8 kB for each example at 1 GB/s, 2 MFLOP at 1 GFLOP/s: 2 x > 4 + 0.008 x
    (advice,) = found(small_batch, work_profile(linear(8)))
    assert "A batch of 3 " in advice.title
    assert advice.entry == ""
    assert advice.share == pytest.approx(1.0)
    assert "tinytorch advise" in advice.not_predicted


def test_a_faster_processor_needs_more_examples():
    quick = machine({"float32": 10e9})
    (advice,) = found(small_batch, work_profile(linear(8), ceilings=quick))
    assert "A batch of 21 " in advice.title


def test_more_examples_do_not_help_where_activations_are_most_of_the_bytes():
    wide = linear(8, rows=1, inside=2, outside=10_000)
    profile = work_profile(wide, ceilings=machine({"float32": 100e9}))
    assert not found(small_batch, profile)


@pytest.mark.parametrize("changes", [{"examples": None}, {"ceilings": None}])
def test_what_is_not_known_gives_no_batch(changes):
    assert not found(small_batch, work_profile(linear(8), **changes))


def test_compute_bound_products_have_a_batch_that_is_large_enough():
    assert not found(small_batch, work_profile(linear(8, rows=100), Part("aten.relu", 1)))
