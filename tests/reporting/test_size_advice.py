import io

import pytest
from example_advice import SATURATED, advice_of, curve, measured
from rich.console import Console

from tinytorch.reporting.document import document_of
from tinytorch.reporting.html.page import report_html
from tinytorch.reporting.terminal import render
from tinytorch.tuning.sizes import Ceiling


def shown(advice, width=120):
    console = Console(file=io.StringIO(), width=width, markup=False)
    console.print(render(document_of(advice)))
    return console.file.getvalue()


def row(text, size):
    (found,) = [line for line in text.splitlines() if line.split()[:1] == [str(size)]]
    return found


def test_every_size_has_its_row():
    text = shown(advice_of(curve()))
    assert document_of(advice_of(curve())).subtitle == (
        "core on cpu, by batch size; example inputs have 1"
    )
    assert row(text, 1).split()[1:3] == ["1.10", "ms"]
    assert "example inputs" in row(text, 1)
    assert "recommended, knee" in row(text, 128)
    assert "best" in row(text, 256)


def test_the_share_of_the_best_has_an_interval():
    # 1.1 ms for one, 26.6 ms for 256: 9.4% of the best
    assert "9% (9% to 9%)" in shown(advice_of(curve()))


def test_two_rounds_have_an_open_interval():
    points = [measured(1, 1e-3, rounds=2), measured(2, 1e-3, rounds=2)]
    assert "50% (0% to ?)" in shown(advice_of(points))


def test_what_follows_is_said_in_words():
    text = shown(advice_of(curve()), 200)
    banner = document_of(advice_of(curve())).banner
    assert (banner.verdict, banner.tone) == ("Recommended batch size: 128", "good")
    assert banner.sentence.startswith("the smallest size conclusively within 10%")
    assert "Largest size that fits: >= 256; 512 does not: MemoryError: no room." in text
    assert "No larger size was measured: the throughput no longer grows." in text
    assert "★ knee, recommended" in text


def test_a_knee_that_breaks_a_limit_is_named_beside_the_recommendation():
    text = shown(advice_of(curve(), latency_limit_s=3e-3), 200)
    assert "Recommended batch size: 16" in text
    assert "Knee: 128, the smallest size conclusively within 10% of the best" in text
    assert "◆ knee  ★ recommended" in text


def test_the_ceiling_says_which_limit_it_is_about():
    text = shown(advice_of(curve(), memory_limit_bytes=1 << 20), 200)
    assert "Largest size that fits into the memory limit: >= 256" in text


def test_no_recommendation_says_why():
    advice = advice_of(curve(), latency_limit_s=1e-4)
    text, banner = shown(advice, 200), document_of(advice).banner
    assert (banner.verdict, banner.tone) == ("No batch size is recommended", "bad")
    assert banner.sentence.startswith("no measured size conclusively keeps")
    assert "★" not in text


def test_sequences_have_their_own_words():
    advice = advice_of(curve(), axis="sequence", unit="tokens", notes=("a doubt",))
    text = shown(advice)
    assert "sequence length" in text
    assert "tokens/s" in text
    assert "- a doubt" in text


def test_a_single_size_can_be_shown():
    text = shown(advice_of([measured(1, 1e-3)], ceiling=Ceiling(1, None, SATURATED)))
    assert ">= 1; larger ones were not tried" in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_longer_than_the_terminal(width):
    text = shown(advice_of(curve(), latency_limit_s=3e-3), width)
    assert all(len(line) <= width for line in text.splitlines())


def test_the_words_stay_at_eighty_columns():
    assert "recommended, knee" in row(shown(advice_of(curve()), 80), 128)


def test_a_notebook_gets_html():
    html = advice_of(curve(), notes=("<b>",))._repr_html_()
    assert html.startswith("<pre")
    assert "<b>" not in html


def test_a_page_has_the_table_and_the_picture():
    html = report_html(advice_of(curve(), notes=("<i>odd",)))
    assert "Recommended batch size: 128" in html
    assert "★" in html
    assert "&lt;i&gt;odd" in html
