import pytest
from example_profiles import empty_profile, example_profile, training_profile
from html_reading import Reading
from strange_profiles import flat_profile, hostile_profile, wide_profile

from tinytorch.profiling.layers import layer_rows
from tinytorch.reporting.html.page import section_from
from tinytorch.reporting.layers import MOST_ROWS
from tinytorch.reporting.layers import layers_section as document_section


def layers_section(profile):
    return section_from(document_section(profile))


def rows(profile):
    """Give the rows of the table by what stands first in them, as a mapping from title to cell."""
    titles, *found = Reading(layers_section(profile).body).rows()
    return {cells[0]: dict(zip(titles, cells, strict=True)) for cells in found}


def test_rows_say_what_the_terminal_says():
    found = rows(example_profile())
    assert found["blocks.0 ... 1 (2x) Block"] == {
        "layer": "blocks.0 ... 1 (2x) Block",
        "share": "60.0%",
        "time": "6.00 ms",
        "self": "",
        "calls": "2",
        "MACs": "2.00k",
        "FLOP/s": "680k",
        "bytes": "1.56 KiB",
        "FLOP/B": "2.55",
        "bound": "memory",
        "of peak": "68.0%",
        "params": "200",
        "activ.": "480 B",
        "peak mem": "90.5%",
    }
    assert found["head Linear"]["self"] == "2.00 ms"
    assert found["total"]["self"] == "10.0 ms"


def test_own_times_add_up_to_the_call():
    profile = example_profile()
    own = [row.own_s for row in layer_rows(profile)]
    written = [cells["self"] for cells in rows(profile).values() if cells["self"]]
    assert sum(own) == pytest.approx(profile.total_s)
    assert len(written) == sum(time > 0 for time in own) + 1  # and the total


def test_repeated_blocks_open_into_their_members():
    body = Reading(layers_section(example_profile()).body)
    parents = {given["data-parent"] for given in body.all("tr") if "data-parent" in given}
    assert {"Net", "blocks.*", "blocks.*.fc", "blocks.*, one by one"} <= parents
    found = rows(example_profile())
    assert found["blocks.1.fc"]["time"] == "2.00 ms"
    assert found["blocks.1.fc"]["self"] == ""  # it is in the row above already
    assert found["blocks.1"]["time"] == "3.00 ms"


def test_every_parent_stands_before_its_children():
    seen = set()
    for given in Reading(layers_section(training_profile()).body).all("tr"):
        assert given.get("data-parent") in {None, *seen}
        seen.add(given.get("data-path"))


def test_a_row_is_named_like_no_other():
    names = [f"{place}" for place in range(4)] + ["other"] + [f"{place}" for place in range(5, 9)]
    body = Reading(layers_section(flat_profile(names)).body)
    paths = [given["data-path"] for given in body.all("tr") if "data-path" in given]
    assert len(paths) == len(set(paths))


def test_training_has_a_column_and_rows_of_its_own():
    found = rows(training_profile())
    assert found["head Linear"]["backward"] == "2.00 ms"
    assert found["<backward>"]["share"] == "30.0%"
    assert "backward" not in rows(example_profile())["head Linear"]


def test_the_bottleneck_is_marked():
    body = Reading(layers_section(example_profile()).body)
    (hot,) = body.texts("tr", class_="hot")
    assert hot.startswith("fc Linear")


def test_without_ceilings_no_bound_is_claimed():
    section = layers_section(example_profile(ceilings=None))
    assert "bound" not in Reading(section.body).texts("button")
    assert "the ceilings of this machine were not measured" in section.about


def test_without_layers_there_is_still_the_call():
    assert rows(empty_profile()).keys() == {"(unattributed)", "total"}


def test_of_thousands_of_layers_the_slowest_are_shown_and_the_rest_is_counted():
    names = [f"layer{place}_{'x' * (place % 7)}" for place in range(MOST_ROWS + 100)]
    section = layers_section(flat_profile(names))
    # With the model, what it does itself, and what is unattributed.
    assert f"103 of {MOST_ROWS + 103} rows are left out" in section.body


def test_members_of_very_many_blocks_have_no_rows():
    profile = flat_profile([str(place) for place in range(500)])
    section = layers_section(
        example_profile(
            kinds=profile.kinds,
            runs=profile.runs,
            watched=profile.watched,
            recording=profile.recording,
            parameters=tuple(
                type(example_profile().parameters[0])(f"{place}.w", str(place), 4, 16, True)
                for place in range(500)
            ),
        )
    )
    assert "The 500 layers of repeated blocks have no rows of their own here" in section.body


def test_hostile_names_are_text():
    assert "<script>" not in layers_section(hostile_profile()).body
    assert any(name.startswith("<script>alert(1)</script>") for name in rows(hostile_profile()))


def test_two_thousand_layers_work():
    assert len(rows(wide_profile())) == MOST_ROWS + 1
