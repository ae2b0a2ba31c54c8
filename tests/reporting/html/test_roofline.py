from example_profiles import empty_profile, example_profile, moving_profile
from html_reading import Reading
from strange_profiles import hostile_profile, wide_profile

from tinytorch.reporting.html.page import section_from
from tinytorch.reporting.profile import LABELLED, MOST_POINTS
from tinytorch.reporting.profile import roofline_section as document_section
from tinytorch.reporting.roofline import Roofline


def roofline_section(profile):
    return section_from(document_section(profile))


def points(profile):
    (chart,) = [x for x in document_section(profile).blocks if isinstance(x, Roofline)]
    return chart.points


def test_every_group_is_a_dot_that_says_where_it_is():
    body = Reading(roofline_section(example_profile()).body)
    assert len(body.all("circle")) == len(points(example_profile())) == 3
    assert any(
        text.startswith("blocks.*.fc (2x) Linear: 40.0% of the time, 5 FLOP/B, 1.00 MFLOP/s")
        for text in body.texts("title")
    )


def test_slower_layers_have_larger_dots():
    body = Reading(roofline_section(example_profile()).body)
    sizes = [float(given["r"]) for given in body.all("circle")]
    assert sizes == sorted(sizes)  # the slowest is drawn last, on top


def test_ceilings_are_lines_and_only_the_home_is_whole():
    body = Reading(roofline_section(example_profile()).body)
    assert len(body.all("line", class_="roof")) == 2  # its slope and the roof behind it
    assert len(body.all("line", class_="dotted")) == 2
    assert "DRAM 100 kB/s" in body.texts("text")
    assert "float32 1.00 MFLOP/s" in body.texts("text")


def test_everything_lies_inside_of_the_picture():
    body = Reading(roofline_section(example_profile()).body)
    for given in body.all("circle"):
        assert 0 < float(given["cx"].removesuffix("%")) < 100
        assert 0 < float(given["cy"]) < 300


def test_letters_in_the_picture_are_those_of_the_table():
    body = Reading(roofline_section(example_profile()).body)
    letters = ", ".join(body.texts("text", class_="letter")).split(", ")
    rows = [cells[0] for cells in body.rows()[1:]]
    assert sorted(letters) == [row[0] for row in rows]


def test_a_letter_for_each_of_the_slowest_only():
    section = roofline_section(wide_profile(40))
    body = Reading(section.body)
    assert len(body.rows()) == LABELLED + 1
    assert len(body.all("circle", class_="small")) == 40 + 1 - LABELLED - 1
    assert f"{len(body.all('circle', class_='small'))} faster groups" in section.body


def test_thousands_of_groups_are_cut():
    body = Reading(roofline_section(wide_profile(MOST_POINTS + 50)).body)
    assert len(body.all("circle")) <= MOST_POINTS


def test_it_explains_how_to_read_it():
    about = roofline_section(example_profile()).about
    assert "the bandwidth of DRAM, 100 kB/s, which holds the 1.64 KiB that a call touches" in about
    assert "10 FLOP per byte" in about
    assert "Dotted, left to right: L1 1.00 MB/s." in about
    assert "Above the line" in about


def test_it_says_why_there_is_none():
    assert "Not measured: the ceilings" in roofline_section(example_profile(ceilings=None)).body
    assert "No layer with counted operations" in roofline_section(empty_profile()).body
    assert "No layer with counted operations" in roofline_section(moving_profile()).body


def test_hostile_names_are_text():
    assert "<script>" not in roofline_section(hostile_profile()).body
