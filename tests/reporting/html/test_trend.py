from example_pages import HOSTILE
from html_reading import Reading
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.reporting.document import TrendLine
from tinytorch.reporting.html.runs import TREND_HEIGHT, small_trend, trend_picture

VALUES = [1.0, 1.1, 1.0, 2.0, 2.1, 2.0]


def picture(values=VALUES, **changes):
    fields = {"unit": "s", "ends": ("Monday", "Tuesday")}
    return Reading(trend_picture(TrendLine(values, **(fields | changes))))


def percent(place):
    return float(place.removesuffix("%"))


def test_every_value_is_a_point_in_its_order():
    points = picture().all("circle")
    across = [percent(each["cx"]) for each in points]
    up = [-float(each["cy"]) for each in points]
    assert across == sorted(across)
    assert sorted(range(6), key=up.__getitem__) == sorted(range(6), key=VALUES.__getitem__)


def test_levels_and_changes_are_marked():
    plain, changed = picture(), picture(steps=[3])
    assert len(plain.all("line", class_="axis")) == 1
    assert len(changed.all("line", class_="axis")) == 2
    assert "change" in changed.texts("text")
    assert "change" not in plain.texts("text")
    (first_of_new,) = changed.all("circle", class_="series-2")
    assert first_of_new == changed.all("circle")[3] | {"class": "mark series-2"}


def test_intervals_are_lines_through_the_points():
    shown = picture(intervals=[(0.9, 1.1), None, (0.9, 1.2), None, None, (1.9, 2.1)])
    bars = shown.all("line", class_="interval")
    points = shown.all("circle")
    assert [each["x1"] for each in bars] == [points[index]["cx"] for index in (0, 2, 5)]


def test_the_ends_are_named_and_points_explained():
    shown = picture(titles=[f"record {index}" for index in range(6)])
    assert {"Monday", "Tuesday"} <= set(shown.texts("text"))
    assert "record 5" in shown.texts("title")


def test_a_small_trend_is_a_line_with_an_end():
    shown = Reading(small_trend(VALUES, label="six values"))
    (line,) = shown.all("polyline")
    assert len(line["points"].split()) == 6
    assert "six values" in shown.texts("title")


def test_names_are_text():
    html = trend_picture(TrendLine([1.0], ends=(HOSTILE, HOSTILE), titles=[HOSTILE]))
    assert "<script" not in html


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30))
def test_any_values_stay_inside_of_the_picture(values):
    for point in picture(values).all("circle"):
        assert 0 <= percent(point["cx"]) <= 100
        assert 0 <= float(point["cy"]) <= TREND_HEIGHT


def test_values_without_levels_have_no_line_through_them():
    found = picture(has_levels=False)
    assert found.all("line", class_="axis") == []
    assert found.texts("title")[0] == "6 values"
