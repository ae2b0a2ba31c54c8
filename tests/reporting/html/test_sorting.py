"""What sorting.js does, in a real browser."""

import json

import pytest
from example_pages import HOSTILE, example_page

from tinytorch.reporting.document import Banner, Cell, Column
from tinytorch.reporting.html.markup import Markup, joined, table
from tinytorch.reporting.html.page import Page, Section, packed, render_page

TREE = ["model", "block.2", "layer 0", "layer 1", "block.10", "head"]
BY_TIME = ["model", "block.10", "block.2", "layer 1", "layer 0", "head"]


def heads(page, section="layers"):
    """Give the visible row headings of the table in a section."""
    rows = page.locator(f"#{section} tbody tr:visible th")
    return [text.strip() for text in rows.all_inner_texts()]


def flat_page(cells):
    columns = [Column("name"), Column("size", "number")]
    rows = [[f"row {n}", cell] for n, cell in enumerate(cells)]
    section = Section("flat", "Flat", table(columns, rows))
    return render_page(Page("flat", Banner("fine", ""), (section,)))


@pytest.fixture
def page(browser_page):
    return browser_page(render_page(example_page()))


def test_a_click_sorts_and_a_tree_stays_a_tree(page):
    assert heads(page) == [*TREE[:-1], "an example"]
    heading = page.get_by_role("button", name="time")
    heading.click()
    assert heads(page) == [*BY_TIME[:-1], "an example"]  # the one without a time stays last
    assert page.locator("#layers th[aria-sort]").get_attribute("aria-sort") == "descending"
    heading.click()
    assert heads(page) == [*TREE[:-1], "an example"]
    assert page.locator("#layers th[aria-sort]").get_attribute("aria-sort") == "ascending"


def test_keys_sort_too_and_names_with_numbers_are_in_order(page):
    page.get_by_role("button", name="layer", exact=True).focus()
    page.keyboard.press("Enter")
    assert heads(page)[1:3] == ["an example", "block.2"]
    page.keyboard.press("Space")
    assert heads(page)[1:3] == ["block.10", "block.2"]


def test_unknown_values_are_last_in_either_order(browser_page):
    cells = [Cell("-"), Cell("2", 2), Cell("10", 10), Cell("0.5", 0.5), Cell("2", 2)]
    page = browser_page(flat_page(cells))
    heading = page.get_by_role("button", name="size")
    heading.click()
    assert heads(page, "flat") == ["row 2", "row 1", "row 4", "row 3", "row 0"]
    heading.click()
    assert heads(page, "flat") == ["row 3", "row 1", "row 4", "row 2", "row 0"]


def test_branches_fold_and_open(page):
    fold = page.get_by_role("button", name="What is inside of block.10")
    assert fold.get_attribute("aria-expanded") == "false"
    fold.press("Enter")
    assert heads(page).count("layer 0") == 2
    page.get_by_role("button", name="Fold all").click()
    assert heads(page) == ["model"]
    page.get_by_role("button", name="Open all").click()
    assert len(heads(page)) == 8


def test_without_scripts_everything_is_shown(browser_page):
    page = browser_page(render_page(example_page()), scripts=False)
    assert len(heads(page)) == 8
    assert page.locator("button.fold:visible, .tools:visible, #theme:visible").count() == 0


def test_the_theme_is_switched_by_keyboard_and_back(page):
    def paper():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = paper()
    button = page.get_by_role("button", name="Show the page in dark colours")
    button.focus()
    page.keyboard.press("Enter")
    dark = paper()
    assert dark != light
    page.get_by_role("button", name="Show the page in light colours").click()
    assert paper() == light


def test_a_system_in_dark_mode_gets_a_dark_page(browser_page, page):
    dark = browser_page(render_page(example_page()), dark=True)
    colour = "getComputedStyle(document.body).backgroundColor"
    assert dark.evaluate(colour) != page.evaluate(colour)
    assert dark.locator("#theme").inner_text() == "Light"


def test_raw_values_are_saved_as_json(page, tmp_path):
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the raw values").click()
    assert download.value.suggested_filename == "tinytorch-report.json"
    download.value.save_as(tmp_path / "saved.json")
    saved = json.loads((tmp_path / "saved.json").read_text("utf-8"))
    assert saved == {"name": "an example", "values": [1.0, None, None]}


def test_scripts_read_what_was_packed(browser_page):
    value = {"name": HOSTILE, "letters": "größer ∞", "many": list(range(1000))}
    body = joined([Markup("<p>packed</p>"), packed(value, "events")])
    page = browser_page(render_page(Page("x", Banner("y", ""), (Section("a", "A", body),))))
    assert page.evaluate("unpack('events')") == value


def test_a_hostile_name_does_nothing(browser_page):
    # A dialog, an error or a request would fail the test at its end.
    page = browser_page(render_page(example_page(HOSTILE)))
    page.get_by_role("button", name="time").click()
    assert page.title() == HOSTILE
    assert HOSTILE in heads(page)
    assert page.locator("#wide h2").inner_text() == HOSTILE


def test_contents_show_where_the_reader_is(page):
    page.locator("nav.contents a", has_text="Appendix").click()
    page.wait_for_selector("nav.contents a[aria-current]")
    assert page.url.endswith("#appendix")


def test_paper_shows_what_is_folded_away(page):
    assert not page.locator("#more").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#more").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not page.locator("#more").is_visible()
