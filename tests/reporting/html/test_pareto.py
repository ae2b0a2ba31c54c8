import math
from dataclasses import replace
from itertools import pairwise

import pytest
from example_pages import HOSTILE
from html_reading import Reading
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.document import ParetoPlot, ParetoPoint
from tinytorch.reporting.html.pareto import HEIGHT, pareto_picture

counted = Estimate.counted


def plot(*points, **changes):
    return pareto_picture(ParetoPlot(points, ("time", "memory"), ("s", "B"), **changes))


def point(name, x, y, *, front=True, **changes):
    return ParetoPoint(name, counted(x), counted(y), front, **changes)


def percent(place):
    return float(place.removesuffix("%"))


def steps(html):
    """Give the lines of the front as (x1, y1, x2, y2)."""
    return [
        (percent(each["x1"]), float(each["y1"]), percent(each["x2"]), float(each["y2"]))
        for each in Reading(html).all("line", class_="front")
    ]


def centres(html):
    return {(percent(each["cx"]), float(each["cy"])) for each in Reading(html).all("circle")}


def test_every_candidate_is_a_point_with_its_numbers():
    shown = Reading(plot(point("a", 0.001, 2048), point("b", 0.002, 1024, front=False)))
    assert len(shown.all("circle")) == 2
    titles = shown.texts("title")
    assert "a: 1.00 ms; 2 KiB" in titles
    assert shown.texts("text", class_="letter") == ["A", "B"]
    assert shown.texts("li") == ["A a", "B b"]


def test_letters_that_the_document_gives_are_explained_there():
    shown = Reading(plot(point("a", 1, 1, letter="K"), point("b", 2, 2, letter="L")))
    assert shown.texts("text", class_="letter") == ["K", "L"]
    assert shown.all("li") == []


def test_intervals_are_drawn_and_written():
    ends = Estimate(0.002, 0.001, 0.003), Estimate(2048, 1024, math.inf)
    wide = ParetoPoint("a", *ends, is_on_front=True)
    shown = Reading(plot(wide, point("b", 0.001, 100)))
    assert len(shown.all("line", class_="interval")) == 2
    beaten = replace(wide, is_on_front=False)
    assert Reading(plot(beaten, point("b", 0.001, 100))).all("line", class_="interval") == []
    assert "a: 2.00 ms (1.00 ms to 3.00 ms); 2 KiB (1 KiB to -)" in shown.texts("title")


@pytest.mark.parametrize(
    ("lower", "arrows"),
    [
        ((True, True), ("time  ← better", "memory  ↓ better")),
        ((False, False), ("time  better →", "memory  ↑ better")),
    ],
)
def test_the_axes_say_where_better_is(lower, arrows):
    texts = Reading(plot(point("a", 1, 1), lower_is_better=lower)).texts("text")
    assert set(arrows) <= set(texts)


def test_the_front_goes_in_steps_that_leave_the_beaten_behind():
    html = plot(point("fast", 1.0, 4000), point("mid", 2.0, 2000), point("small", 4.0, 1000))
    lines = steps(html)
    assert len(lines) == 4
    assert all(x1 <= x2 and y1 <= y2 for x1, y1, x2, y2 in lines)  # to the right, and downwards
    assert all(before[2:] == after[:2] for before, after in pairwise(lines))
    assert {lines[0][:2], lines[1][2:], lines[3][2:]} == centres(html)


def test_what_another_objective_keeps_on_the_front_is_not_on_the_line():
    html = plot(point("a", 1.0, 1000), point("b", 2.0, 500), point("accurate", 3.0, 3000))
    assert len(steps(html)) == 2
    assert len(centres(html)) == 3


def test_those_who_are_beaten_are_hollow():
    shown = Reading(plot(point("a", 1, 1), point("b", 2, 2, front=False)))
    styles = [each.get("style", "") for each in shown.all("g", class_="mark")]
    assert sorted("var(--card)" in style for style in styles) == [False, True]


def test_without_candidates_it_says_so():
    assert "nothing to draw" in plot()


def test_points_in_one_place_share_a_label():
    shown = Reading(plot(point("a", 1, 1), point("b", 2, 2), point("c", 1, 1)))
    assert shown.texts("text", class_="letter") == ["A, C", "B"]


def test_names_are_text():
    html = pareto_picture(ParetoPlot([point(HOSTILE, 1, 1)], (HOSTILE, HOSTILE)))
    assert "<script" not in html


numbers = st.floats(-1e12, 1e12)
ordered = st.tuples(st.just(-math.inf) | numbers, numbers, st.just(math.inf) | numbers).map(sorted)
values = ordered.map(lambda ends: Estimate(ends[1], ends[0], ends[2]))


@given(st.lists(st.builds(ParetoPoint, st.text(max_size=40), values, values, st.booleans())))
def test_any_numbers_stay_inside_of_the_picture(points):
    html = plot(*points)
    for x, y in centres(html):
        assert 0 <= x <= 100
        assert 0 <= y <= HEIGHT
