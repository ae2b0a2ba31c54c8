import dataclasses

from document_reading import page_section
from example_profiles import empty_profile, example_profile
from html_reading import Reading
from strange_profiles import hostile_profile

from tinytorch.models.records import Allocation
from tinytorch.reporting.html.timeline import MOST_MOMENTS
from tinytorch.reporting.quantities import bytes_text


def section(profile):
    return page_section(profile, "memory")


def with_allocations(*allocations):
    base = example_profile()
    return dataclasses.replace(
        base, recording=dataclasses.replace(base.recording, allocations=allocations)
    )


def test_the_table_is_what_was_alive_at_the_peak():
    rows = Reading(section(example_profile()).body).rows()
    assert [row[:3] for row in rows[:4]] == [
        ["at the peak", "bytes", "share"],
        ["parameters", "1.02 KiB", "61.9%"],
        ["activations", "480 B", "28.6%"],
        ["inputs", "160 B", "9.5%"],
    ]


def test_the_layers_that_hold_it_are_named():
    rows = Reading(section(example_profile()).body).rows()
    assert ["blocks.0.fc Linear", "1.17 KiB", "71.4%"] in rows
    assert ["outside of the model", "160 B", "9.5%"] in rows


def test_the_peak_is_marked_in_both_pictures():
    body = Reading(section(example_profile()).body)
    assert len(body.all("line", class_="peak")) == 2
    assert [text for text in body.texts("text") if "peak" in text] == [
        "peak 1.64 KiB",
        "peak 480 B",
    ]


def test_what_lasts_is_at_the_bottom_and_every_category_has_a_colour():
    body = Reading(section(example_profile()).body)
    names = body.texts("li")
    assert names == ["parameters", "inputs", "activations", "activations"]
    colours = [given["class"] for given in body.all("li")][:3]
    assert len(set(colours)) == 3
    areas = [given["class"].split()[-1] for given in body.all("svg", class_="layer")]
    assert areas == [*colours, colours[-1]]  # all, and then what the call made


def test_what_the_call_makes_needs_no_second_picture_when_it_is_most():
    profile = with_allocations(
        Allocation(10, "parameters", "", "resident", 0.0, None),
        Allocation(1000, "activations", "", "forward", 0.001, 0.002),
        Allocation(500, "gradients", "", "backward", 0.002, None),
    )
    body = Reading(section(profile).body)
    assert len(body.all("line", class_="peak")) == 1
    assert body.texts("li") == ["parameters", "gradients", "activations"]


def test_of_many_changes_the_highest_are_drawn_and_it_says_so():
    count = 3 * MOST_MOMENTS
    blips = [
        Allocation(100 + place, "activations", "", "forward", 1e-5 * place, 1e-5 * (place + 0.5))
        for place in range(1, count)
    ]
    shown = section(with_allocations(*blips))
    assert f"Of {2 * count - 2:,} changes" in shown.body
    assert f"peak {bytes_text(100 + count - 1)}" in shown.body  # the highest is among them
    (path,) = Reading(shown.body).all("path")
    assert path["d"].count("V") <= 2 * MOST_MOMENTS + 2


def test_without_buffers_it_says_so():
    assert "No buffer was seen" in section(empty_profile()).body


def test_one_moment_is_enough():
    only = with_allocations(Allocation(64, "parameters", "", "resident", 0.0, None))
    assert "peak 64 B" in section(only).body


def test_scratch_memory_is_told_where_it_is_known():
    about = section(example_profile(traced_peak_bytes=2048)).about
    assert "Python saw 2 KiB allocated" in about


def test_hostile_names_are_text():
    assert "<script>" not in section(hostile_profile()).body
