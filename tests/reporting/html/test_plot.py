import pytest
from example_pages import HOSTILE
from html_reading import Reading
from hypothesis import example, given
from hypothesis import strategies as st

from tinytorch.reporting.html.plot import (
    LEAST_FOR_WORDS,
    STRETCHED,
    Scale,
    across,
    across_axis,
    bytes_axis,
    cell,
    dots,
    legend,
    plot,
    stretched,
    stretched_steps,
    tick_text,
    upright_axis,
    upright_line,
    words,
)
from tinytorch.reporting.quantities import count_text


@pytest.mark.parametrize(("place", "text"), [(0, "0%"), (12.34567, "12.35%"), (100, "100%")])
def test_places_are_percentages(place, text):
    assert across(place) == text


def test_a_picture_is_as_wide_as_the_page_and_has_a_name():
    reading = Reading(plot(90, label="A picture"))
    (svg,) = reading.all("svg", class_="fluid")
    assert "viewBox" not in svg
    assert svg["style"] == "height:90px"
    assert reading.texts("title") == ["A picture"]


def test_a_box_has_its_name_where_there_is_room():
    settings = {"name": "head", "title": "head: 1 ms", "class_": "series-1"}
    wide = Reading(cell(10, LEAST_FOR_WORDS, 22, 21, **settings))
    narrow = Reading(cell(10, LEAST_FOR_WORDS / 2, 22, 21, **settings))
    assert wide.texts("text") == ["head"]
    assert narrow.texts("text") == []
    assert narrow.texts("title") == ["head: 1 ms"]


def test_names_are_escaped():
    drawn = cell(0, 50, 0, 20, name=HOSTILE, title=HOSTILE, class_="x")
    assert HOSTILE not in drawn + words(1, 2, HOSTILE) + legend([("x", HOSTILE)])


def test_round_values_have_no_idle_digits():
    assert tick_text(count_text)(1e10) == "10G"
    assert tick_text(count_text)(1.5e6) == "1.5M"
    assert tick_text(lambda value: "none")(1.0) == "none"


def test_axes_write_their_values():
    assert Reading("".join(upright_axis(Scale(0, 10, 100, 0), str, most=3))).texts("text") == [
        "0",
        "5",
        "10",
    ]
    lines = Reading("".join(across_axis(Scale(0, 10, 0, 100), 80, str, most=3)))
    assert [given["x1"] for given in lines.all("line")] == ["0%", "50%", "100%"]
    assert [given["text-anchor"] for given in lines.all("text")] == ["start", "middle", "end"]


@given(most=st.floats(1, 1e15))
@example(most=1000.0)
def test_sizes_are_marked_at_round_numbers_of_their_unit(most):
    texts = Reading("".join(bytes_axis(most, 100))).texts("text")
    assert texts[0] == "0 B"
    assert len(texts) <= 6
    assert all(len(text.split()[0]) <= 4 for text in texts)


def test_steps_keep_their_level_until_the_next():
    drawn = stretched_steps([0, 20, 50], [90, 90, 90], [40, 40, 10], 90, class_="layer series-1")
    (path,) = Reading(drawn).all("path")
    assert path["d"] == "M0 90V40H500V10H1000V90H0Z"


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 90)), min_size=1, max_size=20))
def test_a_stretched_area_ends_where_it_began(points):
    places = [0.0, *sorted(place for place, _ in points)][: len(points)]
    upper = [level for _, level in points]
    drawn = stretched_steps(places, [90.0] * len(points), upper, 90, class_="layer")
    (path,) = Reading(drawn).all("path")
    assert path["d"].startswith("M0 90")
    assert path["d"].endswith("Z")
    assert f"H{STRETCHED}" in path["d"]


def test_dots_stand_where_they_belong_in_a_stretched_frame():
    drawn = Reading(stretched(dots([(0, 5), (STRETCHED, 9)], class_="a", title="b"), 40, y=3))
    (frame,) = drawn.all("svg")
    assert frame["viewbox"] == f"0 0 {STRETCHED} 40"
    assert frame["preserveaspectratio"] == "none"
    assert frame["y"] == "3"
    assert drawn.all("path")[0]["d"] == f"M0 5h0M{STRETCHED} 9h0"


def test_an_upright_line_has_one_place_across():
    (line,) = Reading(upright_line(12.5, 0, 40, class_="grid")).all("line")
    assert line == {"x1": "12.5%", "x2": "12.5%", "y1": "0", "y2": "40", "class": "grid"}
