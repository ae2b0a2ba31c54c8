"""The pictures in the text of the labs."""

import numpy as np
import pytest

from tinytorch.learning.exercise import Bars, Histogram, Roof
from tinytorch.measure.ceilings import Bandwidth, Ceilings, Rate
from tinytorch.measure.samples import Samples
from tinytorch.reporting.learning import histogram_document, roof_document


def rows_of(document):
    rows = (getattr(row, "cells", row) for row in document.blocks[-1].rows)
    return [[str(getattr(cell, "text", cell)) for cell in row] for row in rows]


def test_a_histogram_counts_every_value_once_and_names_the_bar_of_each_mark(rng):
    values = [*rng.uniform(1.0, 2.0, 500), 50.0, 60.0]
    marks = {"p50": float(np.median(values)), "highest mark": 2.0}
    rows = rows_of(histogram_document(Histogram("times", values, marks, unit="ms")))
    assert sum(int(row[2].replace(",", "")) for row in rows) == len(values)
    assert rows[-1][0].startswith(">")  # what lies above every mark
    assert int(rows[-1][2]) == 2
    assert [row[3] for row in rows if row[3]] == ["p50", "highest mark"]


def test_a_histogram_of_equal_values_has_all_of_them():
    rows = rows_of(histogram_document(Histogram("times", [3.0] * 5, {"mean": 3.0})))
    assert sum(int(row[2]) for row in rows) == 5


@pytest.fixture
def ceilings():
    """Give the ceilings of a machine with 100 GFLOP/s and 10 GB/s."""
    rate = Rate("float32", "numpy", Samples("", (1e11,), unit="FLOP/s"))
    memory = Bandwidth("memory", 1 << 28, None, Samples("", (1e10,), unit="B/s"), 1)
    return Ceilings("cpu", (rate,), (memory,), {}, "", "")


def test_a_roofline_says_how_much_of_what_is_attainable_was_reached(ceilings):
    points = {"bound by memory": (1.0, 5e9), "bound by computing": (100.0, 2.5e10)}
    rows = rows_of(roof_document(Roof("work", ceilings, points)))
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("A", "bound by memory", "50%"),
        ("B", "bound by computing", "25%"),
    ]


def test_the_longest_bar_of_the_terminal_takes_the_room_of_its_column():
    lines = str(Bars("sizes", {"half": 1.0, "whole": 2.0})).splitlines()
    half, whole = (line.count("█") for line in lines[1:])
    assert (whole, half) == (15, 7)
