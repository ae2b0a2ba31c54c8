"""The arithmetic of the trade-off, on comparisons that are made up."""

import json

import pytest
from example_comparisons import comparison
from terminal import shown

from tinytorch.transforms.kv_cache import CachePoint, CacheTradeoff


def tradeoff_of(ratios, *, lengths=(10, 20, 40), **changes):
    """Give a trade-off whose steps without cache take 1 ms, and with it that times the ratio."""
    points = tuple(
        CachePoint(length, 1000 * length, comparison(ratio))
        for length, ratio in zip(lengths, ratios, strict=True)
    )
    fields = {
        "name": "GPT",
        "backend": "numpy",
        "batch_size": 1,
        "points": points,
        "largest_difference": 1e-6,
    }
    return CacheTradeoff(**(fields | changes))


def test_a_point_says_what_the_cache_saves():
    point = tradeoff_of([0.5, 0.5, 0.25]).points[2]
    assert point.plain_s == pytest.approx(1e-3)
    # The made-up rounds spread by 1% around the ratio.
    assert point.cached_s == pytest.approx(0.25e-3, rel=0.01)
    assert point.saved_s == pytest.approx(0.75e-3, rel=0.01)
    assert point.speedup == pytest.approx(4, rel=0.01)
    assert point.verdict == "faster"


@pytest.mark.parametrize(
    ("ratios", "length"),
    [
        ([0.5, 0.5, 0.5], 10),
        ([1.5, 0.8, 0.5], 20),
        ([0.5, 1.0, 0.5], 40),  # what is not shown in between does not count
        ([0.5, 0.5, 1.5], None),
        ([1.0, 1.0, 1.0], None),
    ],
)
def test_it_breaks_even_where_it_is_shown_to_be_faster_from_there_on(ratios, length):
    assert tradeoff_of(ratios).break_even == length


def test_totals_add_up_every_step_on_the_lines_between():
    lengths = (3, 5, 9)
    found = tradeoff_of([0.2, 0.4, 0.8], lengths=lengths)
    measured = {point.length: point.cached_s for point in found.points}
    wanted = 0.0
    for position in range(3, 10):
        low = max(length for length in lengths if length <= position)
        high = min(length for length in lengths if length >= position)
        share = 0 if high == low else (position - low) / (high - low)
        wanted += measured[low] + share * (measured[high] - measured[low])
    assert found.cached_total_s == pytest.approx(wanted)
    assert found.plain_total_s == pytest.approx(7e-3)
    assert found.saved_total_s == pytest.approx(7e-3 - wanted)


def test_one_length_has_a_total_of_one_step():
    assert tradeoff_of([0.5], lengths=(7,)).plain_total_s == pytest.approx(1e-3)


def test_it_can_be_written_as_json():
    fields = json.loads(json.dumps(tradeoff_of([0.5, 0.5, 0.5]).to_dict(), allow_nan=False))
    assert fields["break_even"] == 10
    assert [point["cache_bytes"] for point in fields["points"]] == [10000, 20000, 40000]
    assert fields["points"][0]["comparison"]["verdict"] == "faster"


def test_it_shows_itself():
    assert "KV cache of GPT" in shown(tradeoff_of([0.5, 0.5, 0.5]))


def test_notebooks_show_it_too():
    assert "KV cache of GPT" in tradeoff_of([0.5, 0.5, 0.5])._repr_html_()
