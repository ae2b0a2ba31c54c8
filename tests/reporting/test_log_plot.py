from itertools import pairwise

import pytest

from tinytorch.reporting.quantities import Mark, log_plot

SIZES = (2, 4, 8, 16)


def plot(marks, law=lambda x: x, **settings):
    texts = {"x_text": lambda x: f"{x:g}", "y_text": lambda y: f"{y:.3g}"}
    return log_plot(marks, law, **texts, **settings).split("\n")


def place(lines, letter):
    """Give row and column of a letter."""
    (row,) = [index for index, line in enumerate(lines) if letter in line]
    return row, lines[row].index(letter)


def test_a_power_law_is_a_straight_line():
    lines = plot([Mark(x, x**2, letter) for x, letter in zip(SIZES, "abcd", strict=True)])
    places = [place(lines, letter) for letter in "abcd"]
    rows, columns = [row for row, _ in places], [column for _, column in places]
    assert rows == sorted(rows, reverse=True)
    steps = [after - before for before, after in pairwise(columns)]
    # Letters stand on a grid, so steps differ by at most one.
    assert max(steps) - min(steps) <= 1


def test_the_law_is_drawn_behind_the_marks():
    lines = plot([Mark(x, x, "o") for x in SIZES])
    assert sum(line.count("·") for line in lines) > 20
    assert sum(line.count("o") for line in lines) == 4


def test_an_interval_is_a_bar():
    marks = [*(Mark(x, x, "o") for x in SIZES), Mark(32, 32, "P", low=8, high=128)]
    assert sum("│" in line for line in plot(marks)) >= 4


def test_an_infinite_interval_has_no_bar():
    marks = [*(Mark(x, x, "o") for x in SIZES), Mark(32, 32, "P", low=0.0, high=float("inf"))]
    assert not any("│" in line for line in plot(marks))


def test_the_places_of_marks_are_named_below():
    assert plot([Mark(x, x, "o") for x in SIZES])[-1].split() == ["2", "4", "8", "16"]


def test_names_that_do_not_fit_give_way_to_the_largest():
    ticks = plot([Mark(x, x, "o") for x in range(1000, 1040)], width=18)[-1].split()
    assert ticks[-1] == "1039"
    assert len(ticks) <= 3


@pytest.mark.parametrize("marks", [[Mark(1, 1, "o")], [Mark(1, 5, "o"), Mark(2, 5, "o")]])
def test_marks_without_extent_can_be_drawn(marks):
    lines = plot(marks, law=lambda x: 5.0)
    assert sum(line.count("o") for line in lines) == len(marks)


@pytest.mark.parametrize("width", [30, 44, 66])
def test_the_picture_has_its_size(width):
    marks = [*(Mark(x, x, "o") for x in SIZES), Mark(10**9, 32, "P")]
    lines = plot(marks, width=width, height=7)
    assert len(lines) == 9
    assert max(map(len, lines)) == width


def test_a_picture_without_room_is_small_but_there():
    lines = plot([Mark(x, x, "o") for x in SIZES], width=1)
    assert sum(line.count("o") for line in lines) == 4
