"""Documents of the tour: its chapters, and the whole of it."""

import re
from dataclasses import replace

import pytest
from document_reading import anchors, blocks, rows, section, words
from example_optimizations import optimization
from example_tours import (
    INTRODUCTION,
    WRITING,
    faster,
    no_faster,
    slower,
    smaller,
    tour_of,
    written,
)
from terminal import shown

from tinytorch.reporting.document import Facts, Pictures
from tinytorch.reporting.html.flame import FlameGraph
from tinytorch.reporting.html.page import page_from, report_html
from tinytorch.reporting.terminal import render
from tinytorch.reporting.tour import (
    FAST,
    NEXT_COMMANDS,
    ending_document,
    introduction_document,
    short_line,
    tour_document,
    visit_document,
    writing_document,
)


def chapter(found):
    return visit_document(1, tour_of(found).visits[0])


# ---------------------------------------------------------------- the models


def test_a_mistake_shows_what_it_really_is():
    (chart,) = blocks(introduction_document(INTRODUCTION), Pictures)
    assert [(each.text, each.tone) for each in chart.pictures] == [
        ("a 1 (99%)", ""),
        ("a 9 (61%), is a 4", "bad"),
    ]


def test_generated_text_is_shown_as_it_is():
    assert "It is a truth [bold]<b>universally..." in words(introduction_document(INTRODUCTION))
    html = report_html(tour_of(faster()))
    assert "[bold]&lt;b&gt;universally" in html
    assert "<b>universally" not in html


def test_bright_pixels_are_drawn_and_mistakes_are_marked():
    page = page_from(tour_document(tour_of()))
    (body,) = [each.body for each in page.sections if each.anchor == "models"]
    first, second = re.findall(r'<path d="([^"]+)"', body)
    assert first.count("M") == 26  # a stroke of 26 rows, one run in each
    assert first.startswith("M48 4h8v4h-8z")
    assert second.count("M") == 28
    assert "a 9 (61%), is a 4" in body
    assert "label bad" in body
    assert "⣿" in shown(render(introduction_document(INTRODUCTION)))


# ---------------------------------------------------------------- a chapter


def test_a_chapter_tells_its_story_in_order():
    found = chapter(faster())
    assert found.banner.verdict == "1. cnn: 2.00x faster"
    assert found.banner.sentence.startswith("int8 + fused makes it 2.00x faster (")
    assert found.title.startswith("Can cnn be made faster? It reads digits")
    story = ["confirmation", "why", "advice", "next", "attempts", "unused", "parts"]
    assert anchors(found) == story


def test_the_result_has_both_sides_the_ratio_and_the_margin():
    found = chapter(faster())
    measured = {row[0]: row[1:] for row in rows(found)}
    assert measured["file on disk"] == ["19.5 KiB", "4.88 KiB", "0.25x"]
    assert measured["time per call"][2].startswith("0.50x (")
    assert "margin 1 point" in words(found)
    assert "Baseline: latency 10.0 ms" in words(found)


def test_suggestions_reasons_and_parts_are_told():
    found = chapter(faster())
    assert rows(section(found, "advice"))[0][:3] == [
        "Multiply in 8-bit integers",
        "int8",
        "1.50x (1.20x to 2.40x)",
    ]
    assert "Call it less often" in words(section(found, "next"))
    assert "accuracy 0.75 became 0.5" in words(section(found, "unused"))
    assert "not measured: no copy" in words(section(found, "parts"))


def test_nothing_that_helps_is_said_with_what_is_smaller():
    found = chapter(no_faster())
    assert found.banner.verdict == "1. cnn: Nothing helps"
    assert "Not faster, but smaller: int8 is 4.00x smaller on disk" in words(found)


def test_a_chapter_where_nothing_was_tried_can_be_told():
    found = chapter(optimization(name="gpt"))
    assert "nothing was tried" in found.banner.sentence
    assert anchors(found) == ["attempts"]


# ---------------------------------------------------------------- the end


def test_a_line_sums_a_model_up():
    assert short_line(faster()).startswith("2.00x faster (")
    assert "by int8 + fused, 4.00x smaller on disk" in short_line(faster())
    assert short_line(smaller()).startswith("5.00x smaller on disk by int4")
    assert short_line(no_faster()).startswith("nothing makes it faster; int8: ")


def test_the_end_has_the_next_commands_and_what_it_took():
    found = ending_document(tour_of(faster(), smaller()))
    assert all(f"$ {command}" in words(found) for command, _ in NEXT_COMMANDS)
    assert found.title.startswith("5 attempts: 3 better, 1 inaccurate, 1 not tried; 1 min 41 s")
    assert found.title.endswith("backend numba")
    (facts,) = blocks(found, Facts)
    assert [name for name, _ in facts.pairs] == ["gpt", "cnn", "mlp"]


def test_without_compiled_kernels_the_end_names_what_installs_them():
    for document in (ending_document, tour_document):
        slow = words(document(tour_of(no_faster(), backend="numpy")))
        assert FAST in slow
        assert "was not measured" in slow
        assert FAST not in words(document(tour_of(faster())))


def test_an_interrupted_tour_says_so():
    for document in (ending_document, tour_document):
        sentence = document(tour_of(faster(), was_interrupted=True)).banner.sentence
        assert "Interrupted" in sentence
        assert "Interrupted" not in document(tour_of(faster())).banner.sentence


# ---------------------------------------------------------------- the whole


def test_both_models_have_their_sections_under_their_own_names():
    found = tour_document(tour_of(faster(), smaller()))
    assert len(set(anchors(found))) == len(anchors(found))
    assert anchors(found)[0] == "models"
    assert anchors(found)[-1] == "next"
    assert {"gpt", "cnn", "mlp", "cnn-why"} <= set(anchors(found))
    cnn = [each for each in found.blocks if each.anchor.startswith("cnn")]
    assert all(each.title.startswith("cnn: ") for each in cnn)


def test_no_identifier_is_given_twice():
    tour = tour_of(faster(), faster())
    assert len(blocks(tour_document(tour), FlameGraph)) == 1
    found = re.findall(r'\sid="([^"]+)"', report_html(tour))
    assert sorted(set(found)) == sorted(found)
    assert "flame" in found


def test_the_banner_names_what_helped_and_is_honest_when_nothing_did():
    banner = tour_document(tour_of(faster(), smaller())).banner
    assert banner.verdict == (
        "gpt writes 4.00x faster, the same text; cnn 2.00x faster; mlp 5.00x smaller on disk"
    )
    assert banner.tone == "good"
    nothing = tour_document(tour_of(slower(), writing=None)).banner
    assert (nothing.verdict, nothing.tone) == ("low-rank does not pay on cnn (0.50x)", "neutral")


def test_the_banner_gives_one_speedup_of_writing():
    banner = tour_document(tour_of(faster(), smaller())).banner
    assert dict(banner.facts)["gpt"].startswith("cached: 4.00x")
    assert "gpt writes 4.00x faster" in banner.verdict


def test_ways_to_write_have_their_rate_speedup_and_whether_the_text_is_the_same():
    found = rows(writing_document(1, WRITING))
    assert [row[0] for row in found] == ["plain", "cached", "cached, INT8"]
    assert found[1][2].startswith("4.00x (")
    assert [row[3] for row in found] == ["", "the same text", "75.0% of the tokens are the same"]


def test_another_text_is_not_the_gain_that_is_claimed():
    other = replace(WRITING, cached=written("cached", 0.25, equal=0.5))
    verdict = writing_document(1, other).banner.verdict
    assert verdict == "1. gpt writes no faster with the same text"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    tour = tour_of(faster(), smaller(), backend="numpy")
    chapters = [visit_document(place, each) for place, each in enumerate(tour.visits, 1)]
    told = (introduction_document(INTRODUCTION), writing_document(1, WRITING), *chapters)
    for each in (*told, ending_document(tour)):
        for is_brief in (False, True):
            lines = shown(render(each, is_brief=is_brief), width).splitlines()
            assert max(len(line.rstrip()) for line in lines) <= width
