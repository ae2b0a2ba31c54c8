import pytest
from terminal import shown

from tinytorch.measure.samples import Samples
from tinytorch.pytest_plugin.session import Measured
from tinytorch.pytest_plugin.summary import groups_of, measured_table


def measured(name, values, *, group="", loops=1, file="test_a.py"):
    samples = Samples("latency", values, loops=loops)
    return Measured(f"{file}::{name}", group, file, name.partition("[")[0], samples, {})


FAST = measured("test_fast", [1e-6, 2e-6, 3e-6, 4e-6, 100e-6], loops=7)
SLOW = measured("test_slow", [5e-6] * 5, group="x")


def rows(tests, sort="median", width=150):
    return [
        " ".join(line.split()) for line in shown(measured_table(tests, sort), width).splitlines()
    ]


def test_the_columns_are_those_of_pytest_benchmark():
    assert rows([FAST])[0].startswith(
        "Name (time in us) Min Max Mean StdDev Median IQR Outliers OPS"
    )
    assert rows([FAST])[0].endswith("Rounds Iterations")


def test_a_row_has_the_numbers_of_its_samples():
    assert rows([FAST])[1] == (
        "test_fast 1.0000 100.0000 22.0000 43.6177 3.0000 2.0000 1;1 45.4545 5 7"
    )


@pytest.mark.parametrize(
    ("sort", "first"),
    [("median", "test_fast"), ("max", "test_slow"), ("name", "test_fast"), ("ops", "test_slow")],
)
def test_rows_are_sorted_by_a_column(sort, first):
    assert rows([SLOW, FAST], sort)[1].startswith(first)


@pytest.mark.parametrize(
    ("seconds", "unit", "rate"),
    [(5e-9, "ns", "Mops/s"), (5e-6, "us", "Kops/s"), (5e-3, "ms", "ops/s"), (5.0, "s", "ops/s")],
)
def test_units_fit_the_fastest_row(seconds, unit, rate):
    head = rows([measured("test_x", [seconds] * 5)])[0]
    assert f"time in {unit})" in head
    assert f"OPS ({rate})" in head


def test_a_narrow_terminal_keeps_the_median():
    head = rows([FAST, SLOW], width=60)[0]
    assert "Median" in head
    assert "Iterations" not in head


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    long = measured("test_" + "long_" * 30, [1e-6] * 5)
    text = shown(measured_table([long, FAST], "name"), width)
    assert max(map(len, text.splitlines())) <= width


def test_tests_of_one_name_are_told_apart_by_their_file():
    other = measured("test_fast", [1e-6] * 5, file="test_b.py")
    assert [row.split()[0] for row in rows([FAST, other], "name")[1:]] == [
        "test_a.py::test_fast",
        "test_b.py::test_fast",
    ]


@pytest.mark.parametrize(
    ("group_by", "titles"),
    [
        ("group", ["", "x"]),
        ("file", ["test_a.py"]),
        ("function", ["test_fast", "test_slow"]),
        ("none", [""]),
    ],
)
def test_tests_are_grouped(group_by, titles):
    assert [title for title, _ in groups_of([FAST, SLOW], group_by)] == titles
