import math

import pytest
from terminal import shown

from tinytorch.reporting.transforms import render_plan
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step

UNKNOWN = {"speedup": "nobody measured it", "shrinkage": "the same is held"}
STEPS = (
    Step("layers.0", "INT8 weight", "a weight (784, 128) of floats"),
    Step("layers.[red]2", "INT8 weight, dynamic INT8 inputs", "a weight (128, 64) of floats"),
)


def plan_of(steps=STEPS, skipped=(), *, settings=None, notes=(), **gains):
    unknown = {name: reason for name, reason in UNKNOWN.items() if name not in gains}
    return Plan(
        "Quantize", settings or {}, steps, skipped, not_predicted=unknown, notes=notes, **gains
    )


def lines_of(plan, width=120, **settings):
    text = shown(render_plan(plan, **settings), width)
    return [" ".join(line.split()) for line in text.splitlines()]


def of_blocks(count, what="INT8 weight", why="a weight of floats"):
    return tuple(
        Step(f"blocks.{block}.{name}", what, why)
        for block in range(count)
        for name in ("q", "attention.output_projection")
    )


def test_the_title_has_the_settings_that_tell_something():
    settings = {"mode": "static", "bits": 8, "group_size": None, "keep": (), "is_fast": False}
    title = lines_of(plan_of(settings=settings))[0]
    assert title == "Plan of Quantize mode='static', bits=8, is_fast=False"
    assert lines_of(plan_of())[0] == "Plan of Quantize"


def test_the_headline_counts_layers():
    skipped = (Skipped("a", "x"), Skipped("b", "y"), Skipped("b", "z"))
    assert lines_of(plan_of(skipped=skipped))[1] == "2 layers change, 2 are left alone."
    one = plan_of(STEPS[:1], skipped[:1])
    assert lines_of(one)[1] == "1 layer changes, 1 is left alone."
    assert lines_of(plan_of((Step("", "x", "y"),)))[1] == "The model itself changes."


def test_the_headline_promises_only_gains():
    better = plan_of(
        shrinkage=Gain(3.9, 3.9, 3.9, basis="shapes"), speedup=Gain(2, 1, 3, basis="measured")
    )
    said = "2 layers change, predicted to be 3.90x smaller, predicted to be 2.00x faster."
    assert lines_of(better)[1] == said
    worse = plan_of(speedup=Gain(0.5, 0.4, 0.6, basis="measured"))
    assert lines_of(worse)[1] == "2 layers change."


def test_every_step_has_a_row_with_its_reason_as_it_is_written():
    lines = lines_of(plan_of())
    assert "layer what why" in lines
    assert "layers.0 INT8 weight a weight (784, 128) of floats" in lines
    assert any(line.startswith("layers.[red]2 INT8 weight, dynamic") for line in lines)


def test_a_reason_that_all_share_is_told_once():
    steps = tuple(Step(f"layers.{index}", "fused", "saves [bold]a pass") for index in range(3))
    lines = lines_of(plan_of(steps))
    assert lines.count("why: saves [bold]a pass") == 1
    assert "layers.1 fused" in lines


def test_a_long_reason_wraps():
    why = "because " * 40 + "END"
    lines = lines_of(plan_of((Step("layers.0", "INT8 weight", why), STEPS[1])))
    assert any(line.endswith("END") for line in lines)


def test_a_long_plan_has_one_row_for_the_same_in_all_blocks():
    lines = lines_of(plan_of((*of_blocks(12), Step("head", "INT4 weight", "it is large"))))
    assert "25 layers change." in lines
    assert "blocks.{0..11}.q 12 INT8 weight a weight of floats" in lines
    assert "blocks.{0..11}.attention.output_projection 12 INT8 weight a weight of floats" in lines
    assert "head 1 INT4 weight it is large" in lines


def test_a_long_plan_can_be_expanded():
    lines = lines_of(plan_of(of_blocks(12)), expand=True)
    assert sum(line.startswith("blocks.") for line in lines) == 24


def test_a_short_plan_is_not_grouped():
    assert "blocks.2.attention.output_projection INT8 weight" in lines_of(plan_of(of_blocks(3)))


def test_gains_have_their_interval_and_basis():
    plan = plan_of(
        shrinkage=Gain(3.9, 3.9, 3.9, basis="counted by [i]shapes"),
        speedup=Gain(2, 1.5, math.inf, basis="one round"),
    )
    lines = lines_of(plan)
    assert "shrinkage 3.90x: counted by [i]shapes" in lines
    assert "speedup 2.00x (1.50x to inf): one round" in lines


def test_what_is_not_predicted_has_its_reason():
    lines = lines_of(plan_of())
    assert "shrinkage not predicted: the same is held" in lines
    assert "speedup not predicted: nobody measured it" in lines


def test_layers_left_alone_are_grouped_by_the_reason():
    skipped = [Skipped(f"blocks.{block}.norm", "no [b]weights") for block in range(4)]
    skipped += [Skipped("norm", "no [b]weights"), Skipped("", "it is a model")]
    lines = lines_of(plan_of(skipped=tuple(skipped)))
    assert "- blocks.{0..3}.norm, norm: no [b]weights" in lines
    assert "- (the model itself): it is a model" in lines


def test_many_names_are_cut_unless_expanded():
    skipped = tuple(Skipped(f"layer_{letter}", "kept") for letter in "abcdefghijkl")
    text = " ".join(lines_of(plan_of(skipped=skipped)))
    assert "layer_g, 5 more: kept" in text
    assert "layer_h" not in text
    assert "layer_k, layer_l: kept" in " ".join(lines_of(plan_of(skipped=skipped), expand=True))


def test_an_empty_plan_says_so_and_predicts_nothing():
    lines = lines_of(plan_of((), (Skipped("head", "too small"),)))
    assert lines[1] == "Nothing to do: no layer changes."
    assert "- head: too small" in lines
    assert "Predicted" not in lines


def test_notes_stand_below():
    assert lines_of(plan_of(notes=("mind the [gap]",)))[-1] == "- mind the [gap]"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_longer_than_the_terminal(width):
    plan = plan_of(
        of_blocks(12, "INT8 weight, static INT8 inputs", "a weight (128, 512) of floats"),
        tuple(Skipped(f"blocks.{n}.norm{n % 2}", "not a layer " * 5) for n in range(12)),
        notes=("x" * 70,),
    )
    text = shown(render_plan(plan), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "blocks.{0..11}.q" in text
    assert "INT8 weight" in text


def test_notebooks_get_html():
    html = plan_of(notes=("<script>",))._repr_html_()
    assert "Plan of Quantize" in html
    assert "&lt;script&gt;" in html
