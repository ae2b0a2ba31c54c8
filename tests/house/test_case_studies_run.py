"""The case studies are what their stories say: slow and fixed compute the same, and differ so."""

import re

import numpy as np
import pytest
from parts import require_part
from project_files import ROOT

from tinytorch import load_workload, profile_workload
from tinytorch.models.workload import resize_workload
from tinytorch.profiling.flops import count_flops

FOLDER = ROOT / "docs" / "case_studies"
PAIRS = ["attention_length", "float64_images", "head_loop", "recomputed_tokens"]
STORIES = [ROOT / "docs" / "case_studies.md", ROOT / "docs" / "lessons.md"]


def case(name, which):
    """Load one side of a case; those of PyTorch need it."""
    if "import torch" in (FOLDER / f"{name}.py").read_text("utf-8"):
        require_part("torch")
    return load_workload(f"{FOLDER / name}.py:{which}")


def profile_of(name, which, length=None):
    workload = case(name, which)
    if length is not None:
        workload = resize_workload(workload, axis=1, size=int(length))
    return profile_workload(workload, runs=1, ceilings=False)


def test_every_case_is_told_somewhere():
    told = set(
        re.findall(r"case_studies/(\w+)\.py", "".join(p.read_text("utf-8") for p in STORIES))
    )
    assert told == {path.stem for path in FOLDER.glob("*.py")} == {*PAIRS, "over_budget"}


@pytest.mark.parametrize("name", PAIRS)
def test_slow_and_fixed_compute_the_same(name):
    slow, fixed = (case(name, which).run() for which in ("slow", "fixed"))
    slow, fixed = (
        each.data if isinstance(each.data, np.ndarray) else each.detach().numpy()
        for each in (slow, fixed)
    )
    # Float32 sums in another order, over at most some hundred numbers in a few layers.
    np.testing.assert_allclose(fixed, slow, rtol=1e-4, atol=1e-5)


def test_a_loop_over_heads_is_seen_in_the_operations():
    slow, fixed = (profile_of("head_loop", which) for which in ("slow", "fixed"))
    kinds = [each.kind for each in slow.operations]
    assert kinds.count("aten._softmax") == 4 * 12  # layers times heads
    assert len(kinds) > 5 * len(fixed.operations)
    assert slow.flops == fixed.flops


def test_tokens_that_are_computed_again_are_counted_again():
    slow, fixed = (case("recomputed_tokens", which) for which in ("slow", "fixed"))
    # As `tinytorch predict` fits them, at a prompt of 96 tokens.
    wanted = 194_232_320 + 26_050_560 * 96 + 32_768 * 96**2
    assert count_flops(slow.model, *slow.inputs) == wanted
    wanted = 24_231_936 + 1_603_584 * 96 + 2_048 * 96**2
    assert count_flops(fixed.model, *fixed.inputs) == wanted


def test_float64_is_seen_in_the_bytes():
    slow, fixed = (profile_of("float64_images", which) for which in ("slow", "fixed"))
    before, after = slow.memory.peak_by_category, fixed.memory.peak_by_category
    assert before["inputs"] == 2 * after["inputs"]
    # What batch norms make of their own statistics is float32 on both sides: some 256 bytes.
    assert 1.99 < before["activations"] / after["activations"] <= 2
    assert before["parameters"] == after["parameters"]


def test_only_attention_that_is_written_out_holds_the_square_of_the_length():
    lengths = np.array([128, 256, 512])
    for which, square in (("slow", 49), ("fixed", 0)):
        peaks = [
            profile_of("attention_length", which, length).memory.peak_bytes for length in lengths
        ]
        assert np.polyfit(lengths, peaks, 2)[0] == pytest.approx(square, abs=1e-6)


def test_the_stack_that_does_not_fit_has_the_parameters_that_the_lesson_counts():
    workload = load_workload(f"{FOLDER / 'over_budget.py'}:make")
    assert sum(each.data.size for each in workload.model.parameters()) == 56_669_184
