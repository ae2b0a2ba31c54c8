import io

import pytest
from document_reading import named_rows
from rich.console import Console

from tinytorch.measure.samples import Samples
from tinytorch.profiling.size_laws import NOT_RESOLVED, SizePoint, fit_trend
from tinytorch.profiling.size_scaling import SizeScaling
from tinytorch.reporting.document import document_of
from tinytorch.reporting.terminal import render


def scaling_of(law, *, sizes=(8, 16, 32, 64), at=256, truth=None, notes=()):
    points = tuple(
        SizePoint(size, Samples("", (law(size),) * 5), 100 * size, 4000 + 8 * size, 4000)
        for size in sizes
    )
    check = None
    if truth is not None:
        check = SizePoint(at, Samples("", (truth,) * 5), 100 * at, 4000 + 8 * at, 4000)
    return SizeScaling(
        name="example",
        framework="core",
        device="cpu",
        axis="sequence",
        usual=32,
        points=points,
        at=at,
        time=fit_trend("time", points, at, check),
        flops=fit_trend("FLOPs", points, at, check),
        memory=fit_trend("memory", points, at, check),
        check=check,
        notes=notes,
    )


def shown(scaling, width=100):
    console = Console(file=io.StringIO(), width=width, markup=False)
    console.print(render(document_of(scaling)))
    return console.file.getvalue()


def test_every_size_has_its_row():
    document = document_of(scaling_of(lambda size: 1e-5 * size))
    assert document.title == "example"
    assert document.subtitle == "core on cpu, by sequence; example inputs have 32"
    assert document.banner.verdict == "2.56 ms predicted at 256"
    found = named_rows(document)
    assert found["8"]["time"] == "80.0 us"
    assert (found["64"]["FLOPs"], found["64"]["peak memory"]) == ("6.40k", "4.41 KiB")


def test_the_prediction_has_an_interval_an_exponent_and_words():
    text = shown(scaling_of(lambda size: 1e-5 * size**1.5))
    (line,) = [line for line in text.splitlines() if line.startswith("time")]
    assert line.split()[:3] == ["time", "41.0", "ms"]
    assert "1.50 ± 0.00" in line
    assert "between linear and quadratic" in line


def test_what_was_counted_is_exact():
    text = shown(scaling_of(lambda size: 1e-5 * size))
    (line,) = [line for line in text.splitlines() if line.startswith("FLOPs")]
    assert line.split()[:4] == ["FLOPs", "25.6k", "exact", "1.00"]
    assert "- FLOPs follow 100 n exactly at all 4 sizes" in text


def test_parameters_are_told_from_what_grows():
    text = shown(scaling_of(lambda size: size))
    assert "- memory follows 4,000 + 8 n bytes exactly at all 4 sizes" in text
    assert "- 4,000 bytes of the memory are parameters, whatever the size" in text


def test_a_prediction_that_holds_is_said_to_hold():
    text = shown(scaling_of(lambda size: 1e-5 * size, truth=2.56e-3))
    assert "Checked at 256: time 2.56 ms is inside its interval" in text
    assert "256 (check)" in text
    assert "x measured for the check" in text


def test_a_prediction_that_fails_is_said_to_fail():
    text = shown(scaling_of(lambda size: 1e-5 * size, truth=9e-3), 140)
    assert "time 9.00 ms is outside its interval, FLOPs 25.6k is exactly as predicted" in text


def test_two_sizes_show_nothing():
    text = shown(scaling_of(lambda size: 1e-5 * size, sizes=(8, 16), truth=2.56e-3))
    assert "time 2.56 ms is inconclusive (no interval)" in text
    (line,) = [line for line in text.splitlines() if line.startswith("time  ")]
    assert line.split() == ["time", "2.56", "ms", "2.56", "ms", "1.00", "not", "resolved"]
    assert "inf" not in text


def uneven(size):
    return {8: 1.0, 16: 9.0, 32: 2.0, 64: 8.0}[size]


def test_a_wide_interval_shows_nothing():
    text = shown(scaling_of(uneven, truth=10.0))
    assert "time 10.0 s is inconclusive (the interval is too wide)" in text
    assert "inside" not in text
    assert "│" not in text
    assert f"- time: the exponent is {NOT_RESOLVED}" in text


def test_doubts_are_repeated():
    assert "- the machine is busy" in shown(
        scaling_of(lambda size: size, notes=("the machine is busy",))
    )


@pytest.mark.parametrize("width", [40, 60, 70, 80, 120])
def test_no_line_is_longer_than_the_terminal(width):
    text = shown(scaling_of(lambda size: 1e-5 * size, truth=2.5e-3), width)
    assert all(len(line) <= width for line in text.splitlines())


def noisy(size):
    return 1e-5 * size * {8: 1.1, 16: 0.9, 32: 1.05, 64: 0.95}[size]


@pytest.mark.parametrize("law", [noisy, lambda size: 1e-5 * size**1.5, uneven])
def test_the_exponent_stays_at_eighty_columns(law):
    lines = shown(scaling_of(law, truth=2.5e-3), 80).splitlines()
    (head,) = [line for line in lines if line.startswith("at 256")]
    assert head.split()[2:7] == ["predicted", "95%", "interval", "measured", "exponent"]


def test_the_picture_is_as_wide_as_the_terminal():
    lines = shown(scaling_of(noisy), 60).splitlines()
    (axis,) = [line for line in lines if "└" in line]
    assert len(axis) == 60
