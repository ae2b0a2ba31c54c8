import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.competition.board_files import csv_text


def cell(value):
    (_, row) = csv.reader(io.StringIO(csv_text(["a", "b"], [{"a": value, "b": 1}]), newline=""))
    return row[0]


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1", "@SUM(A1)", "  =1", "\t=1", "\r=1", "\N{FULLWIDTH EQUALS SIGN}1"],
)
def test_what_a_spreadsheet_would_compute_is_text(text):
    assert cell(text).startswith("'")


@given(st.text())
def test_no_text_begins_a_formula_or_a_new_line(text):
    found = cell(text)
    assert not found.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert "\n" not in found


def test_numbers_stay_numbers():
    assert (cell(-1.5), cell(3), cell(0.1)) == ("-1.5", "3", "0.1")


def test_what_a_row_lacks_is_empty():
    assert csv_text(["a", "b"], [{"b": None}]) == "a,b\r\n,\r\n"


def test_commas_and_quotes_come_back():
    assert cell('a, "b"') == 'a, "b"'
