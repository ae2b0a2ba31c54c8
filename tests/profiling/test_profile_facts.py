import math

import pytest
from example_profiles import (
    CALLS,
    MS,
    empty_profile,
    example_profile,
    layer_calls,
    moving_profile,
    training_profile,
)

from tinytorch.measure.samples import Samples
from tinytorch.profiling.layers import BACKWARD
from tinytorch.profiling.profile import Hotspot, describe_hotspot, find_facts, speedups


def test_the_bottleneck_is_what_takes_most_time_itself():
    found = find_facts(example_profile()).bottleneck
    assert found.name == "blocks.*.fc"
    assert found.layers == ("blocks.0.fc", "blocks.1.fc")
    assert found.share == pytest.approx(0.4)
    assert found.self_s == pytest.approx(4 * MS)
    assert not found.is_model
    assert found.is_leaf


def test_the_bottleneck_stands_under_the_roof():
    # 4000 FLOP in 4 ms over 800 bytes; the working set of 1,680 bytes lives in memory, at 1e5 B/s.
    found = find_facts(example_profile()).bottleneck
    assert found.intensity == pytest.approx(5.0)
    assert found.bound == "memory"
    assert found.of_attainable == pytest.approx(1e6 / 5e5)
    assert found.of_peak == pytest.approx(1.0)


def test_without_ceilings_nothing_is_said_about_limits():
    facts = find_facts(example_profile(ceilings=None))
    assert (facts.bound, facts.of_attainable, facts.of_peak) == (None, None, None)
    assert (facts.bottleneck.bound, facts.bottleneck.of_peak) == (None, None)
    assert facts.bottleneck.intensity == pytest.approx(5.0)


def test_speedups_follow_amdahl():
    found = find_facts(example_profile()).bottleneck
    assert found.speedups[2.0] == pytest.approx(1 / (0.6 + 0.2))
    assert found.speedups[math.inf] == pytest.approx(1 / 0.6)


def test_a_share_outside_of_the_whole_has_no_speedup():
    odd = Hotspot("x", "Linear", ("x",), -1e-9, -1e-6, None)
    assert set(speedups(odd).values()) == {None}
    odd = Hotspot("x", "Linear", ("x",), 1.1, 1.1, None)
    assert set(speedups(odd).values()) == {None}


def test_a_share_of_one_but_for_rounding_is_the_whole():
    whole = Hotspot("x", "Linear", ("x",), 1.0, 1 + 1e-15, None)
    assert speedups(whole) == {2.0: 2.0, 4.0: 4.0, 10.0: 10.0, math.inf: math.inf}


def test_time_between_layers_is_told_from_time_outside():
    facts = find_facts(example_profile())
    # The model spends 1 ms itself, the two blocks 1 ms each; 1 ms is outside of the model.
    assert facts.container_share == pytest.approx(0.3)
    assert facts.unattributed_share == pytest.approx(0.1)


def test_time_in_no_operation_is_a_lower_bound():
    # The operations take 9 ms in the recording, a call 10 ms.
    assert find_facts(example_profile()).outside_operations_share == pytest.approx(0.1)


def test_a_recording_slower_than_the_call_says_nothing_of_python():
    fast = Samples("latency", (0.005,) * 4)
    assert find_facts(example_profile(latency=fast)).outside_operations_share is None


def test_families_and_categories_are_shares_largest_first():
    facts = find_facts(example_profile())
    assert list(facts.families) == ["contraction", "elementwise", "not counted"]
    assert facts.families["contraction"] == pytest.approx(6 / 9)
    assert sum(facts.families.values()) == pytest.approx(1.0)
    assert list(facts.peak_composition) == ["parameters", "activations", "inputs"]
    assert sum(facts.peak_composition.values()) == pytest.approx(1.0)
    assert facts.peak_bytes == 1040 + 160 + 160 + 320
    assert facts.not_counted_share == pytest.approx(1 / 9)


def test_the_whole_is_described():
    facts = find_facts(example_profile())
    assert (facts.dtype, facts.batch) == ("float32", 4)
    assert facts.flops_per_s == pytest.approx((5000 + 80) / 0.010)
    assert facts.intensity == pytest.approx(5080 / 2000)


def test_the_backward_pass_has_a_bound_of_its_own():
    found = find_facts(training_profile()).bottleneck
    assert found.layers == (BACKWARD,)
    assert found.bound == "memory"
    assert found.intensity == pytest.approx(5000 / 1200)


def test_what_only_moves_bytes_is_judged_by_the_bandwidth():
    facts = find_facts(moving_profile())
    assert (facts.bound, facts.intensity, facts.flops_per_s) == ("memory", 0.0, 0.0)
    # 400 bytes of the 100 kB/s of the memory: in 10 ms as a call, in 4 ms as a layer
    assert facts.of_attainable == pytest.approx(0.4)
    assert facts.bottleneck.of_attainable == pytest.approx(1.0)


def test_a_model_without_layers_has_no_bottleneck():
    facts = find_facts(empty_profile())
    assert facts.bottleneck is None
    assert facts.unattributed_share == pytest.approx(1.0)
    assert facts.families == {}


def test_the_model_itself_can_be_the_bottleneck():
    calls = [*CALLS[:-1], ("", 0.5, 29.5)]
    slow = example_profile(runs=(layer_calls(calls),) * 4, watched=Samples("watched", (0.030,) * 4))
    found = find_facts(slow).bottleneck
    assert (found.is_model, found.name, found.kind) == (True, "", "Net")
    assert not found.is_leaf


def test_on_a_gpu_waiting_is_told_from_working():
    on_gpu = example_profile(
        device="cuda:0",
        device_time=Samples("device time", (0.008,) * 4),
        busy=Samples("busy", (0.004,) * 4),
    )
    facts = find_facts(on_gpu)
    assert facts.device.wall_share_outside == pytest.approx(0.2)
    assert facts.device.idle_share == pytest.approx(0.6)
    assert facts.outside_operations_share is None


def test_on_the_processor_there_is_no_device():
    device_time = Samples("device time", (0.008,) * 4)
    assert find_facts(example_profile(device_time=device_time)).device is None


def test_every_hotspot_can_be_described():
    profile = example_profile()
    described = [describe_hotspot(profile, hotspot) for hotspot in profile.hotspots]
    assert [each.share for each in described] == sorted(
        (each.share for each in described), reverse=True
    )
    assert sum(each.share for each in described) == pytest.approx(0.9)
