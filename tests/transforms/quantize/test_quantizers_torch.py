import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
require_part("torchao")

from tinytorch.transforms.quantize import quantizers as quantizers_torch
from tinytorch.transforms.quantize.quantizers import (
    AO_DYNAMIC,
    AO_EMBEDDING,
    AO_INT4_CPU,
    AO_INT4_CUDA,
    AO_KERNELS,
    AO_STATIC,
    AO_WEIGHT,
    DYNAMIC_LINEAR,
    DYNAMIC_RECURRENT,
    QUANTIZERS,
    STATIC_CONVOLUTION,
    STATIC_LINEAR,
    choose_quantizer,
    notes_on_gpu,
    quantizer_of,
    version_of,
    why_broken,
)
from tinytorch.transforms.quantize.torch_layers import Quantizer

LAYERS = {
    "linear": nn.Linear(64, 32),
    "convolution": nn.Conv2d(8, 8, 3),
    "embedding": nn.Embedding(8, 64),
    "recurrent": nn.LSTM(8, 8),
}


def settings(mode, bits=8):
    return {"mode": mode, "bits": bits, "device": "cpu", "group_size": 32, "input_axes": (2,)}


def chosen(kind, mode, bits=8, layer=None, **options):
    return choose_quantizer(kind, layer or LAYERS[kind], settings(mode, bits), **options)


@pytest.mark.parametrize(
    ("mode", "bits", "expected"),
    [
        ("weight_only", 8, (AO_WEIGHT, AO_KERNELS, AO_EMBEDDING, None)),
        ("weight_only", 4, (AO_INT4_CPU, AO_KERNELS, AO_EMBEDDING, None)),
        ("dynamic", 8, (DYNAMIC_LINEAR, None, AO_EMBEDDING, DYNAMIC_RECURRENT)),
        ("static", 8, (STATIC_LINEAR, STATIC_CONVOLUTION, AO_EMBEDDING, None)),
    ],
)
def test_each_kind_of_layer_has_its_quantizer_on_a_processor(mode, bits, expected):
    found = [chosen(kind, mode, bits) for kind in LAYERS]
    assert [quantizer for quantizer, _ in found] == list(expected)
    assert all(reason for quantizer, reason in found if quantizer is None)


def test_a_layer_that_has_none_is_told_which_mode_has():
    assert "mode='static'" in chosen("convolution", "dynamic")[1]
    assert "mode='dynamic'" in chosen("recurrent", "weight_only")[1]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("dynamic", AO_DYNAMIC), ("static", AO_STATIC), ("weight_only", AO_WEIGHT)],
)
def test_a_weight_that_is_shared_is_left_to_torchao(mode, expected):
    assert chosen("linear", mode, is_shared=True)[0] is expected


def test_what_torch_cannot_take_goes_to_torchao():
    layer = nn.Linear(64, 32, dtype=torch.bfloat16)
    quantizer, reason = chosen("linear", "dynamic", layer=layer)
    assert quantizer is AO_DYNAMIC
    assert reason == "Linear takes float32, not bfloat16"


def test_a_layer_without_int4_gets_int8_and_the_reason():
    quantizer, reason = chosen("linear", "weight_only", 4, layer=nn.Linear(64, 10))
    assert quantizer is AO_WEIGHT
    assert "10 outputs" in reason


def test_a_dtype_that_nobody_takes_is_named():
    quantizer, reason = chosen("linear", "weight_only", layer=nn.Linear(64, 32).double())
    assert quantizer is None
    assert "not float64" in reason


def test_without_torchao_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.setattr(quantizers_torch, "torchao_version", lambda: None)
    quantizer, reason = chosen("linear", "weight_only")
    assert quantizer is None
    assert "pip install torchao" in reason
    assert chosen("linear", "dynamic")[0] is DYNAMIC_LINEAR  # torch itself can do that


def test_a_quantizer_that_fails_in_this_installation_is_not_taken(monkeypatch):
    def fail(layer, settings):
        raise TypeError("another version\nof everything")

    broken = Quantizer("torchao.Gone", "dynamic", fail, lambda layer, settings: 0)
    version = version_of(broken)
    reason = why_broken(broken, "linear", "cpu", torch.float32)
    assert reason == f"torchao.Gone of version {version} fails here: TypeError: another version"
    monkeypatch.setitem(QUANTIZERS["dynamic", 8], "linear", (broken, DYNAMIC_LINEAR))
    assert chosen("linear", "dynamic") == (DYNAMIC_LINEAR, reason)


def test_trying_a_quantizer_draws_no_random_numbers():
    state = torch.get_rng_state()
    why_broken.cache_clear()
    assert why_broken(AO_WEIGHT, "linear", "cpu", torch.float32) == ""
    assert torch.equal(torch.get_rng_state(), state)


def test_a_quantizer_is_found_by_its_name_and_the_kind_of_layer():
    assert quantizer_of(AO_WEIGHT.by, "linear") is AO_WEIGHT
    assert quantizer_of(AO_WEIGHT.by, "embedding") is AO_EMBEDDING
    assert quantizer_of(AO_STATIC.by, "linear") is AO_STATIC
    assert quantizer_of("nobody", "linear") is None


def test_versions_are_those_of_the_package():
    assert version_of(DYNAMIC_LINEAR) == torch.__version__
    assert version_of(AO_WEIGHT) == quantizers_torch.torchao_version()


@pytest.mark.parametrize("quantizer", [AO_WEIGHT, AO_INT4_CUDA, AO_DYNAMIC, AO_STATIC])
def test_what_was_measured_on_a_gpu_is_told_with_its_versions(quantizer):
    note = next(notes_on_gpu([None, quantizer, quantizer]))
    assert "slower than floats on a GPU" in note
    assert "torchao 0.18" in note
    assert "uncompiled, and compiled" in note


def test_integers_on_a_gpu_need_many_rows_and_weights_alone_do_not():
    assert len(list(notes_on_gpu([AO_WEIGHT, AO_INT4_CUDA]))) == 1
    assert "more than 16 rows" in list(notes_on_gpu([AO_DYNAMIC]))[1]
    assert len(list(notes_on_gpu([AO_DYNAMIC, AO_STATIC, AO_WEIGHT]))) == 3


def test_what_was_not_measured_on_a_gpu_has_no_note():
    assert list(notes_on_gpu([AO_EMBEDDING, AO_KERNELS, DYNAMIC_LINEAR])) == []
