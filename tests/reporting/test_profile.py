import dataclasses

import pytest
from example_profiles import (
    CALLS,
    allocations,
    empty_profile,
    example_profile,
    layer_calls,
    moving_profile,
    training_profile,
)
from terminal import shown

from tinytorch.errors import SettingError
from tinytorch.measure.samples import Samples
from tinytorch.reporting.profile import render_profile, render_profiles


def why(profile):
    """Give the sentences that say why, on one line."""
    text = shown(render_profile(profile), 140).split("\nWhy\n")[1].split("\n\n")[0]
    return " ".join(text.split())


def test_the_head_says_what_was_measured():
    lines = shown(render_profile(example_profile()), 140).splitlines()
    assert lines[0] == "example  Net, core, cpu, inference, float32, batch 4"
    head = "\n".join(line.rstrip() for line in lines[1:7])
    assert head.split("\n") == [
        "latency      10.0 ms  median; 88% interval 9.80 ms to 10.2 ms, n=4",
        "throughput   400 examples/s",
        "work         5.00 kFLOP (2.50k multiply-accumulates of contractions, two FLOP each) and "
        "80 FLOP of other kinds",
        "reached      508 kFLOP/s, 50.8% of the float32 peak measured here, 1.00 MFLOP/s",
        "parameters   250, 0.977 KiB, with buffers 1.02 KiB",
        "peak memory  1.64 KiB; the call itself made 480 B",
    ]


def test_an_interval_with_enough_values_is_of_95_percent():
    many = Samples("latency", tuple(0.01 + index * 1e-5 for index in range(40)))
    profile = example_profile(
        latency=many, watched=many, turns=(40,), runs=(layer_calls(CALLS),) * 40
    )
    assert "95% interval" in shown(render_profile(profile), 140)


def test_one_call_has_no_interval():
    one = Samples("latency", (0.01,))
    profile = example_profile(latency=one, watched=one, turns=(1,), runs=(layer_calls(CALLS),))
    assert "10.0 ms  of one call; how much it varies is not known" in shown(
        render_profile(profile), 140
    )


def test_why_names_the_bottleneck_its_limit_and_what_it_would_bring():
    assert why(example_profile()) == (
        "blocks.*.fc (2x Linear) takes 40.0% of the time itself. It is memory-bound: moving bytes "
        "is the limit, and it reaches 200.0% of what this machine allows there. Twice as fast, it "
        "would make the whole 1.25x faster; taking no time at all, 1.67x."
    )


def test_why_does_not_guess_without_ceilings():
    assert "what limits it is not known: the ceilings" in why(example_profile(ceilings=None))


def test_why_says_when_a_limit_is_far_away():
    slow = [(path, 100 * start, 100 * end) for path, start, end in CALLS]
    profile = example_profile(runs=(layer_calls(slow),) * 4, watched=Samples("watched", (1.0,) * 4))
    assert "so something else takes most of its time" in why(profile)


def test_why_names_the_backward_pass():
    assert why(training_profile()).startswith("The whole backward pass takes 30.0% of the time")


def test_why_names_time_between_the_layers():
    calls = [*CALLS[:-1], ("", 0.5, 9.5)]
    spread = [
        (path, start, start + 0.1) if path.endswith("fc") else (path, start, end)
        for path, start, end in calls
    ]
    assert "is spent between the layers" in why(example_profile(runs=(layer_calls(spread),) * 4))


def test_the_model_itself_may_be_the_reason():
    calls = [*CALLS[:-1], ("", 0.5, 29.5)]
    slow = example_profile(runs=(layer_calls(calls),) * 4, watched=Samples("w", (0.030,) * 4))
    assert why(slow).startswith("What the model does outside of its layers (Net) takes 70.0%")


def test_a_gpu_that_waits_is_mentioned():
    on_gpu = example_profile(
        device="cuda:0",
        device_time=Samples("device time", (0.008,) * 4),
        busy=Samples("busy", (0.004,) * 4),
    )
    assert "the device waits for the program in 60.0% of the time" in why(on_gpu)
    assert "8.00 ms, of which its kernels need 4.00 ms" in why(on_gpu)


def test_every_section_is_there():
    text = shown(render_profile(example_profile()), 140)
    for title in (
        "Why",
        "Layers",
        "What a faster part would bring (Amdahl's law)",
        "Operations, in the recorded call",
        "Memory, in the recorded call",
        "Caches and memory of this machine",
        "What to keep in mind",
    ):
        assert f"\n{title}\n" in text


def test_a_profile_without_layers_can_be_shown():
    text = shown(render_profile(empty_profile()), 140)
    assert why(empty_profile()).startswith("No layer ran")
    assert "throughput" not in text


def head(profile):
    """Give the lines of the head by their names."""
    lines = shown(render_profile(profile), 140).split("\n\n")[0].splitlines()[1:]
    return {name: text.strip() for name, text in (line.split("  ", 1) for line in lines)}


def test_what_nobody_saw_is_not_called_nothing():
    found = head(empty_profile())
    assert found["work"] == "not known: no operation was recorded"
    assert found.keys() == {"latency", "work", "parameters"}
    assert "a call touches" not in shown(render_profile(empty_profile()), 140)
    held = dataclasses.replace(empty_profile().recording, allocations=allocations()[:2])
    found = head(dataclasses.replace(empty_profile(), recording=held))
    assert found["peak memory"] == "1.17 KiB; what the call itself makes was not seen"


def test_a_function_without_layers_is_judged_as_a_whole():
    function = example_profile(kinds={"": "function"}, runs=((),) * 4, parameters=())
    text = why(function)
    assert text == (
        "No layer ran: everything that this model does is code outside of layers. As a whole it is "
        "memory-bound: moving bytes is the limit, and it reaches 200.0% of what this machine "
        "allows there."
    )
    assert shown(render_profile(function), 140).count("(unattributed)") == 1


def test_a_single_layer_is_the_model_itself():
    single = example_profile(
        kinds={"": "Linear"}, runs=(layer_calls([("", 1.0, 9.0)]),) * 4, parameters=()
    )
    assert why(single).startswith("The model itself (Linear) takes 80.0% of the time. It is memory")


def test_a_compiled_model_has_the_work_of_the_layers_that_nobody_could_watch():
    compiled = example_profile(runs=(layer_calls([("", 1.0, 9.0)]),) * 4)
    assert why(compiled).startswith("The model itself (Net) takes 80.0% of the time. It is memory")
    layers = shown(render_profile(compiled), 140).split("\nLayers\n")[1].split("\n\n")[0]
    assert [line.split()[0] for line in layers.splitlines()] == [
        "layer",
        "Net",
        "(unattributed)",
        "total",
    ]


def test_what_only_moves_bytes_is_compared_with_the_bandwidth():
    found = head(moving_profile())
    assert found["work"] == "no FLOP; 400 B moved"
    # 400 bytes in 10 ms
    assert found["reached"] == "40.0 kB/s, 40.0% of the bandwidth of DRAM measured here, 100 kB/s"
    assert "It is memory-bound: moving bytes is the limit, and it reaches 100.0%" in why(
        moving_profile()
    )
    text = shown(render_profile(moving_profile()), 140)
    assert "nan" not in text
    assert "\nRoofline\n" not in text
    without = head(dataclasses.replace(moving_profile(), ceilings=None))
    assert without["reached"] == "40.0 kB/s"


def test_a_model_that_is_called_like_its_kind_is_named_once():
    lines = shown(render_profile(example_profile(name="Net")), 140).splitlines()
    assert lines[0] == "Net  core, cpu, inference, float32, batch 4"


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
@pytest.mark.parametrize("make", [example_profile, training_profile])
def test_no_line_is_longer_than_the_terminal(make, width):
    assert all(len(line) <= width for line in shown(render_profile(make()), width).splitlines())


def test_depth_and_expansion_reach_the_layers():
    assert "(+2 inside)" not in shown(render_profile(example_profile()), 140)
    assert "(2x) +2 Block" in shown(render_profile(example_profile(), depth=1), 140)
    assert "blocks.1 Block" in shown(render_profile(example_profile(), expand=True), 140)


def test_no_rows_are_refused():
    with pytest.raises(SettingError, match="top=0; at least one row"):
        render_profile(example_profile(), top=0)


def test_a_profile_shows_itself():
    profile = example_profile()
    assert shown(profile, 140) == shown(render_profile(profile), 140)


def test_profiles_stand_side_by_side():
    other = example_profile(name="other", latency=Samples("latency", (0.005,) * 4))
    lines = shown(render_profiles([example_profile(), other]), 140).splitlines()
    assert " ".join(lines[0].split()) == (
        "model latency 95% interval examples/s params MACs FLOP/B peak mem bottleneck bound"
    )
    assert lines[1].split()[:3] == ["example", "10.0", "ms"]
    assert lines[2].split()[:3] == ["other", "5.00", "ms"]
    assert lines[1].split()[-3:] == ["40.0%", "blocks.*.fc", "memory"]


def test_side_by_side_fits_a_narrow_terminal():
    lines = shown(render_profiles([example_profile(), training_profile()]), 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert {"model", "latency", "MACs", "bottleneck", "bound"} <= set(lines[0].split())


def test_notes_of_each_are_repeated():
    noisy = example_profile(name="noisy", notes=("the machine is busy",))
    assert "- noisy: the machine is busy" in shown(render_profiles([example_profile(), noisy]), 140)


def test_nothing_side_by_side_is_refused():
    with pytest.raises(SettingError, match="no profiles to show"):
        render_profiles([])


def test_a_notebook_gets_escaped_html():
    profile = example_profile(name="<script>")
    html = profile._repr_html_()
    assert html.startswith("<pre")
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
