from terminal import shown

from tinytorch.measure.estimate import Estimate
from tinytorch.transforms.kernel_choice import (
    DEFAULT_WINS,
    FASTER,
    ONLY_ONE,
    Choice,
    KernelReport,
    Rival,
)

SLOWER = Rival("numpy", Estimate(2.0, 1.9, 2.1))
WON = Choice("gelu", "float32 2d", "numba", "numpy", (SLOWER,), 40, FASTER, 1.5e-6)
STAYED = Choice("exp", "float32 2d", "numpy", "numpy", (), 40, DEFAULT_WINS, 2e-6)
WRONG = Rival("numba", None, "result 0 is off by [bold] 1.0e-03")
ALONE = Choice("relu", "float32 2d", "numpy", "numpy", (WRONG,), 0, ONLY_ONE)
REPORT = KernelReport((WON, STAYED, ALONE), "abc", ("not kept for the next time: read-only",))


def rows(report=REPORT, width=160):
    return [" ".join(line.split()) for line in shown(report, width).splitlines()]


def test_the_headline_counts_what_was_won():
    assert rows()[0].startswith("another implementation than the default is faster in 1 of 3")


def test_a_row_has_the_ratio_with_its_interval():
    assert "gelu float32 2d numba faster than numpy 1 2.00x (1.90-2.10) 1.50 us 40" in rows()


def test_what_is_left_out_has_its_reason_as_it_is_written():
    assert "relu float32 2d numpy the only one that is right left out 1 - -" in rows()
    assert "- relu, numba left out: result 0 is off by [bold] 1.0e-03" in rows()


def test_notes_stand_below():
    assert rows()[-1] == "- not kept for the next time: read-only"


def test_an_empty_report_says_how_to_fill_it():
    assert "no choices yet" in rows(KernelReport((), "abc"))[0]


def test_a_narrow_terminal_keeps_the_choice():
    text = rows(width=60)
    assert any(line.startswith("gelu") and "numba" in line for line in text)
    assert max(len(line) for line in text) <= 60


def test_notebooks_get_html():
    assert "<pre" in REPORT._repr_html_()
    assert "faster than numpy" in REPORT._repr_html_()
