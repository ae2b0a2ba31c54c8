"""Compressed models in the terminal."""

import pytest
from example_compressions import deployment, result
from terminal import shown

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.reporting.transforms import (
    render_compression,
    render_deployment,
)
from tinytorch.transforms.compression import CompressionStage
from tinytorch.transforms.plan import Skipped


def words(renderable, width=120):
    return " ".join(shown(renderable, width).split())


def test_every_stage_has_its_row():
    lines = shown(render_compression(result())).splitlines()
    assert lines[0].split() == ["Compression", "mlp"]
    head = "stage sparsity plain encoded smaller accuracy than the original"
    assert lines[2].split() == head.split()
    assert lines[3].split() == ["original", "0.0%", "4", "KiB", "3.42", "KiB", "1.17x", "0.75"]
    assert lines[4].split()[:8] == ["pruned", "75.0%", "4", "KiB", "1.07", "KiB", "3.72x", "0.75"]
    assert lines[5].split()[:9] == [
        "quantized",
        "80.0%",
        "900",
        "B",
        "256",
        "B",
        "16.00x",
        "0.75",
        "not",
    ]
    assert "not worse (+0.0000, at least" in lines[5]


def test_the_real_ratio_stands_beside_the_naive_product_and_the_entropy():
    text = words(render_compression(result()))
    assert "256 B instead of 4 KiB: really 16.00x smaller." in text
    assert "is 4.00x for the zeros times 8.00x for the bits, 32.00x in all." in text
    assert "The entropy of whole numbers and zeros, with all other floats as they are, is" in text
    assert "are, is 200 B (20.48x): their code takes 5.0% more" in text
    assert "than that, and the header 46 B." in text
    assert "The accuracy is not worse at a margin of 0.01: 0.75 after 0.75, on 1,000" in text


def test_a_code_below_the_entropy_of_single_values_is_said_to_be():
    text = words(render_compression(result(bound_bytes=220.0)))
    assert (
        "their code takes 4.5% less than that (it knows only how often each number occurs, not "
        "that zeros stand together), and the header"
    ) in text
    assert "stand together" not in words(render_compression(result()))


def test_a_model_without_a_number_to_code_is_shown():
    text = words(render_compression(result(bound_bytes=0.0, naive_parts={})))
    assert "really 16.00x smaller. There is nothing to code; the header is 46 B." in text


def test_what_is_larger_is_not_called_smaller():
    stages = (CompressionStage("original", 0.0, 1000, 1600),)
    text = words(render_compression(result(stages=stages, naive_parts={})))
    assert "KiB: really 1.60x larger." in text
    assert "0.62x" not in text
    assert "1.60x larger than its checkpoint" in words(
        render_deployment(deployment({}, file_bytes=1600, original_bytes=1000))
    )


def test_one_part_has_no_product():
    text = words(render_compression(result(naive_parts={"bits": 8.0})))
    assert "The naive product of the parts is 8.00x for the bits." in text
    assert "naive" not in words(render_compression(result(naive_parts={})))


def test_what_was_not_evaluated_is_not_called_good():
    stages = (CompressionStage("original", 0.0, 4096, 3500),)
    text = words(render_compression(result(stages=stages, baseline_score=None)))
    assert "Nothing was compared with the original's accuracy." in text
    assert "not worse" not in text
    text = words(render_compression(result(stages=stages)))
    assert "The accuracy of the original is 0.75." in text


def test_notes_and_skipped_layers_are_told():
    skipped = tuple(Skipped(f"layers.{number}", "kept") for number in range(7))
    text = words(render_compression(result(skipped=skipped, notes=("a note",))))
    assert "- a note" in text
    assert "layers.4 and 2 more" in text


def test_every_quantity_has_its_row_and_its_budget():
    budgets, unknown = {"flash_mb": 10, "latency_ms": 1}, {"memory_mb": "nothing was recorded"}
    found = deployment(budgets, peak_bytes=None, not_measured=unknown)
    lines = shown(render_deployment(found)).splitlines()
    assert "10.00x smaller than its checkpoint, 30 MiB" in lines[0]
    assert lines[3].split() == ["file", "3", "MiB", "10", "MiB", "fits"]
    assert lines[4].split()[:9] == [
        "file",
        "to",
        "first",
        "answer",
        "10.0",
        "ms",
        "6.00",
        "ms",
        "to",
    ]
    assert lines[5].split() == ["latency", "2.00", "ms", "1.00", "ms", "does", "not", "fit"]
    assert lines[6].split() == ["peak", "memory", "-", "nothing", "was", "recorded"]
    assert lines[7].split()[:2] == ["lost", "score"]
    assert "It does not fit: latency 2.00 ms over 1.00 ms." in words(render_deployment(found))


@pytest.mark.parametrize(
    ("budgets", "sentence"),
    [
        ({}, "No budget was given, so nothing is judged."),
        ({"flash_mb": 3}, "It fits: the budget is kept."),
        ({"flash_mb": 3, "latency_ms": 3}, "It fits: all 2 budgets are kept."),
        ({"load_ms": 10.5}, "Inconclusive: file to first answer cannot be told from the"),
    ],
)
def test_the_conclusion_is_one_sentence(budgets, sentence):
    assert sentence in words(render_deployment(deployment(budgets)))


def test_what_was_not_measured_is_not_shown_to_fit():
    unknown = {"memory_mb": "nothing was recorded"}
    found = deployment({"memory_mb": 5}, peak_bytes=None, not_measured=unknown)
    sentence = "Inconclusive: peak memory was not measured."
    assert sentence in words(render_deployment(found))


def test_an_accuracy_that_is_no_number_is_a_dash():
    broken = compare_accuracy([1, 0] * 50, [float("nan")] * 100)
    text = words(render_deployment(deployment({"accuracy_drop": 0.1}, accuracy=broken)))
    assert "It does not fit: lost score - over 0.1000." in text
    assert "The accuracy is worse" in text
    stages = (CompressionStage("original", 0, 9, 9), CompressionStage("pruned", 0, 9, 9, broken))
    assert "worse" in words(render_compression(result(stages=stages)))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_longer_than_the_terminal(width):
    for each in (render_compression(result()), render_deployment(deployment({"flash_mb": 1}))):
        assert all(len(line) <= width for line in shown(each, width).splitlines())


def test_notebooks_get_html():
    assert result()._repr_html_().startswith("<pre")
    assert "Deployment" in deployment({})._repr_html_()
