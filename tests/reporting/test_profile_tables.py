import dataclasses

import pytest
from example_profiles import example_profile, moving_profile, training_profile
from terminal import shown

from tinytorch.measure.counters import Counters
from tinytorch.profiling.profile import find_facts
from tinytorch.reporting.profile_tables import (
    amdahl_table,
    cache_view,
    caveats,
    counter_table,
    memory_view,
    operation_table,
)


def without_operations(profile):
    recording = dataclasses.replace(profile.recording, operations=(), allocations=())
    return dataclasses.replace(profile, recording=recording, runs=((),) * 4, kinds={"": "f"})


def test_amdahls_table_has_the_slowest_first_and_its_limit():
    lines = shown(amdahl_table(example_profile(), 8)).splitlines()
    assert lines[0].split()[-7:] == ["share", "2x", "4x", "10x", "inf", "bound", "attained"]
    assert lines[1].split() == [
        *("blocks.*.fc", "(2x)", "Linear", "40.0%"),
        *("1.25x", "1.43x", "1.56x", "1.67x", "memory", "200.0%"),
    ]


def test_top_limits_the_rows():
    assert len(shown(amdahl_table(example_profile(), 2)).splitlines()) == 3
    assert len(shown(operation_table(example_profile(), 1)).splitlines()) == 2


def test_the_backward_pass_is_named_once():
    first = shown(amdahl_table(training_profile(), 1)).splitlines()[1]
    assert first.split()[:2] == ["<backward>", "30.0%"]


def test_operations_are_grouped_by_kind():
    lines = shown(operation_table(example_profile(), 8)).splitlines()
    assert lines[1].split()[:3] == ["linear", "contraction", "3"]
    assert "66.7%" in lines[1]
    assert "not counted" in lines[3]
    assert "phase" not in lines[0]


def test_operations_of_training_have_a_phase():
    lines = shown(operation_table(training_profile(), 8)).splitlines()
    assert lines[1].split()[:3] == ["linear", "contraction", "forward"]
    assert "phase" in lines[0]


def test_memory_shows_the_peak_and_the_course():
    profile = example_profile()
    text = shown(memory_view(profile, find_facts(profile)))
    assert text.splitlines()[1].split()[:4] == ["parameters", "1.02", "KiB", "███▊"]
    assert "over the call" in text
    assert "1.64 KiB" in text.splitlines()[-1]


def test_the_level_that_holds_a_call_is_marked():
    lines = shown(cache_view(example_profile(), 8)).splitlines()
    (marked,) = [line for line in lines if "<- a call touches 1.64 KiB" in line]
    assert marked.split()[:3] == ["DRAM", "the", "rest"]
    assert "10 FLOP/B" in marked


def test_the_slowest_layers_are_placed_in_the_caches():
    lines = shown(cache_view(example_profile(), 2)).splitlines()
    assert lines[-2].split()[:3] == ["blocks.*.fc", "(2x)", "Linear"]
    assert lines[-2].split()[3:] == ["400", "B", "L1", "1.00", "MB/s", "200", "kB/s"]


def test_without_ceilings_the_caches_are_not_known():
    assert "were not measured" in shown(cache_view(example_profile(ceilings=None), 8))


def test_what_was_not_counted_is_named_with_its_time_and_place():
    profile = example_profile()
    text = shown(caveats(profile, find_facts(profile)))
    assert "Not counted in any total, 11.1% of the time of operations" in text
    assert "odd: 1 call, 1.00 ms, in head" in text


def test_many_places_are_counted_instead_of_listed():
    profile = example_profile()
    odd = profile.operations[-1]
    spread = [dataclasses.replace(odd, path=f"layers.{index}") for index in range(5)]
    recording = dataclasses.replace(profile.recording, operations=tuple(spread))
    profile = dataclasses.replace(profile, recording=recording)
    assert "and 2 more" in shown(caveats(profile, find_facts(profile)))


def test_everything_counted_is_said():
    profile = example_profile()
    counted = dataclasses.replace(profile.recording, operations=profile.operations[:-1])
    profile = dataclasses.replace(profile, recording=counted)
    assert "Every operation that ran was counted." in shown(caveats(profile, find_facts(profile)))


@pytest.mark.parametrize(
    ("watched", "words"), [(0.011, "cost 10.0%"), (0.0099, "nothing that shows (-1.0%)")]
)
def test_the_cost_of_watching_is_stated(watched, words):
    base = example_profile()
    profile = dataclasses.replace(
        base, watched=dataclasses.replace(base.watched, values=(watched,) * 4)
    )
    assert words in shown(caveats(profile, find_facts(profile)))


def test_doubts_are_repeated():
    ceilings = dataclasses.replace(example_profile().ceilings, disturbances=("somebody else ran",))
    profile = example_profile(notes=("not deterministic: 'drop'",), ceilings=ceilings)
    text = shown(caveats(profile, find_facts(profile)))
    assert "- not deterministic: 'drop'" in text
    assert "While the ceilings were measured, somebody else ran." in text


def test_a_model_that_does_nothing_has_tables_that_say_so():
    profile = without_operations(example_profile())
    facts = find_facts(profile)
    assert "no layer ran" in shown(amdahl_table(profile, 8))
    assert "no operation was seen" in shown(operation_table(profile, 8))
    assert "no buffer was seen" in shown(memory_view(profile, facts))
    assert "no layer moved bytes" in shown(cache_view(profile, 8))
    text = shown(caveats(profile, facts))
    assert "Every operation" not in text


def test_what_has_no_flops_is_memory_bound_with_its_share_of_the_bandwidth():
    line = shown(amdahl_table(moving_profile(), 8)).splitlines()[1]
    assert line.split()[-2:] == ["memory", "100.0%"]
    assert "nan" not in shown(cache_view(moving_profile(), 8))


def test_counters_show_what_was_counted_and_why_the_rest_was_not():
    counters = Counters(
        values={"cycles": 4000.0, "instructions": 10_000.0},
        unavailable=dict.fromkeys(("cache-misses", "LLC-loads"), "the processor does not offer it"),
        calls=2,
    )
    lines = shown(counter_table(counters)).splitlines()
    assert lines[1].split() == ["cycles", "2.00k"]
    assert lines[2].split() == ["instructions", "5.00k"]
    assert lines[3] == "Not available: cache-misses, LLC-loads: the processor does not offer it."
    assert lines[4] == "2.50 instructions per cycle"
