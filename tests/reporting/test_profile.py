"""The document of a profile, in all of its media where they differ."""

import dataclasses

import pytest
from document_reading import anchors, facts, lines, named_rows, section, tables
from example_profiles import (
    CALLS,
    allocations,
    empty_profile,
    example_profile,
    layer_calls,
    moving_profile,
    operation,
    training_profile,
)
from strange_profiles import gpu_profile
from terminal import shown

from tinytorch.errors import SettingError
from tinytorch.measure.counters import Counters
from tinytorch.measure.samples import Samples
from tinytorch.reporting.document import Folded
from tinytorch.reporting.profile import profile_document, profiles_document
from tinytorch.reporting.terminal import render


def part(profile, anchor, **context):
    return section(profile_document(profile, **context), anchor)


def why(profile):
    return profile_document(profile).banner.sentence


def head(profile):
    return facts(profile_document(profile))


def render_profile(profile, **context):
    return render(profile_document(profile, **context))


def without_operations(profile):
    recording = dataclasses.replace(profile.recording, operations=(), allocations=())
    return dataclasses.replace(profile, recording=recording, runs=((),) * 4, kinds={"": "f"})


def test_the_head_says_what_was_measured():
    document = profile_document(example_profile())
    assert document.banner.verdict == "10.0 ms per call"
    assert document.title == "Profile of example"
    assert document.subtitle == "Net, core, cpu, inference, float32, batch 4"
    assert facts(document) == {
        "latency": "10.0 ms  median; 88% interval 9.80 ms to 10.2 ms, n=4",
        "throughput": "400 examples/s",
        "work": "5.00 kFLOP  2.50k MACs of contractions, two FLOP each; and 80 FLOP other",
        "achieved": "508 kFLOP/s  50.8% of the measured float32 peak, 1.00 MFLOP/s",
        "parameters": "250  0.977 KiB, with buffers 1.02 KiB",
        "peak memory": "1.64 KiB  allocated by the call: 480 B",
    }


def test_an_interval_with_enough_values_is_of_95_percent():
    many = Samples("latency", tuple(0.01 + index * 1e-5 for index in range(40)))
    profile = example_profile(
        latency=many, watched=many, turns=(40,), runs=(layer_calls(CALLS),) * 40
    )
    assert "95% interval" in head(profile)["latency"]


def test_one_call_has_no_interval():
    one = Samples("latency", (0.01,))
    profile = example_profile(latency=one, watched=one, turns=(1,), runs=(layer_calls(CALLS),))
    assert head(profile)["latency"] == "10.0 ms  n=1: variation unknown"
    assert tables(part(profile, "latency")) == []


def test_the_bottleneck_its_limit_and_what_it_would_bring():
    assert why(example_profile()) == (
        "blocks.*.fc (2x Linear): 40.0% of the time (self), memory-bound by arithmetic intensity, "
        "at 200.0% of the attainable bandwidth. Amdahl: 2x faster here gives 1.25x overall, at "
        "most 1.67x."
    )


def test_no_bound_is_guessed_without_ceilings():
    assert "bound unknown: the ceilings" in why(example_profile(ceilings=None))


def test_a_limit_that_is_far_away_is_overhead():
    slow = [(path, 100 * start, 100 * end) for path, start, end in CALLS]
    profile = example_profile(runs=(layer_calls(slow),) * 4, watched=Samples("watched", (1.0,) * 4))
    assert "overhead dominates" in why(profile)


def test_the_backward_pass_is_named():
    assert why(training_profile()).startswith("Backward pass: 30.0% of the time")


def test_time_between_the_layers_is_named():
    calls = [*CALLS[:-1], ("", 0.5, 9.5)]
    spread = [
        (path, start, start + 0.1) if path.endswith("fc") else (path, start, end)
        for path, start, end in calls
    ]
    assert "is between the layers" in why(example_profile(runs=(layer_calls(spread),) * 4))


def test_the_model_itself_may_be_the_reason():
    calls = [*CALLS[:-1], ("", 0.5, 29.5)]
    slow = example_profile(runs=(layer_calls(calls),) * 4, watched=Samples("w", (0.030,) * 4))
    assert why(slow).startswith("The model outside of its layers (Net): 70.0%")


def test_an_idle_gpu_is_host_bound():
    text = why(gpu_profile())
    assert text.startswith(
        "Latency (wall clock) 10.0 ms, device time (events) 8.00 ms, kernels 4.00"
    )
    assert "host-bound, the device is idle 60.0% of the time" in text
    found = named_rows(part(gpu_profile(), "latency"))
    assert found["kernels, without gaps"]["median"] == "4.00 ms"
    assert found["device time (events)"]["95% interval"] == "8.00 ms to 8.00 ms"
    assert found["device idle"]["median"] == "60.0%"
    assert "device idle" not in named_rows(part(example_profile(), "latency"))


def test_every_section_is_there_in_its_order():
    assert anchors(profile_document(example_profile())) == [
        "time",
        "layers",
        "faster",
        "roofline",
        "operations",
        "timeline",
        "memory",
        "latency",
        "caches",
        "caveats",
    ]


def test_a_profile_without_layers_can_be_shown():
    assert why(empty_profile()).startswith("No layer ran")
    assert "throughput" not in head(empty_profile())


def test_what_was_not_seen_is_not_called_nothing():
    found = head(empty_profile())
    assert found["work"] == "unknown  no operation was recorded"
    assert found.keys() == {"latency", "work", "parameters"}
    assert "a call touches" not in shown(render_profile(empty_profile()), 140)
    held = dataclasses.replace(empty_profile().recording, allocations=allocations()[:2])
    found = head(dataclasses.replace(empty_profile(), recording=held))
    assert found["peak memory"] == "1.17 KiB  allocations by the call not recorded"


def test_a_function_without_layers_is_judged_as_a_whole():
    function = example_profile(kinds={"": "function"}, runs=((),) * 4, parameters=())
    assert why(function) == (
        "No layer ran: all of the time is in code outside of layers. As a whole memory-bound by "
        "arithmetic intensity, at 200.0% of the attainable bandwidth."
    )
    assert shown(render_profile(function), 140).count("(unattributed)") == 1


def test_a_single_layer_is_the_model_itself():
    single = example_profile(
        kinds={"": "Linear"}, runs=(layer_calls([("", 1.0, 9.0)]),) * 4, parameters=()
    )
    assert why(single).startswith("The model (Linear): 80.0% of the time, memory-bound")


def test_a_compiled_model_has_the_work_of_the_layers_that_were_not_timed():
    compiled = example_profile(runs=(layer_calls([("", 1.0, 9.0)]),) * 4)
    assert why(compiled).startswith("The model (Net): 80.0% of the time, memory-bound")
    assert list(named_rows(part(compiled, "layers"))) == ["Net", "(unattributed)", "total"]


def test_what_only_moves_bytes_is_compared_with_the_bandwidth():
    found = head(moving_profile())
    assert found["work"] == "0 FLOP  400 B moved"
    # 400 bytes in 10 ms
    assert found["achieved"] == "40.0 kB/s  40.0% of the measured bandwidth of DRAM, 100 kB/s"
    assert "at 100.0% of the attainable bandwidth" in why(moving_profile())
    assert "nan" not in shown(render_profile(moving_profile()), 140)
    without = head(dataclasses.replace(moving_profile(), ceilings=None))
    assert without["achieved"] == "40.0 kB/s"


def test_a_model_that_is_called_like_its_kind_is_named_once():
    subtitle = profile_document(example_profile(name="Net")).subtitle
    assert subtitle == "core, cpu, inference, float32, batch 4"


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
@pytest.mark.parametrize("make", [example_profile, training_profile])
def test_no_line_is_longer_than_the_terminal(make, width):
    assert all(len(line) <= width for line in shown(render_profile(make()), width).splitlines())


def test_no_rows_are_refused():
    with pytest.raises(SettingError, match="top=0; at least one row"):
        profile_document(example_profile(), top=0)


def test_a_profile_shows_itself():
    profile = example_profile()
    assert shown(profile, 140) == shown(render_profile(profile), 140)


# ---------------------------------------------------------------- the tables


def test_amdahls_table_has_the_slowest_first_and_its_limit():
    ((titles, first, *_),) = tables(part(example_profile(), "faster"))
    assert titles == ["layer", "share", "2x", "4x", "10x", "inf", "bound", "attained"]
    assert first == [
        *("blocks.*.fc (2x) Linear", "40.0%"),
        *("1.25x", "1.43x", "1.56x", "1.67x", "memory", "200.0%"),
    ]


def test_what_has_no_flops_is_memory_bound_with_its_share_of_the_bandwidth():
    (_, first, *_) = tables(part(moving_profile(), "faster"))[0]
    assert first[-2:] == ["memory", "100.0%"]


@pytest.mark.parametrize(("anchor", "count"), [("faster", 4), ("operations", 3), ("caches", 3)])
def test_top_limits_the_rows_and_the_others_are_folded_away(anchor, count):
    found = part(example_profile(), anchor, top=1)
    (rest,) = [each for each in found.blocks if isinstance(each, Folded)]
    assert rest.title.startswith(f"{count - 1} more")
    assert len(rest.blocks[0].rows) == count - 1
    assert not any(isinstance(x, Folded) for x in part(example_profile(), anchor).blocks)


def test_operations_are_grouped_by_kind():
    ((titles, first, *_, last),) = tables(part(example_profile(), "operations"))
    assert titles == ["operation", "family", "calls", "share", "time", "MACs", "bytes"]
    assert first == ["linear", "contraction", "3", "66.7%", "6.00 ms", "2.50k", "1.17 KiB"]
    assert last[:2] == ["odd", "not counted"]


def test_operations_of_training_have_a_phase():
    ((titles, first, *_),) = tables(part(training_profile(), "operations"))
    assert titles[2] == "phase"
    assert first[:3] == ["linear", "contraction", "forward"]


def test_of_very_many_kinds_the_rest_is_counted():
    base = example_profile()
    many = tuple(operation(f"kind{n}", "head", n / 1e3, 0.001) for n in range(203))
    profile = dataclasses.replace(
        base, recording=dataclasses.replace(base.recording, operations=many)
    )
    found = part(profile, "operations")
    assert lines(found) == ["3 more kinds are only in the raw values."]
    assert len(named_rows(found)) == 200


def test_memory_shows_the_peak_and_the_course():
    found = named_rows(part(example_profile(), "memory"))
    assert found["parameters"]["bytes"] == "1.02 KiB"
    assert found["parameters"]["share"] == "61.9%"
    assert found["total"]["lowest"] == "1.17 KiB"
    table = next(x for x in part(example_profile(), "memory").blocks if hasattr(x, "rows"))
    (total,) = [row for row in table.filled()[1] if row.tone == "total"]
    assert max(total.cells[3].trend) == 1680


def test_the_level_that_holds_a_call_is_marked():
    found = named_rows(part(example_profile(), "caches"))
    assert list(found["DRAM"].values()) == [
        *("DRAM", "the rest", "100 kB/s", "10 FLOP/B", "<- a call touches 1.64 KiB")
    ]
    assert found["L1"][""] == ""


def test_the_slowest_layers_are_placed_in_the_caches():
    found = named_rows(part(example_profile(), "caches"))["blocks.*.fc (2x) Linear"]
    assert list(found.values())[1:] == ["400 B", "L1", "1.00 MB/s", "200 kB/s"]
    assert "caches" not in anchors(profile_document(example_profile(ceilings=None)))


def test_counters_show_what_was_counted_and_why_the_rest_was_not():
    counters = Counters(
        values={"cycles": 4000.0, "instructions": 10_000.0},
        unavailable=dict.fromkeys(("cache-misses", "LLC-loads"), "the processor does not offer it"),
        calls=2,
    )
    found = part(example_profile(counters=counters), "counters")
    assert tables(found) == [
        [["event", "per call"], ["cycles", "2.00k"], ["instructions", "5.00k"]]
    ]
    assert lines(found) == [
        "Not available: cache-misses, LLC-loads: the processor does not offer it.",
        "2.50 instructions per cycle",
    ]


def test_latency_has_its_percentiles():
    found = named_rows(part(example_profile(), "latency"))["n=4"]
    assert found["min"] == "9.80 ms"
    assert found["median"] == "10.0 ms"
    assert found["max"] == "10.2 ms"
    assert found["outliers"] == "2"
    assert (
        "its 88% interval, 9.80 ms to 10.2 ms. Stable:" in part(example_profile(), "latency").about
    )
    means = Samples("latency", (0.01, 0.011, 0.012, 0.011), loops=10)
    assert "the mean of 10 calls" in part(example_profile(latency=means), "latency").about


def test_a_model_that_does_nothing_has_tables_that_say_so():
    profile = without_operations(example_profile())
    for anchor, words in {
        "faster": "No layer ran.",
        "operations": "No operation was recorded.",
        "memory": "No buffer was seen.",
        "caches": "No layer moved bytes that were counted.",
    }.items():
        assert lines(part(profile, anchor)) == [words]


# ---------------------------------------------------------------- caveats


def test_what_was_not_counted_is_named_with_its_time_and_place():
    found = lines(part(example_profile(), "caveats"))
    assert "Not counted in any total, 11.1% of the time of operations:" in found
    assert found[-1] == "odd: 1 call, 1.00 ms, in head"


def test_many_places_are_counted_instead_of_listed():
    profile = example_profile()
    odd = profile.operations[-1]
    spread = [dataclasses.replace(odd, path=f"layers.{index}") for index in range(5)]
    recording = dataclasses.replace(profile.recording, operations=tuple(spread))
    profile = dataclasses.replace(profile, recording=recording)
    assert lines(part(profile, "caveats"))[-1].endswith("and 2 more")


@pytest.mark.parametrize(
    ("watched", "words"), [(0.011, "layers: 10.0%"), (0.0099, "not measurable (-1.0%)")]
)
def test_the_overhead_of_timing_is_stated(watched, words):
    base = example_profile()
    profile = dataclasses.replace(
        base, watched=dataclasses.replace(base.watched, values=(watched,) * 4)
    )
    assert words in lines(part(profile, "caveats"))[0]


def test_doubts_are_the_notes():
    ceilings = dataclasses.replace(example_profile().ceilings, disturbances=("another ran",))
    profile = example_profile(notes=("not deterministic: 'drop'",), ceilings=ceilings)
    assert list(profile_document(profile).notes) == [
        "not deterministic: 'drop'",
        "while the ceilings were measured, another ran",
    ]


# ---------------------------------------------------------------- side by side


def render_profiles(profiles):
    return render(profiles_document(profiles))


def test_profiles_stand_side_by_side():
    other = example_profile(name="other", latency=Samples("latency", (0.005,) * 4))
    ((titles, first, second),) = tables(profiles_document([example_profile(), other]))
    assert titles == [
        *("model", "latency", "95% interval", "examples/s", "params", "MACs", "FLOP/B"),
        *("peak mem", "bottleneck", "bound"),
    ]
    assert first[:2] == ["example", "10.0 ms"]
    assert second[:2] == ["other", "5.00 ms"]
    assert first[-2:] == ["40.0% blocks.*.fc", "memory"]


def test_side_by_side_fits_a_narrow_terminal():
    lines = shown(render_profiles([example_profile(), training_profile()]), 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert {"model", "latency", "MACs", "bottleneck", "bound"} <= set(lines[0].split())


def test_notes_of_each_are_repeated():
    noisy = example_profile(name="noisy", notes=("the machine is busy",))
    assert "- noisy: the machine is busy" in shown(render_profiles([example_profile(), noisy]), 140)


def test_nothing_side_by_side_is_refused():
    with pytest.raises(SettingError, match="no profiles to show"):
        profiles_document([])


def test_a_notebook_gets_escaped_html():
    profile = example_profile(name="<script>")
    html = profile._repr_html_()
    assert html.startswith("<pre")
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
