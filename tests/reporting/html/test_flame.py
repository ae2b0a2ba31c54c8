import pytest
from document_reading import page_section
from example_profiles import empty_profile, example_profile, layer_calls, training_profile
from html_reading import Reading
from strange_profiles import LONG, hostile_profile, wide_profile

from tinytorch.measure.samples import Samples
from tinytorch.reporting.document import Banner
from tinytorch.reporting.html.flame import flame_blocks
from tinytorch.reporting.html.page import Page, render_page


def by_name(profile):
    return {block.name: block for block in flame_blocks(profile)}


def test_boxes_are_as_wide_as_their_time():
    blocks = by_name(example_profile())
    assert blocks["example"].width == 1
    assert blocks["Net"].width == pytest.approx(0.9)
    assert blocks["blocks.0"].width == pytest.approx(0.3)
    assert blocks["blocks.1"].start == pytest.approx(0.3)
    assert blocks["blocks.1.fc"].width == pytest.approx(0.2)
    assert blocks["head"].start == pytest.approx(0.6)


@pytest.mark.parametrize("profile", [example_profile(), training_profile(), wide_profile(50)])
def test_what_is_inside_stays_inside_and_neighbours_do_not_overlap(profile):
    blocks = flame_blocks(profile)
    rounding = 1e-9
    for block in blocks[1:]:
        outer = blocks[block.parent]
        assert outer.depth == block.depth - 1
        assert block.start >= outer.start - rounding
        assert block.start + block.width <= outer.start + outer.width + rounding
        siblings = [each for each in blocks if each.parent == block.parent and each is not block]
        for other in siblings:
            before, after = sorted((block, other), key=lambda each: each.start)
            assert before.start + before.width <= after.start + rounding


def test_a_layer_that_is_called_from_elsewhere_does_not_stick_out():
    calls = [("a", 0.0, 1.0), ("a.b", 2.0, 9.0)]
    profile = example_profile(
        kinds={"": "Net", "a": "Outer", "a.b": "Inner"},
        runs=(layer_calls(calls),) * 4,
        watched=Samples("watched", (0.010,) * 4),
    )
    blocks = by_name(profile)
    assert blocks["a"].width >= blocks["a.b"].width
    assert blocks["a"].share == pytest.approx(0.1)  # what is said stays what was measured


def test_a_training_step_has_its_backward_pass_and_update():
    blocks = by_name(training_profile())
    assert blocks["<backward>"].width == pytest.approx(0.3)
    assert blocks["<update>"].width == pytest.approx(0.1)


def test_the_still_picture_names_times_and_kinds():
    body = Reading(page_section(example_profile(), "time").body)
    assert "head Linear: 20.0% of the call, 2.00 ms, 500 MACs" in body.texts("title")
    assert "Net Net: 90.0% of the call, 9.00 ms, self 1.00 ms, 2.50k MACs" in body.texts("title")
    assert "Linear 60.0%" in body.texts("li")


def test_narrow_layers_are_drawn_together_and_counted():
    section = page_section(wide_profile(), "time")
    assert "2000 of 2001 layers take less than 0.1% of the call each" in section.body
    assert any("2000 narrow ones" in text for text in Reading(section.body).texts("title"))


def test_without_layers_it_says_so():
    assert "No layer was timed" in page_section(empty_profile(), "time").body


def test_names_are_whole_in_the_title_and_escaped():
    titles = Reading(page_section(hostile_profile(), "time").body).texts("title")
    assert any(LONG in text for text in titles)
    assert any(text.startswith("<script>alert(1)</script>") for text in titles)


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def shown(browser_page):
    def show(profile, **settings):
        section = page_section(profile, "time")
        page = browser_page(render_page(Page("flame", Banner("", ""), (section,))), **settings)
        page.wait_for_selector("#flame[data-ready]")
        return page

    return show


def width(page, name):
    """Give the part of the picture that a box covers."""
    box = page.locator(f'#flame [aria-label^="{name} ("]').bounding_box()
    return box["width"] / page.locator("#flame > svg").bounding_box()["width"]


def test_a_click_zooms_in_and_the_button_goes_back(shown):
    page = shown(example_profile())
    assert width(page, "blocks.0") == pytest.approx(0.3, abs=0.01)
    page.locator('#flame [aria-label^="blocks.0 ("]').click(position={"x": 3, "y": 3})
    assert width(page, "blocks.0") == pytest.approx(1, abs=0.01)
    assert page.locator('#flame [aria-label^="head ("]').count() == 0
    assert page.locator("#flame-about").inner_text().startswith("blocks.0 (Block): 30.0%")
    page.get_by_role("button", name="Whole call", exact=True).click()
    assert width(page, "blocks.0") == pytest.approx(0.3, abs=0.01)


def test_the_keyboard_moves_zooms_and_goes_back(shown):
    page = shown(example_profile())
    page.locator('#flame [tabindex="0"]').focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.ariaLabel").startswith("blocks.1 (")
    page.keyboard.press("Enter")
    assert width(page, "blocks.1") == pytest.approx(1, abs=0.01)
    page.keyboard.press("Escape")
    assert width(page, "blocks.1") == pytest.approx(0.3 / 0.9, abs=0.01)  # of the model
    page.keyboard.press("Escape")
    assert width(page, "blocks.1") == pytest.approx(0.3, abs=0.01)


def test_a_search_marks_what_fits_and_says_its_share(shown):
    page = shown(example_profile())
    page.get_by_role("searchbox").fill("BLOCKS.0")
    assert page.locator("#flame-found").inner_text() == "2 layers, 30.0% of the call"
    bright = page.locator("#flame svg:has(> rect:not(.dimmed)) > title")
    assert {text.partition(" ")[0] for text in bright.all_text_contents()} == {
        "blocks.0",
        "blocks.0.fc",
    }
    page.get_by_role("searchbox").press("Escape")
    assert page.locator("#flame rect.dimmed").count() == 0


def test_narrow_layers_open_by_a_click(shown):
    page = shown(wide_profile())
    page.locator("#flame [data-first]").click()
    assert page.locator("#flame [aria-label^='layer']").count() > 10


def test_names_in_the_data_do_nothing(shown):
    page = shown(hostile_profile())
    assert page.locator("#flame [data-block]").count() > 5
    assert page.locator("#flame script").count() == 0
