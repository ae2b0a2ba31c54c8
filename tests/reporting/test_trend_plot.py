import pytest

from tinytorch.reporting.document import TrendLine
from tinytorch.reporting.terminal import INTERVAL, LEVEL, POINT, STEP, trend_plot


def plot(values, *, width=80, **settings):
    chart = TrendLine(values, **{"ends": ("first", "last"), **settings})
    return trend_plot(chart, width=width).split("\n")


def column_of(lines, letter):
    """Give the columns in which a letter stands."""
    return sorted({at for line in lines for at, found in enumerate(line) if found == letter})


def rows_of(lines, letter):
    return [row for row, line in enumerate(lines) if letter in line]


def test_higher_values_stand_higher_and_later_ones_to_the_right():
    lines = plot([1.0, 2.0, 3.0])
    places = sorted(
        (at, row)
        for row, line in enumerate(lines)
        for at, found in enumerate(line)
        if found == POINT
    )
    assert len(places) == 3
    rows = [row for _, row in places]
    assert rows == sorted(rows, reverse=True)


def test_a_new_level_begins_at_a_line_between_the_points():
    lines = plot([1.0, 1.0, 1.0, 2.0, 2.0, 2.0], steps=[3])
    (step,) = column_of(lines, STEP)
    points = column_of(lines, POINT)
    assert sum(at < step for at in points) == sum(at > step for at in points) == 3
    assert len(rows_of(lines[:11], STEP)) == 11
    assert len(rows_of(lines[:11], LEVEL)) == 2, "each level at its own height"


def test_intervals_are_bars_behind_the_points():
    lines = plot([1.0, 2.0], intervals=[(0.5, 1.5), None])
    assert len(rows_of(lines, INTERVAL)) >= 3
    assert len(column_of(lines, INTERVAL)) == 1


def test_a_huge_interval_does_not_flatten_the_values():
    lines = plot([1.0, 2.0], intervals=[(0.9, 1000.0), None])
    high, low = rows_of(lines, POINT)
    assert low - high >= 5


def test_both_ends_are_named_and_the_numbers_beside():
    lines = plot([1.0, 3.0])
    assert lines[-1].split() == ["first", "last"]
    assert lines[0].startswith("3.12 ┤")
    assert lines[5].startswith("   2 ┤")
    assert lines[10].startswith("0.88 ┤")


@pytest.mark.parametrize("values", [[1.0], [0.0], [5.0, 5.0], [-1.0, -1.0], [0.0] * 30])
def test_values_without_extent_can_be_drawn(values):
    assert sum(line.count(POINT) for line in plot(values)) == len(values)


@pytest.mark.parametrize("width", [30, 60, 100])
@pytest.mark.parametrize("count", [2, 50, 1000])
def test_the_picture_has_its_size(width, count):
    lines = plot([float(n % 7) for n in range(count)], width=width, steps=[count // 2])
    assert len(lines) == 13
    assert max(map(len, lines)) == width


def test_a_narrow_picture_names_the_last_end_only():
    lines = plot([1.0, 2.0], width=1, ends=("2026-01-01 10:00", "2026-01-02 10:00"))
    assert lines[-1].split() == ["2026-01-02", "1"]
