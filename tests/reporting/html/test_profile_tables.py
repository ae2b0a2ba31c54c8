import dataclasses

from example_profiles import empty_profile, example_profile, operation, training_profile
from html_reading import Reading
from strange_profiles import hostile_profile

from tinytorch.measure.counters import Counters
from tinytorch.profiling.profile import find_facts
from tinytorch.reporting.html.profile_page import (
    TOP,
    amdahl_section,
    cache_section,
    caveats_section,
    counter_section,
    operations_section,
)


def rows(section):
    return Reading(section.body).rows()


def caveats(profile):
    return Reading(caveats_section(profile, find_facts(profile)).body).texts("li")


def test_amdahl_says_what_a_faster_part_would_bring():
    titles, first, *_ = rows(amdahl_section(example_profile()))
    assert titles == ["if it were faster", "share", "2x", "4x", "10x", "inf", "bound", "attained"]
    assert first == [
        "blocks.*.fc (2x) Linear",
        "40.0%",
        "1.25x",
        "1.43x",
        "1.56x",
        "1.67x",
        "memory",
        "200.0%",
    ]
    assert "No layer ran" in amdahl_section(empty_profile()).body


def test_operations_are_listed_slowest_first():
    titles, first, *_ = rows(operations_section(example_profile()))
    assert titles == ["operation", "family", "calls", "share", "time", "MACs", "bytes"]
    assert first[:5] == ["linear", "contraction", "3", "66.7%", "6.00 ms"]
    assert "phase" in rows(operations_section(training_profile()))[0]
    assert "No operation was seen" in operations_section(empty_profile()).body


def test_rare_operations_stand_behind_a_line():
    base = example_profile()
    many = tuple(operation(f"kind{n}", "head", n / 1e3, 0.001) for n in range(TOP + 3))
    profile = dataclasses.replace(
        base, recording=dataclasses.replace(base.recording, operations=many)
    )
    assert Reading(operations_section(profile).body).texts("summary") == [
        "3 more kinds of operations"
    ]


def test_caches_say_where_a_call_has_its_place():
    found = rows(cache_section(example_profile()))
    assert found[1] == ["L1", "1.46 KiB", "1.00 MB/s", "1 FLOP/B", ""]
    assert found[2] == ["DRAM", "the rest", "100 kB/s", "10 FLOP/B", "a call touches 1.64 KiB"]
    assert ["blocks.*.fc (2x) Linear", "400 B", "L1", "1.00 MB/s", "200 kB/s"] in found
    assert cache_section(example_profile(ceilings=None)) is None


def test_counters_have_rows_and_reasons():
    counters = Counters({"cycles": 100}, {"misses": "not allowed"}, 10)
    section = counter_section(counters)
    assert ["cycles", "10"] in rows(section)
    assert "Not available: misses: not allowed." in section.body


def test_caveats_say_what_was_not_counted_and_what_speaks_against_the_numbers():
    profile = example_profile(notes=("the machine was busy",))
    found = caveats(profile)
    assert found[0].startswith("Watching the layers cost <0.1%: their times")
    assert any("odd: 1 call, 1.00 ms, in head" in text for text in found)
    assert found[-1] == "the machine was busy"


def test_hostile_names_are_text():
    profile = hostile_profile()
    for section in (
        amdahl_section(profile),
        operations_section(profile),
        cache_section(profile),
        caveats_section(profile, find_facts(profile)),
    ):
        assert "<script>" not in section.body
