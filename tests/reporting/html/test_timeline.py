import base64
import gzip
import json

import pytest
from document_reading import anchors, page_section
from example_profiles import (
    allocations,
    empty_profile,
    example_profile,
    operation,
    training_profile,
)
from html_reading import Reading
from strange_profiles import hostile_profile

from tinytorch.models.records import Recording
from tinytorch.profiling.layers import operation_spans
from tinytorch.reporting.document import Banner, document_of
from tinytorch.reporting.html import timeline
from tinytorch.reporting.html.page import Page, render_page


def columns(profile):
    """Give what the script gets."""
    (letters,) = Reading(page_section(profile, "timeline").body).texts("script", id="time-spans")
    return json.loads(gzip.decompress(base64.b64decode(letters)))


def busy_profile(count):
    """Give a call with so many short operations, every tenth of them longer."""
    step = 0.01 / count
    operations = tuple(
        operation("add", "head", place * step, step * (0.9 if place % 10 == 0 else 0.1), macs=0)
        for place in range(count)
    )
    return example_profile(recording=Recording(operations, allocations(), 0.02))


def test_the_script_gets_every_span_of_the_recorded_call():
    spans, found = operation_spans(example_profile()), columns(example_profile())
    first = min(span.begin_ns for span in spans)
    assert found["begin"] == [span.begin_ns - first for span in spans]
    assert found["duration"] == [span.end_ns - span.begin_ns for span in spans]
    assert [found["texts"][n] for n in found["name"]] == [span.name for span in spans]


def test_what_an_operation_does_is_told():
    found = columns(example_profile())
    linear = next(i for i, n in enumerate(found["label"]) if found["texts"][n] == "linear")
    assert found["texts"][found["about"][linear]] == (
        "contraction; 1.00k MACs; 400 B; of float32 (4, 10)"
    )
    assert found["texts"][found["layer"][linear]] == "blocks.0.fc"


def test_every_phase_has_lanes_of_its_own():
    body = Reading(page_section(training_profile(), "timeline").body)
    assert [text for text in body.texts("text") if "pass" in text or text == "update"] == [
        "forward pass",
        "backward pass",
        "update",
    ]
    found = columns(training_profile())
    lanes = {}
    for span, top in zip(operation_spans(training_profile()), found["top"], strict=True):
        lanes.setdefault(span.track, set()).add(top)
    forward, backward, update = lanes.values()
    assert max(forward) < min(backward) <= max(backward) < min(update)


def test_the_still_picture_draws_short_neighbours_together():
    body = Reading(page_section(busy_profile(1000), "timeline").body)
    assert any("short ones" in text for text in body.texts("title"))
    assert len(body.all("rect")) < 500


def test_of_too_many_the_longest_are_kept_and_the_rest_is_counted(monkeypatch):
    monkeypatch.setattr(timeline, "MOST_SPANS", 60)
    profile = busy_profile(500)
    section = page_section(profile, "timeline")
    found = columns(profile)
    assert len(found["begin"]) == 60
    long_ns = 0.9 * 0.01 / 500 * 1e9
    assert sum(each >= long_ns for each in found["duration"]) == 50 + 2  # and two layers
    total = len(operation_spans(profile))
    assert f"The {total - 60} shortest of {total} layers and operations are left out" in (
        section.body
    )


def test_colours_are_those_of_the_legend():
    body = Reading(page_section(example_profile(), "timeline").body)
    legend = {given["class"] for given in body.all("li")}
    assert {given["class"] for given in body.all("rect")} <= legend


def test_without_operations_there_is_no_timeline():
    assert "timeline" not in anchors(document_of(empty_profile()))


def test_hostile_names_are_text():
    assert "<script>alert" not in page_section(hostile_profile(), "timeline").body


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def page(browser_page):
    section = page_section(example_profile(), "timeline")
    found = browser_page(render_page(Page("time", Banner("", ""), (section,))))
    found.wait_for_selector(".time-line[data-ready]")
    return found


def view(page):
    """Give begin and length of what is shown, after the picture was drawn again."""
    page.evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
    given = page.locator(".time-line").evaluate("(each) => ({...each.dataset})")
    return int(given["from"]), int(given["span"])


def test_buttons_zoom_and_move(page):
    begin, whole = view(page)
    page.get_by_role("button", name="Zoom in").click()
    zoomed_begin, zoomed = view(page)
    assert zoomed < whole
    assert zoomed_begin > begin
    page.get_by_role("button", name="Later").click()
    assert view(page)[0] > zoomed_begin
    page.get_by_role("button", name="Whole call", exact=True).click()
    assert view(page) == (begin, whole)


def test_keys_zoom_and_move(page):
    page.locator(".time-line").focus()
    whole = view(page)[1]
    page.keyboard.press("+")
    begin, zoomed = view(page)
    assert zoomed < whole
    page.keyboard.press("ArrowLeft")
    assert view(page)[0] < begin
    page.keyboard.press("Escape")
    assert view(page) == (0, whole)


def test_the_wheel_zooms_only_a_picture_that_was_chosen(page):
    picture = page.locator(".time-line")
    picture.hover(position={"x": 200, "y": 40})
    whole = view(page)[1]
    page.mouse.wheel(0, -200)
    assert view(page)[1] == whole
    picture.click(position={"x": 200, "y": 40})
    page.mouse.wheel(0, -200)
    page.wait_for_function(
        "(whole) => Number(document.querySelector('.time-line').dataset.span) < whole", arg=whole
    )
    assert view(page)[1] < whole


def test_dragging_moves_and_pointing_tells(page):
    page.get_by_role("button", name="Zoom in").click()
    begin, _ = view(page)
    area = page.locator(".time-line").bounding_box()
    x, y = area["x"] + 300, area["y"] + 30
    page.mouse.move(x, y)
    assert "ms" in page.locator("#time-about").inner_text()
    page.mouse.down()
    page.mouse.move(x - 100, y, steps=4)
    page.mouse.up()
    assert view(page)[0] > begin
