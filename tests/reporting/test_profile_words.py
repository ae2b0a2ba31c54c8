import dataclasses

from example_profiles import empty_profile, example_profile, moving_profile, training_profile

from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Samples
from tinytorch.profiling.profile import NotCounted, find_facts
from tinytorch.reporting.profile_words import (
    caveat_lines,
    doubts,
    head_rows,
    interval_text,
    not_counted_text,
    reasons,
    setting_words,
)


def head(profile):
    return {name: (text, doubt) for name, text, doubt in head_rows(profile, find_facts(profile))}


def test_the_setting_names_the_model_unless_that_is_its_name():
    profile = example_profile()
    assert setting_words(profile, find_facts(profile)) == (
        "Net, core, cpu, inference, float32, batch 4"
    )
    same = example_profile(name="Net", examples=None)
    assert setting_words(same, find_facts(same)) == "core, cpu, inference, float32"


def test_values_come_with_their_details():
    found = head(example_profile())
    assert found["latency"] == ("10.0 ms", "median; 88% interval 9.80 ms to 10.2 ms, n=4")
    assert found["throughput"] == ("400 examples/s", "")


def test_a_call_that_only_moves_bytes_has_no_flops():
    assert head(moving_profile())["work"] == ("0 FLOP", "400 B moved")


def test_reasons_start_with_what_is_slowest():
    for profile, start in (
        (example_profile(), "blocks.*.fc (2x Linear): 40.0% of the time (self), memory-bound"),
        (training_profile(), "Backward pass: 30.0% of the time (self)"),
        (empty_profile(), "No layer ran"),
    ):
        assert next(reasons(profile, find_facts(profile))).startswith(start)


def test_intervals_have_two_ends():
    assert interval_text(Estimate(0.0015, 0.001, 0.002)) == "1.00 ms to 2.00 ms"


def test_caveats_say_whether_all_was_counted():
    profile = example_profile()
    counted = dataclasses.replace(
        profile.recording, operations=tuple(each for each in profile.operations if each.cost)
    )
    complete = dataclasses.replace(profile, recording=counted)
    assert caveat_lines(profile, find_facts(profile))[-1].startswith("Not counted in any total")
    assert caveat_lines(complete, find_facts(complete))[-1] == (
        "Every operation that ran was counted."
    )
    assert len(caveat_lines(empty_profile(), find_facts(empty_profile()))) == 2


def test_of_a_trace_the_overhead_is_unknown():
    traced = example_profile(busy=example_profile().watched, is_traced=True)
    first = caveat_lines(traced, find_facts(traced))[0]
    assert first.startswith("Layer times are those of kernels in a trace of 4 calls (10.0 ms)")


def test_places_of_what_was_not_counted_are_few():
    each = NotCounted("odd", 5, 0.001, ("", "a", "b", "c", "d"))
    assert not_counted_text(each) == "odd: 5 calls, 1.00 ms, in the model (self), a, b and 2 more"


def test_an_unstable_latency_is_a_doubt():
    drifting = Samples("latency", (0.010, 0.010, 0.020, 0.020), notes=("a note",))
    found = doubts(example_profile(latency=drifting, notes=("another",)))
    assert found[:2] == ["another", "a note"]
    assert found[2].startswith("The latency is unstable")


def test_faster_kernels_do_not_help_a_device_that_mostly_waits():
    busy = {
        "device_time": Samples("device time", (0.008,) * 4),
        "busy": Samples("busy", (0.004,) * 4),
    }
    waiting = example_profile(device="cuda:0", **busy)
    text = " ".join(reasons(waiting, find_facts(waiting)))
    assert "2x faster here gives 1.25x for the kernels" in text
    assert "a call hardly gains" in text
