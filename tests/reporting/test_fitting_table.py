import io

import pytest
from rich.console import Console
from rich.text import Text

from tinytorch.reporting.quantities import Column, FittingTable

TABLE = FittingTable(
    "name",
    [Text("short"), Text("a label that is rather long")],
    [
        Column("first", ["1", "22"], 0),
        Column("second", ["333", "4"], 2),
        Column("third", ["x" * 12, "y"], 1, "left", least=6),
        Column("empty", ["", " "]),
    ],
    label_least=10,
)


def lines(table, width):
    console = Console(file=io.StringIO(), width=width, markup=False)
    console.print(table)
    return console.file.getvalue().splitlines()


def test_with_room_for_all_everything_is_shown():
    head, short, long = lines(TABLE, 80)
    assert head.split() == ["name", "first", "second", "third"]
    assert short.split() == ["short", "1", "333", "x" * 12]
    assert long.startswith("a label that is rather long ")


def test_columns_that_say_nothing_are_left_out():
    assert "empty" not in lines(TABLE, 80)[0]


def test_labels_are_cut_before_columns_are_left_out():
    head, _, long = lines(TABLE, 40)
    assert head.split() == ["name", "first", "second", "third"]
    assert "…" in long


def test_a_column_may_be_cut_too():
    assert "xxxxx…" in lines(TABLE, 33)[1]


def test_where_nothing_more_can_be_cut_the_highest_rank_goes_first():
    assert lines(TABLE, 28)[0].split() == ["name", "first", "third"]
    assert lines(TABLE, 18)[0].split() == ["name", "first"]


@pytest.mark.parametrize("width", range(18, 100, 3))
def test_no_line_is_longer_than_the_terminal(width):
    shown = lines(TABLE, width)
    assert len(shown) == 3
    assert all(len(line) <= width for line in shown)


def test_square_brackets_are_text():
    table = FittingTable("x", [Text("blocks[0]")], [Column("y", ["[bold]"])])
    assert lines(table, 40)[1].split() == ["blocks[0]", "[bold]"]


def test_a_table_without_rows_has_its_head():
    (head,) = lines(FittingTable("name", [], [Column("n", [])]), 40)
    assert head.split() == ["name"]
