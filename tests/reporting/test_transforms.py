"""Documents of transforms: plans, compression, deployment, quantization, caches."""

import math

import pytest
from document_reading import anchors, blocks, heads, rows, section, words
from example_compressions import result
from example_pages import HOSTILE
from terminal import shown

from tinytorch.errors import SettingError
from tinytorch.reporting.document import Facts, Table, plain_text
from tinytorch.reporting.html.page import report_html
from tinytorch.reporting.markdown import report_markdown
from tinytorch.reporting.terminal import render
from tinytorch.reporting.transforms import (
    compression_document,
    plan_document,
    sensitivity_document,
)
from tinytorch.transforms.compression import CompressionStage
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step
from tinytorch.transforms.quantize.sensitivity import LayerSensitivity, Sensitivity

# ---------------------------------------------------------------- plans

UNKNOWN = {"speedup": "not measured yet", "shrinkage": "the same is held"}
STEPS = (
    Step("layers.0", "INT8 weight", "a weight (784, 128) of floats"),
    Step("layers.[red]2", "INT8 weight, dynamic INT8 inputs", "a weight (128, 64) of floats"),
)


def plan_of(steps=STEPS, skipped=(), *, settings=None, notes=(), **gains):
    unknown = {name: reason for name, reason in UNKNOWN.items() if name not in gains}
    return Plan(
        "Quantize", settings or {}, steps, skipped, not_predicted=unknown, notes=notes, **gains
    )


def of_blocks(count, what="INT8 weight", why="a weight of floats"):
    return tuple(
        Step(f"blocks.{block}.{name}", what, why)
        for block in range(count)
        for name in ("q", "attention.output_projection")
    )


def predicted(plan):
    (facts,) = blocks(section(plan_document(plan), "predicted"), Facts)
    return {name: plain_text(text) for name, text in facts.pairs}


def left_alone(plan, **settings):
    (found,) = section(plan_document(plan, **settings), "left-alone").blocks
    return list(found.items)


def test_the_subtitle_has_the_settings_that_tell_something():
    settings = {"mode": "static", "bits": 8, "group_size": None, "keep": (), "is_fast": False}
    found = plan_document(plan_of(settings=settings))
    assert found.title == "Plan of Quantize"
    assert found.subtitle == "mode='static', bits=8, is_fast=False"
    assert plan_document(plan_of()).subtitle == ""


def test_the_banner_counts_layers():
    skipped = (Skipped("a", "x"), Skipped("b", "y"), Skipped("b", "z"))
    banner = plan_document(plan_of(skipped=skipped)).banner
    assert (banner.verdict, banner.sentence) == ("2 layers change", "2 left alone")
    assert plan_document(plan_of(STEPS[:1])).banner.verdict == "1 layer changes"
    whole = plan_of((Step("", "x", "y"),))
    assert plan_document(whole).banner.verdict == "The whole model changes"
    assert rows(plan_document(whole))[0][0] == "(whole model)"


def test_the_banner_promises_only_gains():
    gains = {"shrinkage": Gain(3.9, 3.9, 3.9, basis="shapes")}
    gains["speedup"] = Gain(2, 1, 3, basis="measured")
    said = "predicted 3.90x smaller, predicted 2.00x (1.00x to 3.00x) faster"
    assert plan_document(plan_of(**gains)).banner.sentence == said
    worse = plan_of(speedup=Gain(0.5, 0.4, 0.6, basis="measured"))
    assert plan_document(worse).banner.sentence == ""


def test_every_step_has_a_row_with_its_reason():
    found = plan_document(plan_of())
    assert heads(found) == ["layer", "what", "why"]
    assert [row[0] for row in rows(found)] == ["layers.0", "layers.[red]2"]
    assert rows(found)[0][2:] == ["INT8 weight", "a weight (784, 128) of floats"]


def test_a_reason_that_all_share_is_told_once():
    steps = tuple(Step(f"layers.{index}", "fused", "saves [bold]a pass") for index in range(3))
    found = plan_document(plan_of(steps))
    assert words(found).count("saves [bold]a pass") == 1
    assert heads(found) == ["layer", "what"]


def test_a_long_reason_wraps():
    why = "because " * 40 + "END"
    plan = plan_of((Step("layers.0", "INT8 weight", why), STEPS[1]))
    assert any(line.rstrip().endswith("END") for line in shown(plan, 100).splitlines())


def test_a_long_plan_has_one_row_for_the_same_in_all_blocks():
    plan = plan_of((*of_blocks(12), Step("head", "INT4 weight", "it is large")))
    assert rows(plan_document(plan)) == [
        ["blocks.{0..11}.q", "12", "INT8 weight", "a weight of floats"],
        ["blocks.{0..11}.attention.output_projection", "12", "INT8 weight", "a weight of floats"],
        ["head", "1", "INT4 weight", "it is large"],
    ]
    assert len(rows(plan_document(plan, expand=True))) == 25


def test_a_short_plan_is_not_grouped():
    found = plan_document(plan_of(of_blocks(3)))
    assert len(rows(found)) == 6
    assert "n" not in heads(found)


def test_gains_have_their_interval_and_basis():
    gains = {"shrinkage": Gain(3.9, 3.9, 3.9, basis="counted by [i]shapes")}
    gains["speedup"] = Gain(2, 1.5, math.inf, basis="one round")
    assert predicted(plan_of(**gains)) == {
        "shrinkage": "3.90x: counted by [i]shapes",
        "speedup": "2.00x (1.50x to inf): one round",
    }


def test_what_is_not_predicted_has_its_reason():
    assert predicted(plan_of()) == {
        name: f"not predicted: {reason}" for name, reason in UNKNOWN.items()
    }


def test_layers_left_alone_are_grouped_by_the_reason():
    skipped = [Skipped(f"blocks.{block}.norm", "no [b]weights") for block in range(4)]
    skipped += [Skipped("norm", "no [b]weights"), Skipped("", "it is a model")]
    assert left_alone(plan_of(skipped=tuple(skipped))) == [
        "blocks.{0..3}.norm, norm: no [b]weights",
        "(whole model): it is a model",
    ]


def test_many_names_are_cut_unless_expanded():
    plan = plan_of(skipped=tuple(Skipped(f"layer_{letter}", "kept") for letter in "abcdefghijkl"))
    (line,) = left_alone(plan)
    assert line.endswith("layer_g, 5 more: kept")
    assert left_alone(plan, expand=True)[0].endswith("layer_k, layer_l: kept")


def test_an_empty_plan_says_so_and_predicts_nothing():
    found = plan_document(plan_of((), (Skipped("head", "too small"),)))
    assert (found.banner.verdict, found.banner.tone) == ("No layer changes", "unknown")
    assert anchors(found) == ["left-alone"]


# ---------------------------------------------------------------- compression


def test_every_stage_has_its_row():
    found = compression_document(result())
    assert [row[:6] for row in rows(found)] == [
        ["original", "0.0%", "4 KiB", "3.42 KiB", "1.17x", "0.75"],
        ["pruned", "75.0%", "4 KiB", "1.07 KiB", "3.72x", "0.75"],
        ["quantized", "80.0%", "900 B", "256 B", "16.00x", "0.75"],
    ]
    assert rows(found)[2][6].startswith("not worse (+0.0000, at least")
    assert found.banner.verdict == "16.00x smaller: 256 B instead of 4 KiB"
    assert found.banner.tone == "good"
    assert found.banner.sentence == "accuracy not worse: 0.75, original 0.75 (margin 0.01, n=1,000)"


def test_the_ratio_stands_beside_the_naive_product_and_the_entropy():
    text = words(compression_document(result()))
    assert "4.00x for the zeros times 8.00x for the bits, 32.00x in all" in text
    assert "200 B (20.48x). Their code takes 5.0% more, the header 46 B." in text
    below = words(compression_document(result(bound_bytes=220.0)))
    assert "takes 4.5% less (it counts how often" in below
    assert "stand together" not in text


def test_a_model_without_a_number_to_code_is_shown():
    text = words(compression_document(result(bound_bytes=0.0, naive_parts={})))
    assert "There is nothing to code; the header is 46 B." in text
    assert "Naive" not in text


def test_one_part_has_no_product():
    text = words(compression_document(result(naive_parts={"bits": 8.0})))
    assert "parts: 8.00x for the bits.\n" in text


def test_what_is_larger_is_not_called_smaller():
    stages = (CompressionStage("original", 0.0, 1000, 1600),)
    found = compression_document(result(stages=stages, naive_parts={}))
    assert found.banner.verdict.startswith("1.60x larger: ")
    assert rows(found)[0][4] == "1.60x larger"


def test_what_was_not_evaluated_is_not_called_good():
    stages = (CompressionStage("original", 0.0, 4096, 3500),)
    banner = compression_document(result(stages=stages, baseline_score=None)).banner
    assert (banner.sentence, banner.tone) == (
        "accuracy not compared with the original's",
        "unknown",
    )
    assert compression_document(result(stages=stages)).banner.sentence.endswith("(0.75)")


def test_notes_and_skipped_layers_are_told():
    skipped = tuple(Skipped(f"layers.{number}", "kept") for number in range(7))
    found = compression_document(result(skipped=skipped, notes=("a note",)))
    assert found.notes == ("a note",)
    assert "layers.4 and 2 more" in words(found)


# ---------------------------------------------------------------- sensitivity

SMALL = LayerSensitivity("layers.0", "INT8 weight", 0.0025, 0.0, 3000)
LARGE = LayerSensitivity("layers.[red]2", "INT4 weight", 0.005, 0.25, 2048)
TOGETHER = LayerSensitivity("2 layers", "together", 0.01, 0.5, 5048)
BOTH = Sensitivity((SMALL, LARGE), TOGETHER, 8)


def only(layer):
    return sensitivity_document(Sensitivity((layer,), layer, 1))


def test_the_banner_says_what_all_do_and_which_is_worst():
    found = sensitivity_document(BOTH)
    assert found.subtitle == "outputs of 8 batches"
    assert found.banner.verdict == "Output error 1.00% with 2 layers quantized"
    worst = "worst layer alone: layers.[red]2, 0.50%; 4.93 KiB less held"
    assert found.banner.sentence == worst


def test_the_worst_layer_comes_first_and_all_together_last():
    found = sensitivity_document(BOTH)
    assert rows(found) == [
        ["layers.[red]2", "0.50%", "25.0%", "2 KiB", "INT4 weight"],
        ["layers.0", "0.25%", "0.0%", "2.93 KiB", "INT8 weight"],
        ["all together", "1.00%", "50.0%", "4.93 KiB", ""],
    ]
    (table,) = blocks(found, Table)
    assert [row.cells[1].bar for row in table.rows[:2]] == [0.5, 0.25]
    assert table.rows[2].tone == "total"


def test_one_layer_is_not_told_twice():
    found = only(SMALL)
    assert found.banner.verdict == "Output error 0.25% with layers.0 quantized"
    assert found.subtitle == "outputs of 1 batch"
    assert len(rows(found)) == 1


def test_more_layers_than_are_wanted_are_summed_up():
    found = sensitivity_document(BOTH, top=1)
    assert "1 more, with at most 0.25% each" in words(found)
    assert [row[0] for row in rows(found)] == ["layers.[red]2", "all together"]
    with pytest.raises(SettingError, match="top=0"):
        sensitivity_document(BOTH, top=0)


@pytest.mark.parametrize(
    ("error", "text"),
    [(0.0, "0.00%"), (1e-6, "<0.01%"), (0.12345, "12.35%"), (math.inf, "inf")],
)
def test_errors_are_neither_hidden_nor_made_up(error, text):
    ((_, cell, *_),) = rows(only(LayerSensitivity("a", "what", error, None, 10)))
    assert cell == text


def test_outputs_that_are_no_rows_have_no_column_for_it():
    assert "top-1" not in heads(only(LayerSensitivity("a", "what", 0.1, None, 10)))
    assert "top-1" in heads(sensitivity_document(BOTH))


def test_a_model_that_grows_is_said_to():
    banner = only(LayerSensitivity("a", "what", 0.1, None, -2048)).banner
    assert banner.sentence == "2 KiB more held"


def test_no_layers_are_no_error():
    nothing = LayerSensitivity("no layers", "as it is", 0.0, None, 0)
    found = sensitivity_document(Sensitivity((), nothing, 1))
    assert found.banner.verdict == "No layer is quantized"


# ---------------------------------------------------------------- all of them


def examples():
    plan = plan_of(
        of_blocks(12, "INT8 weight, static INT8 inputs", "a weight (128, 512) of floats"),
        tuple(Skipped(f"blocks.{n}.norm{n % 2}", "not a layer " * 5) for n in range(12)),
        notes=("x" * 70,),
    )
    return [plan, BOTH, result()]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_longer_than_the_terminal(width):
    for each in examples():
        assert all(len(line) <= width for line in shown(each, width).splitlines())


def test_a_narrow_terminal_keeps_what_matters():
    plan, sensitivity, *_ = (shown(each, 40) for each in examples())
    assert "blocks.{0..11}.q" in plan
    assert "INT8 weight" in plan
    assert "layers.[red]2  ████      0.50%" in sensitivity


@pytest.mark.parametrize("each", examples(), ids=lambda each: type(each).__name__)
def test_every_medium_shows_it(each):
    assert each._repr_html_().startswith("<pre")
    assert report_markdown(each).strip()
    assert "<h1>" in report_html(each)


def test_names_are_text():
    hostile = plan_of((Step(HOSTILE, HOSTILE, HOSTILE),), (Skipped(HOSTILE, HOSTILE),))
    assert HOSTILE not in report_html(hostile)
    assert HOSTILE in shown(render(plan_document(hostile)), 4000)
