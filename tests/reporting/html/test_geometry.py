"""Where things stand: letters beside points by arithmetic, whole pages in a browser."""

from itertools import combinations, pairwise

import pytest
from example_advice import advice_of, curve
from example_boards import some_board
from example_comparisons import with_evidence
from example_gates import every_verdict
from example_judgements import kept_judgement
from example_outcomes import single_stream
from example_profiles import example_profile, training_profile
from example_records import series
from example_tours import faster, smaller, tour_of
from hypothesis import given
from hypothesis import strategies as st
from reported_optimizations import best_is_a_stack, harmful_names, limits_broken

from tinytorch.records.history import trends
from tinytorch.reporting.html.page import report_html
from tinytorch.reporting.html.plot import NARROWEST, WIDEST, Scale, Spot, across_axis, placed_labels

HEIGHT = 254.0
WIDTHS = (NARROWEST, 330.0, 700.0, WIDEST)


def corners(box, width):
    middle = box.x * width / 100
    return middle + box.left, box.top, middle + box.right, box.bottom


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


spots = st.lists(
    st.builds(Spot, st.floats(0, 100), st.floats(0, HEIGHT), st.sampled_from(["A", "BC"])),
    max_size=25,
)


@given(spots)
def test_letters_cover_neither_points_nor_each_other_at_any_width(given_spots):
    placed = placed_labels(given_spots, HEIGHT)
    for width in WIDTHS:
        boxes = [corners(box, width) for _, box in placed]
        assert not any(overlap(*pair) for pair in combinations(boxes, 2))
        for left, top, right, bottom in boxes:
            assert min(left, width - right) >= -1e-6
            assert min(top, HEIGHT - bottom) >= 0
            dots = ((each.x * width / 100, each.y) for each in given_spots)
            assert not any(left < x < right and top < y < bottom for x, y in dots)


def test_a_crowd_has_all_of_its_letters():
    crowd = [Spot(50 + 2.5 * k, 120 + 5 * (k % 3), chr(65 + k)) for k in range(14)]
    assert "".join(each.text for each, _ in placed_labels(crowd, HEIGHT)) == "ABCDEFGHIJKLMN"


def test_labels_of_an_axis_keep_apart_on_a_phone():
    drawn = "".join(across_axis(Scale(75, 125, 0, 100, is_log=True), 10, "{:.3f} ms".format))
    places = [float(part.partition("%")[0]) for part in drawn.split('<text x="')[1:]]
    assert len(places) >= 2
    assert all(NARROWEST * (b - a) / 100 > 6 * len("100 ms") for a, b in pairwise(places))


# ---------------------------------------------------------------- in a browser

PAGES = {
    "profile": example_profile,
    "training": training_profile,
    "comparison": with_evidence,
    "optimization": best_is_a_stack,
    "limits": limits_broken,
    "long names": harmful_names,
    "suite": lambda: (single_stream(), single_stream(factor=2.0, name="mlp/reference")),
    "history": lambda: trends(series([0.002, 0.0021] * 20)),
    "board": some_board,
    "judgement": kept_judgement,
    "gate": every_verdict,
    "advice": lambda: advice_of(curve()),
    "tour": lambda: tour_of(faster(), smaller()),
}
CLIPPED = """() => [...document.querySelectorAll(".scroll")]
  .filter(each => each.clientWidth && each.scrollWidth > each.clientWidth)
  .map(each => each.closest("section").id)"""
OVERLAPS = """() => {
  const found = [];
  for (const picture of document.querySelectorAll(".plot > svg:not(.cells)")) {
    const boxes = [...picture.querySelectorAll("text")]
      .map(each => [each.textContent, each.getBoundingClientRect()])
      .filter(([, box]) => box.width);
    boxes.forEach(([words, a], place) => {
      if (a.left < 0 || a.right > innerWidth) found.push([words, "outside"]);
      for (const [other, b] of boxes.slice(place + 1))
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 &&
            b.top < a.bottom - 4)
          found.push([words, other]);
    });
  }
  return found;
}"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_clipped_and_no_words_collide(browser_page, name, width):
    page = browser_page(report_html(PAGES[name]()), width=width)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    assert page.evaluate(OVERLAPS) == []
    if width == 1280:
        assert page.evaluate(CLIPPED) == []


def test_names_in_tables_can_be_read_on_a_phone(browser_page):
    page = browser_page(report_html(best_is_a_stack()), width=390)
    name = page.locator("#attempts .table tbody th").first
    assert name.bounding_box()["width"] >= 130
    assert name.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_cards_open_without_scripts(browser_page):
    page = browser_page(report_html(best_is_a_stack()), scripts=False)
    card = page.locator("#next details.card").first
    assert not card.locator("li").first.is_visible()
    card.locator("summary").click()
    assert card.locator("li").first.is_visible()
