import dataclasses

import pytest
from example_pages import HOSTILE
from example_profiles import (
    empty_profile,
    example_ceilings,
    example_profile,
    moving_profile,
    training_profile,
)
from html_reading import Reading
from parts import require_part
from strange_profiles import gpu_profile, hostile_profile, single_call_profile, wide_profile

from tinytorch.measure.counters import Counters
from tinytorch.profiling.profile import find_facts
from tinytorch.reporting.document import Strong, plain_text
from tinytorch.reporting.html.page import page_of as profile_page
from tinytorch.reporting.html.page import render_page, report_html
from tinytorch.reporting.profile_words import reasons
from tinytorch.tuning.advice import Advice

KILOBYTE = 1000
MOST = 300 * KILOBYTE
ANCHORS = [
    "time",
    "layers",
    "faster",
    "roofline",
    "operations",
    "timeline",
    "memory",
    "latency",
    "caches",
    "caveats",
    "appendix",
]


def said(page):
    """Give the facts of the banner as plain text."""
    return {name: plain_text(words) for name, words in page.banner.facts}


def test_the_banner_says_what_the_terminal_says():
    profile = example_profile()
    banner = profile_page(profile).banner
    assert banner.verdict == "10.0 ms per call"
    assert banner.sentence == " ".join(reasons(profile, find_facts(profile)))
    found = {name: value for name, (value, _) in banner.facts}
    assert found == {
        "latency": Strong("10.0 ms"),
        "throughput": Strong("400 examples/s"),
        "work": Strong("5.00 kFLOP"),
        "achieved": Strong("508 kFLOP/s"),
        "parameters": Strong("250"),
        "peak memory": Strong("1.64 KiB"),
    }


def test_a_fact_stands_on_the_page_once():
    html = report_html(example_profile())
    body = html[html.index("<body") : html.index('id="raw"')]
    assert body.count("50.8% of the measured float32 peak") == 1


def test_every_section_is_there_in_its_order():
    page = profile_page(example_profile())
    assert [section.anchor for section in page.sections if section.title] == ANCHORS
    assert page.title == "Profile of example"
    assert page.subtitle == "Net, core, cpu, inference, float32, batch 4"


def test_the_raw_values_are_the_profile():
    profile = example_profile()
    assert profile_page(profile).raw == profile.to_dict()


def test_what_was_not_measured_is_not_made_up():
    page = profile_page(example_profile(ceilings=None))
    assert "the float32 peak was not measured" in said(page)["achieved"]
    assert "caches" not in [section.anchor for section in page.sections]
    assert said(profile_page(empty_profile()))["work"].startswith("unknown")
    assert said(profile_page(moving_profile()))["work"] == "0 FLOP  400 B moved"
    assert "n=1: variation unknown" in said(profile_page(single_call_profile()))["latency"]


def test_an_idle_gpu_is_in_the_banner():
    page = profile_page(gpu_profile())
    assert said(page)["device idle"].startswith("60.0%")
    assert "host-bound, the device is idle 60.0% of the time" in page.banner.sentence


def test_counters_have_a_section():
    counters = Counters({"cycles": 100}, {"misses": "not allowed"}, 10)
    page = profile_page(example_profile(counters=counters))
    assert "counters" in [section.anchor for section in page.sections]


@pytest.mark.parametrize(
    "profile",
    [
        example_profile(),
        example_profile(ceilings=None),
        training_profile(),
        empty_profile(),
        moving_profile(),
        gpu_profile(),
        single_call_profile(),
        hostile_profile(),
    ],
    ids=[
        "usual",
        "no ceilings",
        "training",
        "no layers",
        "no FLOPs",
        "GPU",
        "one call",
        "hostile",
    ],
)
def test_any_profile_makes_a_well_formed_page(profile):
    reading = Reading(render_page(profile_page(profile)))
    assert reading.texts("h2")[0] == "Where the time goes"
    assert "svg" in [tag for tag, _, _ in reading.elements]


def test_no_name_becomes_markup():
    html = render_page(profile_page(hostile_profile()))
    assert HOSTILE not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_thousands_of_layers_stay_a_page_that_can_be_mailed():
    html = render_page(profile_page(wide_profile()))
    assert len(html.encode()) < 1000 * KILOBYTE
    assert "rows are left out" in html


def gpt2_profile(**changes):
    torch, transformers = require_part("torch"), require_part("transformers")
    from tinytorch import profile_model

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**changes)).eval()
    ids = torch.zeros(1, 64, dtype=torch.long)
    profile = profile_model(model, ids, runs=3, ceilings=False)
    return dataclasses.replace(profile, ceilings=example_ceilings())


def test_a_profile_with_the_layers_of_gpt2_fits_into_300_kb():
    profile = gpt2_profile(n_embd=96, vocab_size=500)
    assert len(profile.layers) > 150
    assert len(render_page(profile_page(profile)).encode()) < MOST


@pytest.mark.slow
def test_a_profile_of_gpt2_fits_into_300_kb():
    assert len(render_page(profile_page(gpt2_profile())).encode()) < MOST


# ---------------------------------------------------------------- in a browser


def test_a_phone_shows_the_page_without_moving_sideways(browser_page):
    page = browser_page(render_page(profile_page(hostile_profile())), width=390)
    page.wait_for_selector("#flame[data-ready]")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390


def test_layers_are_sorted_by_a_click_and_blocks_open(browser_page):
    page = browser_page(render_page(profile_page(example_profile())))
    rows = page.locator("#layers tbody tr:visible th")
    before = rows.all_inner_texts()
    assert not any("blocks.1.fc" in text for text in before)
    page.get_by_role("button", name="What is inside of blocks.*.fc", exact=True).click()
    assert any("blocks.1.fc" in text for text in rows.all_inner_texts())
    page.locator("#layers thead").get_by_role("button", name="time").click()
    assert page.locator("#layers th[aria-sort]").inner_text().startswith("time")
    assert rows.nth(0).inner_text().strip() == "Net"


def test_without_scripts_everything_can_be_read(browser_page):
    page = browser_page(render_page(profile_page(example_profile())), scripts=False)
    assert page.locator("#time svg.fluid svg").count() == 7
    assert page.locator("#flame-search").is_hidden()
    assert page.locator("#layers tbody th", has_text="blocks.1.fc").is_visible()
    assert page.locator("#timeline svg.fluid svg").count() > 5


def test_advice_stands_after_what_it_rests_on():
    advice = Advice("rule", "Hold the weights in 8 bits", ("94% of the time",), "int8-weights")
    page = profile_page(example_profile(), advice=(advice,))
    anchors = [section.anchor for section in page.sections]
    assert anchors.index("advice") == anchors.index("faster") + 1
    assert "Hold the weights in 8 bits" in render_page(page)
