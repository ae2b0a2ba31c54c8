import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from terminal import shown

from tinytorch.reporting.forest_plot import ForestPlot, ForestRow
from tinytorch.reporting.quantities import ratio_text

ROW = ForestRow("ours", 1.3, 1.2, 1.4, "1.30x")
ratios = st.floats(1e-3, 1e3)


def plot(*rows, points=(), floor=0.005, band=0.01):
    return ForestPlot(rows, floor, band, points)


def lines(*rows, width=80, **settings):
    return [line.plain for line in plot(*rows, **settings).lines(width)]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.3149, "1.31x"),
        (1.0, "1.000x"),
        (0.9968, "0.997x"),
        (0.0999, "0.100x"),
        (0.0012, "0.0012x"),
        (850.3, "850x"),
        (math.inf, "inf"),
        (math.nan, "-"),
        (None, "-"),
    ],
)
def test_ratios_have_a_digit_more_near_one(ratio, text):
    assert ratio_text(ratio) == text


def test_an_interval_beyond_one_lies_beyond_the_mark_of_one():
    drawn = lines(ROW)[0]
    assert drawn.index("│") < drawn.index("├") < drawn.index("●") < drawn.index("┤")
    assert drawn.endswith("1.30x")


def test_floor_and_band_surround_one():
    ruler = lines(ForestRow("x", 1.0, 0.995, 1.005))[1].strip()
    assert ruler == ruler[::-1]
    assert [ruler.count(letter) for letter in "│┊"] == [1, 2]
    assert ruler[0] == ruler[-1] == "░"


def test_an_end_that_is_not_known_is_an_arrow():
    drawn = lines(ForestRow("x", 1.3, 1.2, math.inf))[0]
    assert "►" in drawn
    assert "┤" not in drawn


def test_one_wild_point_does_not_squeeze_the_rest():
    points = [1.3 + 0.001 * index for index in range(40)]
    assert lines(ROW, points=points)[3] == lines(ROW, points=[*points, 50.0])[3]


def test_points_are_higher_where_there_are_more():
    strip = lines(ROW, points=[1.25, 1.35, 1.35, 1.35])[1]
    assert strip.split() == ["rounds", strip.split()[1], "█"]
    assert strip.split()[1] in "▁▂▃▄▅▆▇"


@given(st.lists(st.tuples(ratios, ratios, ratios), min_size=1, max_size=5), st.integers(60, 120))
def test_no_line_is_wider_than_asked_for(found, width):
    rows = [
        ForestRow("a label that is much too long for it", value, low, high, ratio_text(value))
        for low, value, high in map(sorted, found)
    ]
    drawn = lines(*rows, width=width, points=[each.value for each in rows])
    assert max(map(len, drawn)) <= width


def test_without_room_for_a_picture_the_numbers_stay():
    assert lines(ROW, width=12) == ["ours  1.30x"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_labels_are_whole_and_the_picture_stays(width):
    label = "folder/" * 6 + "test_x"
    drawn = lines(ForestRow(label, 1.3, 1.2, 1.4, "better  1.30x (1.20x to 1.40x)"), width=width)
    assert any(line.startswith(label) for line in drawn)
    assert any("●" in line and "1.30x (1.20x to 1.40x)" in line for line in drawn)


def test_a_terminal_without_unicode_gets_plain_letters():
    buffer = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=buffer, width=80).print(plot(ROW, points=[1.25, 1.35]))
    buffer.flush()
    text = buffer.buffer.getvalue().decode("ascii")
    assert "o" in text
    assert "[" in text


def test_the_legend_says_what_is_drawn():
    assert "minimum effect 0.5%  ░ equivalence band 1%" in shown(plot(ROW))


def test_the_ends_hold_every_interval_and_one():
    low, high = ForestPlot([ForestRow("a", 3.0, 2.0, 4.0)], 0.005, 0.01).ends
    assert low < 1 < 4 < high


def test_a_floor_of_zero_is_not_drawn_and_sides_have_names():
    found = ForestPlot([ROW], 0.0, 0.02, sides=("worse", "better"))
    legend = found.lines(80)[-1].plain
    assert "worse < 1x < better" in legend
    assert not any("minimum effect" in line.plain for line in found.lines(80))
