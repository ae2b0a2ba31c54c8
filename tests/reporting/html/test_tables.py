import re

import pytest
from example_pages import COLUMNS, HOSTILE, layer_rows

from tinytorch.reporting.document import Cell, Column, Row
from tinytorch.reporting.html.markup import table


def test_headings_of_sortable_tables_are_buttons():
    assert '<button type="button" title="Median of the calls">time</button>' in table(COLUMNS, [])
    plain = table(COLUMNS, [], sortable=False)
    assert "<button" not in plain
    assert 'title="Median of the calls"' in plain


def test_the_first_column_heads_its_rows():
    shown = table([Column("a"), Column("b", "number")], [["x", Cell("2 ms", 0.002)]])
    assert '<th scope="row">x</th><td class="number" data-sort="0.002">2 ms</td>' in shown


@pytest.mark.parametrize(
    ("value", "shown"), [(1234567.125, "1234567.125"), (5511000000.0, "5.511e+09"), (1.0, "1")]
)
def test_no_digit_is_lost_for_sorting(value, shown):
    assert f'data-sort="{shown}"' in table([Column("a", "number")], [[Cell("x", value)]])


@pytest.mark.parametrize(("share", "shown"), [(0.25, "0.25"), (1.7, "1"), (-0.1, "0")])
def test_a_bar_stays_within_its_track(share, shown):
    html = table([Column("a", "bar")], [[Cell("x", bar=share)]])
    assert f'<i class="bar" style="--share:{shown}"></i>' in html


def test_what_is_unknown_has_nothing_to_sort_by():
    html = table([Column("a"), Column("b", "number")], [["x", Cell("-", tone="faint")]])
    assert '<td class="number faint">-</td>' in html


def test_names_are_text():
    html = table([Column(HOSTILE)], [[Cell(HOSTILE, HOSTILE, title=HOSTILE)]], caption=HOSTILE)
    assert "<script" not in html


def test_children_stand_deeper_than_their_parents():
    html = table(COLUMNS, layer_rows())
    depths = [
        int(found or 0) for found in re.findall(r'<th scope="row"(?: style="--depth:(\d)")?', html)
    ]
    assert depths == [0, 1, 2, 2, 1, 2, 2, 1]
    assert html.count('class="fold"') == 3
    assert 'aria-expanded="false" aria-label="What is inside of block.10"' in html


def test_a_flat_table_has_nothing_to_fold():
    html = table(COLUMNS, [Row(["a", "b", "c"], path="a")])
    assert "fold" not in html


def test_a_row_with_too_few_cells_is_a_mistake():
    with pytest.raises(AssertionError, match="1 cells in 3 columns"):
        table(COLUMNS, [["a"]])
