import re

import pytest
from reported_optimizations import (
    EVERY_KIND,
    HARMLESS,
    best_is_a_stack,
    harmful_names,
    limits_broken,
    nothing_helps,
    nothing_tried,
    plan,
    timed,
)

from tinytorch.reporting.html.optimization_page import optimization_page
from tinytorch.reporting.html.page import report_html
from tinytorch.reporting.optimization_words import headline
from tinytorch.tuning.optimization import Optimization

PHONE = 390


def anchors(optimization):
    return [each.anchor for each in optimization_page(optimization).sections]


def section(optimization, anchor):
    found = {each.anchor: each for each in optimization_page(optimization).sections}
    return found[anchor]


def test_the_banner_is_the_verdict_of_the_terminal():
    banner = optimization_page(best_is_a_stack()).banner
    assert banner.verdict == "2.50x faster"
    assert banner.sentence.startswith(headline(best_is_a_stack()))
    assert "not confirmed" in banner.sentence
    assert banner.tone == "good"
    facts = dict(banner.facts)
    assert facts["time per call"] == "1.00 ms → 400 us"
    assert facts["accuracy"] == "75.00% → 74.85%"
    assert facts["better"] == "3 of 11 attempts"
    assert facts["took"] == "1 min 2 s"


@pytest.mark.parametrize(
    ("make", "tone"),
    [(nothing_helps, "neutral"), (nothing_tried, "unknown"), (limits_broken, "bad")],
)
def test_the_tone_does_not_promise_what_is_not_there(make, tone):
    assert optimization_page(make()).banner.tone == tone


def test_an_interrupt_is_said_in_the_banner():
    assert "It was interrupted" in optimization_page(nothing_tried()).banner.sentence


def test_every_part_has_its_section():
    assert anchors(best_is_a_stack())[:6] == [
        "speedups",
        "why",
        "advice",
        "attempts",
        "parts",
        "trade-offs",
    ]
    assert anchors(best_is_a_stack())[-1] == "appendix"
    assert anchors(limits_broken())[0] == "limits"


def test_the_profile_of_the_model_as_it_was_is_shown():
    found = anchors(best_is_a_stack())
    kept = anchors(Optimization.from_dict(best_is_a_stack().to_dict()))
    assert {"time", "layers", "roofline"} <= set(found) - set(kept)


def test_the_parts_say_what_they_bring():
    body = section(best_is_a_stack(), "parts").body
    assert "2.00x (1.99x to 2.01x)" in body
    assert "compiled-kernels: not measured: the budget is spent" in body


def test_the_snippet_is_there_where_something_helps():
    body = section(best_is_a_stack(), "snippet").body
    assert "<pre" in body
    assert "Quantize(" in body
    assert "snippet" not in anchors(nothing_helps())


def test_the_snippet_loads_the_target():
    found = best_is_a_stack(name="own", target="own.py:make")
    for each in (found, Optimization.from_dict(found.to_dict())):
        assert "load_workload(&quot;own.py:make&quot;)" in section(each, "snippet").body


def test_plans_of_another_version_give_no_program():
    odd = timed("a", plans=(plan("Vanished"),))
    body = section(best_is_a_stack(attempts=(odd,)), "snippet").body
    assert "There is no program for it" in body


def test_broken_limits_stand_out():
    body = section(limits_broken(), "limits").body
    assert '<li class="bad">time of a call: 1.00 ms, at most 100 us: broken</li>' in body
    assert '<li class="good">file on disk' in body


@pytest.mark.parametrize("make", EVERY_KIND, ids=lambda make: make.__name__)
def test_anchors_are_unique_and_the_page_is_found_by_type(make):
    html = report_html(make())
    named = re.findall(r'<section id="([^"]*)"', html)
    assert len(named) == len(set(named)) > 3
    assert optimization_page(make()).raw == make().to_dict()


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
    first = page.locator("#attempts details").first
    assert not first.locator("table").is_visible()
    first.locator("summary").press("Enter")
    assert first.locator("table").is_visible()


@pytest.mark.parametrize("make", [limits_broken, harmful_names])
def test_a_phone_does_not_scroll_sideways(browser_page, make):
    page = browser_page(report_html(make()), width=PHONE)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE


def test_the_banner_has_the_numbers_of_the_fresh_comparison():
    stack = ("int8-dynamic", "compiled-kernels")
    banner = optimization_page(best_is_a_stack(confirmations=(timed(*stack, ratio=0.5),))).banner
    assert banner.verdict == "2.00x faster"
    assert "Confirmed: this was measured again" in banner.sentence
    assert dict(banner.facts)["time per call"] == "1.00 ms → 500 us"
    again = (timed(*stack, ratio=1.2),)
    refuted = optimization_page(best_is_a_stack(confirmations=again)).banner
    assert (refuted.verdict, refuted.tone) == ("Not confirmed", "unknown")


def test_the_chosen_attempt_is_marked_in_the_table():
    again = timed("int8-dynamic", "compiled-kernels", ratio=0.5)
    found = best_is_a_stack(confirmations=(again,))
    assert "★ int8-dynamic + compiled-kernels" in str(section(found, "attempts").body)
