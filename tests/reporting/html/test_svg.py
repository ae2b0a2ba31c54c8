import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tinytorch.reporting.html.plot import (
    Scale,
    drawing,
    polyline,
    text,
)

positive = st.floats(1e-9, 1e12)
# Ends closer than this are one number to a reader.
LEAST_SPAN = 1e-6


@st.composite
def scales(draw):
    low, high = sorted((draw(positive), draw(positive)))
    assume(high > low * (1 + LEAST_SPAN))
    return Scale(low, high, *draw(st.sampled_from([(0, 500), (300, 20)])), draw(st.booleans()))


@given(scales(), st.integers(2, 12))
def test_ticks_lie_inside_in_order_and_are_no_more_than_asked_for(scale, most):
    ticks = scale.ticks(most)
    assert len(ticks) <= most
    assert all(a < b for a, b in pairwise(ticks))
    spare = 1e-6 * (scale.high - scale.low)
    assert all(scale.low - spare <= tick <= scale.high + spare for tick in ticks)


@given(scales(), positive, positive)
def test_places_keep_the_order_and_stay_on_the_picture(scale, one, other):
    low, high = sorted((one, other))
    forwards = 1 if scale.end > scale.start else -1
    assert forwards * scale(low) <= forwards * scale(high)
    assert min(scale.start, scale.end) <= scale(one) <= max(scale.start, scale.end)


def test_ends_of_a_scale_are_the_ends_of_the_picture():
    for is_log in (False, True):
        scale = Scale(1, 100, 10, 210, is_log)
        assert (scale(1), scale(100)) == (10, 210)
    assert Scale(1, 100, 0, 200, is_log=True)(10) == 100
    assert Scale(0, 0, 0, 200)(0) == 100


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (Scale(0, 10, 0, 1), (0, 2, 4, 6, 8, 10)),
        (Scale(0, 0.3, 0, 1), (0, 0.1, 0.2, 0.3)),
        (Scale(-1, 1, 0, 1), (-1, -0.5, 0, 0.5, 1)),
        (Scale(5, 5, 0, 1), (5,)),
        (Scale(1, 100, 0, 1, is_log=True), (1, 10, 100)),
        (Scale(0.5, 5, 0, 1, is_log=True), (0.5, 1, 2, 5)),
        (Scale(0.9, 1.1, 0, 1, is_log=True), (0.9, 0.95, 1.0, 1.05, 1.1)),
        (Scale(1, 1e9, 0, 1, is_log=True), (1, 100, 1e4, 1e6, 1e8)),
    ],
)
def test_ticks_are_round(scale, expected):
    assert scale.ticks() == pytest.approx(expected, rel=1e-12)


def test_zero_has_no_place_on_a_logarithmic_scale_but_the_end():
    assert Scale(1, 10, 0, 100, is_log=True)(0) == 0
    with pytest.raises(AssertionError, match="no place for 0"):
        Scale(0, 10, 0, 100, is_log=True)


def test_a_picture_says_what_it_shows_and_scrolls_where_it_is_too_wide():
    shown = drawing(700, 80, text(1, 2, "a < b"), label="a & b", class_="forest")
    assert '<svg viewBox="0 0 700 80" role="img" class="picture forest"' in shown
    assert "<title>a &amp; b</title>" in shown
    assert '<text x="1" y="2" class="label" text-anchor="start">a &lt; b</text>' in shown
    assert shown.startswith('<div class="scroll">')


def test_a_line_goes_through_its_points():
    assert 'points="0,1.5 2,3"' in polyline([(0, 1.5), (2, 3)], class_="line")
    assert math.isfinite(Scale(0, 1, 0, 1)(math.inf))
