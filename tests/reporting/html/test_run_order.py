import re

from example_pages import HOSTILE
from html_reading import Reading
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.reporting.document import Run, RunOrder
from tinytorch.reporting.html.plot import STRETCHED
from tinytorch.reporting.html.runs import RUN_ORDER_HEIGHT, run_order


def drawn(runs, **fields):
    return run_order(RunOrder(runs, "s", **fields))


def places(html, series):
    (dots,) = Reading(html).all("path", class_=f"series-{series}")
    return [
        tuple(map(float, each)) for each in re.findall(r"M([\d.e+-]+) ([\d.e+-]+)h0", dots["d"])
    ]


def test_every_value_is_a_dot_in_its_order():
    values = [1e-3, 2e-3, 1.5e-3, 1.2e-3]
    html = drawn([Run("old", values), Run("new", values[::-1])])
    first, second = places(html, 1), places(html, 2)
    assert len(first) == len(second) == 4
    assert [x for x, _ in first] == sorted(x for x, _ in first)
    # Upwards is slower.
    assert sorted(range(4), key=lambda i: -first[i][1]) == sorted(range(4), key=values.__getitem__)
    assert [y for _, y in first] == [y for _, y in second[::-1]]


def test_both_sides_are_named():
    shown = Reading(drawn([Run("old", [1.0, 2.0]), Run("new", [1.0, 2.0])]))
    assert shown.texts("li") == ["old", "new"]
    assert "last of 2 turns" in shown.texts("text")


def test_rounds_are_told_apart_unless_there_are_too_many():
    run = Run("a", [float(index) for index in range(1, 401)])
    few = drawn([run], breaks=[100, 200])
    many = drawn([run], breaks=list(range(1, 400)))
    assert len(Reading(few).all("line", class_="break")) == 2
    assert Reading(many).all("line", class_="break") == []


def test_rare_slow_values_stand_at_the_edge_and_are_counted():
    html = drawn([Run("a", [1.0, 1.1] * 200 + [500.0])])
    assert "↑ 1 above" in Reading(html).texts("text")
    highest = min(y for _, y in places(html, 1))
    assert sum(y == highest for _, y in places(html, 1)) == 1


def test_of_many_values_some_are_drawn_but_all_that_are_rare():
    values = [1.0 + 0.001 * (index % 97) for index in range(50_000)]
    for place in (777, 20_001, 49_998):
        values[place] = 1.3
    html = drawn([Run("a", values)])
    found = places(html, 1)
    assert len(found) < 4000
    lowest = max(y for _, y in found)
    # The axis ends at the 99th percentile: rare values stand at its upper end.
    highest = min(y for _, y in found)
    assert sum(y == highest for _, y in found) == 3
    assert lowest > highest


def test_names_are_text():
    assert "<script" not in drawn([Run(HOSTILE, [1.0])], things=HOSTILE)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_any_values_stay_inside_of_the_picture(values):
    for x, y in places(drawn([Run("a", values)]), 1):
        assert 0 <= x <= STRETCHED
        assert 0 <= y <= RUN_ORDER_HEIGHT
