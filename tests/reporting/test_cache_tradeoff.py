"""The trade-off of a cache in the terminal."""

import pytest
from example_comparisons import comparison
from terminal import shown

from tinytorch.reporting.transforms import render_tradeoff
from tinytorch.transforms.kv_cache import CachePoint, CacheTradeoff


def tradeoff_of(*ratios, notes=()):
    points = tuple(
        CachePoint(25 * 2**index, 2**20 * 2**index, comparison(ratio))
        for index, ratio in enumerate(ratios)
    )
    return CacheTradeoff("GPT", "numpy", 1, points, 1.5e-6, notes)


def text_of(*ratios, width=120, **settings):
    return shown(render_tradeoff(tradeoff_of(*ratios, **settings)), width)


def test_every_length_has_its_row():
    lines = text_of(0.5, 0.25, 0.1).splitlines()
    assert lines[0] == "KV cache of GPT  backend numpy, batch 1, one more token"
    head = "tokens cache without cache with cache speedup interval the cache is"
    assert lines[2].split() == head.split()
    assert lines[3].split()[:7] == ["25", "1", "MiB", "1.00", "ms", "500", "us"]
    assert lines[4].split()[-1] == "faster"
    assert lines[5].split()[0] == "100"
    assert "10.00x" in lines[5]


def test_what_is_not_shown_is_not_called_faster():
    lines = text_of(1.0, 0.25).splitlines()
    assert lines[3].rstrip().endswith(("same", "inconclusive"))
    assert "The cache is faster from 50 tokens on" in text_of(1.0, 0.25)


def test_a_cache_that_does_not_pay_is_said_not_to():
    assert "The cache is not faster, or inconclusive, at 50 tokens." in text_of(0.5, 1.5)


def test_the_total_is_called_an_estimate():
    text = " ".join(text_of(0.5, 0.5).split())
    assert "Writing tokens 25 to 50 takes about 13.0 ms instead of 26.0 ms, estimated" in text
    assert "the cache then holds 2 MiB." in text
    assert "Writing tokens" not in text_of(0.5)


def test_both_curves_are_drawn():
    text = text_of(0.5, 0.25, 0.1)
    # Three marks each, and one in the legend.
    assert text.count("●") == text.count("○") == 4


def test_the_difference_of_the_logits_and_the_notes_are_told():
    text = text_of(0.5, notes=("the machine is busy",))
    assert "Logits differ by at most 1.5e-06." in text
    assert "- the machine is busy" in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_longer_than_the_terminal(width):
    text = text_of(0.5, 0.25, 0.1, notes=("the machine is busy " * 5,), width=width)
    assert all(len(line) <= width for line in text.splitlines())


def test_notebooks_get_html():
    html = tradeoff_of(0.5, 0.25)._repr_html_()
    assert html.startswith("<pre")
    assert "KV cache of GPT" in html
