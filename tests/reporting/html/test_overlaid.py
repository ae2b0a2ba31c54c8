import re

from example_pages import HOSTILE
from html_reading import Reading
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.reporting.document import Distribution, Run
from tinytorch.reporting.html.runs import overlaid_distributions


def drawn(*runs):
    return overlaid_distributions(Distribution(runs, "s"))


def test_each_side_has_an_area_and_its_median():
    shown = Reading(drawn(Run("old", [2e-3, 3e-3, 4e-3]), Run("new", [1e-3])))
    assert len(shown.all("svg", class_="area")) == 2
    assert {"median of old: 3.00 ms", "median of new: 1.00 ms"} <= set(shown.texts("title"))
    assert shown.texts("li") == ["old", "new"]


def test_what_lies_beyond_is_counted():
    values = [1.0 + 0.001 * index for index in range(300)] + [90.0, 91.0]
    shown = Reading(drawn(Run("a", values)))
    assert "2 beyond →" in shown.texts("text")


def test_an_area_steps_up_at_every_value_and_closes():
    shown = Reading(drawn(Run("a", [1.0, 2.0, 3.0])))
    (area,) = shown.all("path")
    highest = [float(level) for level in re.findall(r"V([\d.]+)", area["d"])]
    assert highest.count(0) == 3  # as high as the picture: each value is a third of all
    assert area["d"].endswith("Z")


def test_names_are_text():
    assert "<script" not in drawn(Run(HOSTILE, [1.0]))


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=30))
def test_any_values_can_be_drawn(values):
    assert "nan" not in drawn(Run("a", values))
