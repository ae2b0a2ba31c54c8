import math
from itertools import pairwise

import pytest
from example_pages import HOSTILE
from html_reading import Reading
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.document import ParetoPlot, ParetoPoint
from tinytorch.reporting.html.page import Banner, Page, Section, render_page
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
    assert {"a", "b"} <= set(shown.texts("text"))


def test_intervals_are_drawn_and_written():
    wide = ParetoPoint("a", Estimate(0.002, 0.001, 0.003), Estimate(2048, 1024, math.inf))
    shown = Reading(plot(wide, point("b", 0.001, 100)))
    assert len(shown.all("line", class_="interval")) == 2
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


def test_names_without_room_on_a_phone_are_shown_where_there_is_more():
    crowd = [point(f"the candidate {k}", 1 + 0.1 * k, 1000) for k in range(14)]
    shown = Reading(plot(*crowd, are_log=(False, False)))
    roomy = shown.texts("text", class_="roomy")
    names = shown.texts("text", class_="halo")
    assert 0 < len(roomy) < len(names)
    assert len(set(names)) == len(names)


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


# ---------------------------------------------------------------- in a browser

INSIDE = """() => [...document.querySelectorAll('.plot text')].every(each => {
  const box = each.getBoundingClientRect();
  return box.left >= 0 && box.right <= innerWidth;
})"""


@pytest.mark.parametrize("width", [390, 1280])
def test_letters_are_inside_of_the_screen_and_of_one_size(browser_page, width):
    crowd = [point(f"the candidate {k}", 1 + 0.1 * k, 1000) for k in range(14)]
    section = Section("front", "Front", plot(*crowd, are_log=(False, False)))
    page = browser_page(render_page(Page("front", Banner("", ""), (section,))), width=width)
    assert page.evaluate(INSIDE)
    name = page.locator(".pareto .halo").first
    assert name.evaluate("each => getComputedStyle(each).fontSize") == "12px"
    assert name.evaluate("each => each.getScreenCTM().a") == pytest.approx(1.0)  # not scaled
    assert page.locator(".pareto .roomy").first.is_visible() == (width > 390)
