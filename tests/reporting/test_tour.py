import pytest
from example_optimizations import optimization
from example_tours import INTRODUCTION, faster, no_faster, smaller, tour_of
from terminal import shown

from tinytorch.reporting.tour import (
    FAST,
    NEXT_COMMANDS,
    render_ending,
    render_introduction,
    render_tour,
    render_visit,
    short_line,
)


def visit_text(found, width=100):
    return shown(render_visit(1, tour_of(found).visits[0]), width)


def line_with(text, words):
    (line,) = [line for line in text.splitlines() if words in line]
    return line


def test_a_mistake_shows_what_it_really_is():
    text = shown(render_introduction(INTRODUCTION))
    assert "a 1 (99%)" in text
    assert "a 9 (61%), is a 4" in text


def test_generated_text_is_shown_as_it_is():
    assert "It is a truth [bold]<b>universally..." in shown(render_introduction(INTRODUCTION))


def test_a_stop_tells_its_story_in_order():
    text = visit_text(faster())
    parts = [
        "Can gpt be made faster?",
        "Why does it take its time?",
        "What does the profile suggest?",
        "What was tried",
        "Did it work?",
        "What does each part bring?",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_why_has_the_bottleneck_its_bound_and_amdahl():
    text = " ".join(visit_text(faster()).split())
    assert "A call takes 10.0 ms" in text
    assert "-bound" in text
    assert "Amdahl: 2x faster here gives" in text


def test_suggestions_stand_with_what_was_predicted():
    text = visit_text(faster())
    assert "1.50x, at most 2.40x" in line_with(text, "Multiply in 8-bit integers")
    assert "not predicted" in line_with(text, "Compute fewer products")
    assert "Up to you: Call it less often." in text


def test_accuracy_stands_beside_speed():
    line = line_with(visit_text(faster()), "int8 + fused  ")
    assert "better  2.00x" in line
    assert line.rstrip().endswith("75.00%")


def test_what_loses_accuracy_and_what_was_not_tried_is_told():
    text = visit_text(faster())
    assert "inaccurate: accuracy 0.75 became 0.5" in line_with(text, "low-rank  inacc")
    assert "No time was left for fewer." in text


def test_the_proof_has_the_interval_both_sides_and_the_margin():
    text = visit_text(faster())
    assert "Yes: int8 + fused makes it 2.00x faster (" in text
    assert "n=13 rounds" in text
    assert line_with(text, "file on disk").split()[-1] == "0.25x"
    assert "margin 1 point" in " ".join(text.split())


def test_parts_of_the_best_stack_say_what_they_bring():
    text = visit_text(faster())
    assert "faster" in line_with(text, "   int8   2.00x")
    assert "not measured: no copy" in text


def test_a_stop_for_size_leads_with_bytes():
    text = visit_text(smaller())
    assert "Yes: int4 makes it 5.00x smaller on disk" in text
    assert "20.0%" in line_with(text, "   int4  better")


def test_nothing_that_helps_is_said_with_what_is_smaller():
    text = " ".join(visit_text(no_faster()).split())
    assert "Yes:" not in text
    assert "nothing that was tried makes it faster" in text
    assert "Not faster, but smaller: int8 is 4.00x smaller on disk" in text


def test_a_stop_where_nothing_was_tried_can_be_told():
    text = visit_text(optimization(name="gpt"))
    assert "nothing was tried" in text
    assert "What was tried" not in text


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_wider_than_a_hundred_columns(width):
    text = shown(render_tour(tour_of(faster(), smaller())), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= min(width, 100)


def test_a_line_sums_a_model_up():
    assert short_line(faster()).startswith("2.00x faster (")
    assert "by int8 + fused, 4.00x smaller on disk" in short_line(faster())
    assert short_line(smaller()).startswith("5.00x smaller on disk by int4")
    assert short_line(no_faster()) == "nothing that was tried is shown to make it faster"


def test_the_end_has_the_next_commands_and_what_it_took():
    text = shown(render_ending(tour_of(faster(), smaller())))
    assert all(f"$ {command}" in text for command, _ in NEXT_COMMANDS)
    assert "5 attempts: 3 better, 1 inaccurate, 1 not tried; 1 min 41 s" in text
    assert "backend numba" in text


def test_without_compiled_kernels_the_end_names_what_installs_them():
    shortened = " ".join(shown(render_ending(tour_of(no_faster(), backend="numpy"))).split())
    assert FAST in shortened
    assert "was not measured" in shortened
    assert FAST not in shown(render_ending(tour_of(faster())))


def test_an_interrupted_tour_says_so():
    assert "Interrupted" in shown(render_ending(tour_of(faster(), was_interrupted=True)))
    assert "Interrupted" not in shown(render_ending(tour_of(faster())))
