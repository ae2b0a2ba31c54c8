"""Tables of the documentation say what the code decides."""

import re

import pytest
from project_files import ROOT

from tinytorch.comparison.accuracy import examples_if_nothing_is_lost, paired_difference_bounds

PAGE = (ROOT / "docs" / "accuracy.md").read_text("utf-8")


def rows_after(marker):
    """Return the cells of the table below a marker, without its heading."""
    lines = PAGE.partition(marker)[2].partition("\n\n")[0].splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return table[0], table[2:]


def share(text):
    return float(re.match(r"[\d.]+", text)[0]) / 100


def establishes(count, *, margin, changed):
    """Return whether so many examples suffice when this share changes, half for the better."""
    low, _ = paired_difference_bounds(changed * count / 2, changed * count / 2, count)
    return low > -margin


HEAD, ROWS = rows_after("<!-- table: examples that establish a margin -->")


def test_the_table_has_its_margins():
    assert [share(row[0]) for row in ROWS] == [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_so_many_examples_establish_a_margin_and_one_less_does_not(row):
    margin, counts = share(row[0]), [int(cell.replace(",", "")) for cell in row[1:]]
    assert counts[0] == examples_if_nothing_is_lost(margin)
    for title, count in zip(HEAD[1:], counts, strict=True):
        changed = 0.0 if title == "nothing changes" else share(title)
        assert establishes(count, margin=margin, changed=changed)
        assert not establishes(count - 1, margin=margin, changed=changed)
