import re

import pytest
from document_reading import anchors as document_anchors
from reported_optimizations import (
    EVERY_KIND,
    HARMLESS,
    best_is_a_stack,
    harmful_names,
    limits_broken,
    nothing_tried,
)

from tinytorch.reporting.html.page import page_of, report_html
from tinytorch.reporting.optimization import optimization_document
from tinytorch.tuning.optimization import Optimization

PHONE = 390


def anchors(optimization):
    return [each.anchor for each in page_of(optimization).sections]


def test_every_part_of_the_document_has_its_section():
    found = anchors(best_is_a_stack())
    known = document_anchors(optimization_document(best_is_a_stack()))
    known.remove("unused")  # among the details of the attempts
    assert found == [*known, "appendix"]


def test_what_was_tried_comes_right_after_the_verdict():
    for make in EVERY_KIND:
        assert anchors(make())[0] == "attempts"


def test_the_profile_of_the_baseline_is_drawn():
    html = report_html(best_is_a_stack())
    assert 'id="flame-blocks"' in html
    assert "Each box is a layer" in html
    kept = report_html(Optimization.from_dict(best_is_a_stack().to_dict()))
    assert 'id="flame-blocks"' not in kept


def test_points_have_the_numbers_of_the_attempts():
    html = report_html(best_is_a_stack())
    assert "int8-dynamic + compiled-kernels: 40.0% (39.8% to 40.2%); -0.15 points" in html
    assert "baseline: 100.0%; 100.0%" in html


@pytest.mark.parametrize("make", EVERY_KIND, ids=lambda make: make.__name__)
def test_anchors_are_unique_and_the_page_is_found_by_type(make):
    html = report_html(make())
    named = re.findall(r'<section id="([^"]*)"', html)
    assert len(named) == len(set(named)) > 3
    assert page_of(make()).raw == make().to_dict()


def test_names_stay_text():
    html = report_html(harmful_names())
    assert HARMLESS not in html
    assert "&lt;script&gt;alert(1)" in html


# ---------------------------------------------------------------- in a browser


@pytest.mark.parametrize("make", [harmful_names, nothing_tried])
def test_a_browser_shows_it_without_complaints(browser_page, make):
    page = browser_page(report_html(make()))
    assert page.locator("h1").count() == 1
    assert page.locator("main > section").count() == len(anchors(make()))


def test_attempts_can_be_sorted(browser_page):
    page = browser_page(report_html(best_is_a_stack()))
    names = page.locator("#attempts > .scroll tbody th")
    page.locator("#attempts > .scroll thead button", has_text="took").click()
    by_seconds = names.all_inner_texts()
    page.locator("#attempts > .scroll thead button", has_text="attempt").press("Enter")
    by_name = names.all_inner_texts()
    assert sorted(by_seconds) == sorted(by_name)
    assert by_name[0] == "captured"


def test_what_an_attempt_did_opens_by_keyboard(browser_page):
    page = browser_page(report_html(best_is_a_stack()))
    details = page.locator("#attempts details")
    table = details.nth(1).locator("table")
    for place in (0, 1):
        assert not table.is_visible()
        details.nth(place).locator("summary").first.press("Enter")
    assert table.is_visible()


@pytest.mark.parametrize("make", [limits_broken, harmful_names])
def test_a_phone_does_not_scroll_sideways(browser_page, make):
    page = browser_page(report_html(make()), width=PHONE)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE
