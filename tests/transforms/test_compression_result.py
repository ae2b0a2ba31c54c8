"""What compressing a model gave."""

import json

import numpy as np
import pytest
from example_compressions import result
from small_models import workload
from terminal import shown

from tinytorch.formats.affine import Scheme, quantize_array
from tinytorch.formats.entropy import entropy_bytes
from tinytorch.transforms.compressed_file import (
    BFLOAT16,
    compressed_state,
    load_compressed,
)
from tinytorch.transforms.compression import (
    CompressionStage,
    bound_bytes,
)


def test_ratios_are_bytes_over_bytes():
    found = result()
    assert (found.original_bytes, found.file_bytes, found.ratio) == (4096, 256, 16)
    assert (found.naive_ratio, found.bound_ratio) == (32, 20.48)
    assert found.above_bound == pytest.approx(0.28)
    assert found.coding_above_bound == pytest.approx(0.05)
    assert found.sparsity == 0.8
    assert found.accuracy.verdict == "not worse"


def test_nothing_done_is_a_factor_of_one():
    assert result(naive_parts={}).naive_ratio == 1


def test_the_numbers_fit_into_json():
    found = json.loads(json.dumps(result().to_dict()))
    assert found["ratio"] == 16
    assert found["above_bound"] == pytest.approx(0.28)
    assert found["coding_above_bound"] == pytest.approx(0.05)
    assert found["stages"][0] == {
        "name": "original", "sparsity": 0.0, "file_bytes": 4096, "encoded_bytes": 3500,
        "accuracy": None,
    }  # fmt: skip
    assert found["stages"][1]["accuracy"]["margin"] == 0.01


def test_a_result_is_written_with_its_metadata(tmp_path):
    model = workload("mlp").model
    found = result(state=compressed_state(model, bits=8))
    size = found.save(tmp_path / "model", {"made": "here"})
    assert size == (tmp_path / "model").stat().st_size
    assert load_compressed(tmp_path / "model", model)[1] == {"made": "here"}


def test_the_bound_of_whole_numbers_is_their_entropy_and_their_scales():
    state = compressed_state(workload("mlp").model, bits=4)
    weights = ("layers.0.weight", "layers.2.weight", "layers.4.weight")
    whole = sum(entropy_bytes(state[name].values) + 4 for name in weights)
    assert bound_bytes(state) == pytest.approx(whole + 4 * (48 + 32 + 10))


def test_the_bound_of_floats_counts_zeros_by_their_places():
    array = np.zeros(1000, np.float32)
    array[:100] = 1
    share = -(0.1 * np.log2(0.1) + 0.9 * np.log2(0.9))
    assert bound_bytes({"w": array}) == pytest.approx(1000 * share / 8 + 400)
    assert bound_bytes({"w": np.zeros(0, np.float32)}) == 0
    assert bound_bytes({"steps": np.zeros(3, np.int64)}) == 24


def test_a_result_shows_itself():
    assert "16.00x smaller" in result()._repr_html_()
    assert "16.00x smaller" in shown(result())


def test_a_result_is_one_short_line():
    assert repr(result()) == (
        "CompressionResult(mlp, original > pruned > quantized: 256 bytes instead of 4,096, "
        "80.0% zeros, accuracy not worse)"
    )
    bare = result(stages=(CompressionStage("original", 0.0, 4000, 3500),))
    assert repr(bare).endswith("0.0% zeros, accuracy not compared)")


def test_a_stage_does_not_show_every_score():
    assert len(repr(result().stages[1])) < 300


def test_a_model_that_is_zero_throughout_has_no_bound_to_compare_with():
    found = result(bound_bytes=0.0)
    assert (found.bound_ratio, found.above_bound, found.coding_above_bound) == (None,) * 3
    assert json.loads(json.dumps(found.to_dict()))["bound_ratio"] is None
    assert "There is nothing to code" in shown(found, 200)


def test_the_bound_of_zero_points_is_a_byte_each():
    weight = np.arange(12.0).reshape(4, 3)
    quantized = quantize_array(weight, Scheme(axis=1))
    found = bound_bytes({"w": quantized})
    assert found == pytest.approx(entropy_bytes(quantized.values) + 3 * (4 + 1))
    assert bound_bytes({"w": quantize_array(np.empty((0, 3)), Scheme(symmetric=True))}) == 4


def test_the_bound_of_short_floats_is_two_bytes_each():
    bits = np.array([0, 0x3F80, 0x8000, 0x4000], np.uint16)  # 0, 1, -0 and 2
    assert bound_bytes({"w": bits.view(BFLOAT16)}) == pytest.approx(4 / 8 + 4)
