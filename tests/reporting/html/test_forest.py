import math

import pytest
from example_pages import HOSTILE
from html_reading import Reading

from tinytorch.reporting.document import MarginPlot
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow
from tinytorch.reporting.html.forest import DOT_COLUMNS, forest_picture, margin_picture


def picture(*rows, floor=0.005, band=0.01, **changes):
    return Reading(forest_picture(ForestPlot(rows, floor, band, **changes)))


def test_every_row_has_its_numbers_and_its_tone():
    shown = picture(
        ForestRow("int8", 1.31, 1.28, 1.35, tone="good"),
        ForestRow("pruned", 0.8, 0.7, 0.9, "slower  0.80x", "bad"),
    )
    assert shown.texts("span", class_="name") == ["int8", "pruned"]
    assert shown.texts("span", class_="numbers") == ["1.31x (1.28x to 1.35x)", "slower", "0.80x"]
    assert len(shown.all("g", class_="good")) == len(shown.all("g", class_="bad")) == 1


def percent(place):
    return float(place.removesuffix("%"))


def test_the_value_lies_on_its_interval_and_right_of_one_is_faster():
    shown = picture(ForestRow("a", 1.3, 1.2, 1.4))
    (circle,) = shown.all("circle")
    line = shown.all("line", class_="interval")[0]
    one = next(each for each in shown.all("line", class_="axis") if each["x1"] == each["x2"])
    places = [one["x1"], line["x1"], circle["cx"], line["x2"]]
    assert [percent(each) for each in places] == sorted(percent(each) for each in places)
    assert percent(line["x1"]) > percent(one["x1"])


def test_an_end_that_is_not_known_is_an_arrow():
    known = picture(ForestRow("a", 1.3, 1.2, 1.4))
    open_ended = picture(ForestRow("a", 1.3, 1.2, math.inf))
    assert known.all("path") == []
    assert len(open_ended.all("path", class_="interval")) == 1


def test_every_round_is_a_dot_inside_of_the_picture():
    rounds = [1 + 0.01 * index for index in range(40)] + [50.0]
    shown = picture(ForestRow("a", 1.2, 1.1, 1.3), points=rounds)
    (dots,) = shown.all("path", class_="series-1")
    places = [step.partition(" ")[0] for step in dots["d"].split("M")[1:]]
    assert len(places) == 41
    assert all(0 <= float(place) <= DOT_COLUMNS for place in places)
    assert "41 rounds" in shown.texts("span", class_="name")


@pytest.mark.parametrize("ratio", [1.0, 1.001, 0.01, 500.0])
def test_one_is_always_labelled(ratio):
    shown = picture(ForestRow("a", ratio, ratio * 0.999, ratio * 1.001))
    assert "1x" in shown.texts("text")


def test_names_are_text():
    html = forest_picture(ForestPlot([ForestRow(HOSTILE, 1.0, 0.9, 1.1, HOSTILE)], 0.005, 0.01))
    assert "<script" not in html


def test_a_floor_of_zero_is_not_drawn_and_sides_have_names():
    shown = picture(ForestRow("a", 1.3, 1.2, 1.4), floor=0.0, band=0.02, sides=("worse", "better"))
    assert {"← worse", "better →"} <= set(shown.texts("text"))
    assert shown.texts("li", class_="band") == ["equivalence band 2%"]
    assert shown.texts("li", class_="dashes") == shown.all("line", class_="faint") == []


def test_band_and_floor_are_drawn_and_explained_once():
    shown = picture(*(ForestRow(name, 1.3, 1.2, 1.4) for name in "abc"), points=[1.1, 1.2])
    assert len(shown.all("rect", class_="faint")) == 1
    assert len(shown.all("line", class_="faint")) == 2  # both ends of the minimum effect
    legend = [*shown.texts("li", class_="band"), *shown.texts("li", class_="dashes")]
    assert legend == ["equivalence band 1%", "minimum effect 0.5%"]


def test_a_difference_lies_between_its_ends_and_right_of_the_margin():
    shown = Reading(margin_picture(MarginPlot(0.1, -0.3, 0.5, -1.0, unit="points", tone="good")))
    (circle,) = shown.all("circle", class_="good")
    interval = shown.all("line", class_="interval")[0]
    (margin,) = shown.all("line", class_="bad")
    places = [margin["x1"], interval["x1"], circle["cx"], interval["x2"]]
    assert [percent(each) for each in places] == sorted(map(percent, places))
    assert {"← worse", "better →", "margin"} <= set(shown.texts("text"))
    assert any(each.endswith(" points") for each in shown.texts("text"))


def test_an_unknown_end_of_a_difference_is_the_edge():
    shown = Reading(margin_picture(MarginPlot(0.1, -math.inf, 0.5, -1.0)))
    assert percent(shown.all("line", class_="interval")[0]["x1"]) == 0
