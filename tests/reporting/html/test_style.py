"""What style.css promises: contrast, narrow screens, paper."""

import colorsys
import re
from importlib.resources import files

import numpy as np
import pytest
from example_pages import example_page

from tinytorch.reporting.html.page import render_page

CSS = files("tinytorch.reporting.html").joinpath("style.css").read_text("utf-8")
PAIRS = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", CSS))
WORDS = ("ink", "muted", "accent", "good", "bad", "warn", "open")
SERIES = tuple(f"series-{number}" for number in range(1, 9))
# WCAG 2.2, level AA: words, and parts of pictures.
WORDS_CONTRAST, PICTURE_CONTRAST = 4.5, 3.0


def linear(colour):
    """Give red, green and blue as light, not as numbers for a screen."""
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    dark, light = sorted(linear(each) @ [0.2126, 0.7152, 0.0722] for each in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["paper", "card", "shade"])
def test_colours_can_be_told_from_their_ground(mode, ground):
    below = PAIRS[ground].split(", ")[mode]
    found = {name: contrast(PAIRS[name].split(", ")[mode], below) for name in (*WORDS, *SERIES)}
    least = dict.fromkeys(WORDS, WORDS_CONTRAST) | dict.fromkeys(SERIES, PICTURE_CONTRAST)
    if ground != "card":  # Pictures stand on cards; behind them it is a little darker.
        least |= dict.fromkeys(SERIES, 0.9 * PICTURE_CONTRAST)
    assert {name: value for name, value in found.items() if value < least[name]} == {}


def hue(colour):
    return colorsys.rgb_to_hsv(*(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)))[0] * 360


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_what_is_open_looks_neither_like_a_failure_nor_like_a_warning(mode):
    tones = {name: hue(PAIRS[name].split(", ")[mode]) for name in ("open", "bad", "warn", "good")}
    own = tones.pop("open")
    apart = {name: abs((own - other + 180) % 360 - 180) for name, other in tones.items()}
    assert min(apart.values()) > 60, apart


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_does_not_scroll_sideways(browser_page, dark):
    page = browser_page(render_page(example_page("a-rather-long-name" * 9)), width=390, dark=dark)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    # What is wider scrolls inside of its own frame, which keys can reach.
    inside = "e => e.scrollWidth > e.clientWidth && e.tabIndex === 0"
    assert page.locator("#wide .scroll").evaluate(inside)
    assert page.locator("#picture .scroll").evaluate(inside)


def test_contents_stay_in_view_on_a_wide_screen(browser_page):
    page = browser_page(render_page(example_page()), width=1280)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert page.locator("nav.contents").bounding_box()["y"] >= 0


def test_paper_has_no_buttons_and_no_contents_but_everything_else(browser_page):
    page = browser_page(render_page(example_page()), width=794, dark=True)
    page.emulate_media(media="print")
    hidden = page.locator("nav.contents, #theme, .tools, .fold, .skip")
    assert all(not each.is_visible() for each in hidden.all())
    assert page.locator("#layers thead").get_by_text("time").is_visible()
    assert page.locator("#more").is_visible()
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    bar = page.locator(".bar").first
    assert bar.evaluate("e => getComputedStyle(e).printColorAdjust") == "exact"
    assert page.pdf().startswith(b"%PDF")


def test_keys_can_be_seen(browser_page):
    page = browser_page(render_page(example_page()))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
