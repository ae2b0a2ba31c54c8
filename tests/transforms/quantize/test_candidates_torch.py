import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
require_part("torchao")

from torch_workloads import Tied, mlp

from tinytorch.errors import SettingError
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.quantize.quantizers import AO_DYNAMIC, AO_WEIGHT, DYNAMIC_LINEAR
from tinytorch.transforms.quantize.torch import (
    Candidate,
    check_not_quantized,
    find_candidates,
    unknown_layers,
)
from tinytorch.transforms.quantize.torch_layers import Seen


def found(model, keep=()):
    return find_candidates(dict(model.named_modules()), keep=keep)


def reasons(model, keep=()):
    return {path: why for each in found(model, keep) for path, why in each.reasons.items()}


def test_layers_come_in_order_and_those_of_one_weight_together():
    assert [each.paths for each in found(Tied())] == [("table", "heads.0"), ("body",)]
    assert found(Tied())[0].main == "heads.0"


@pytest.mark.parametrize("pattern", ["0", "?", "[0]", "*"])
def test_patterns_keep_layers_in_floats(pattern):
    assert reasons(mlp(), (pattern,))["0"] == f"kept by keep={pattern!r}"


def test_whoever_shares_a_weight_that_is_kept_is_kept_too():
    found = reasons(Tied(), ("heads.*",))
    assert found["heads.0"] == "kept by keep='heads.*'"
    assert found["table"] == "it shares its weight with 'heads.0', which stays in floats"
    assert found["body"] == ""


def test_a_weight_that_an_unknown_layer_holds_is_left_alone():
    model = mlp()
    model.other = nn.Module()
    model.other.borrowed = model[0].weight
    assert reasons(model)["0"] == "it shares its weight with 'other', which stays in floats"


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.full((2, 2), torch.nan), "holds NaN or infinity"),
        (torch.empty(0, 2), "is empty"),
        (torch.empty(2, 2, device="meta"), "meta device"),
    ],
)
def test_weights_without_numbers_have_a_reason(weight, reason):
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(weight)
    assert reason in reasons(nn.Sequential(layer))["0"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
def test_a_weight_that_is_computed_at_each_call_has_a_reason():
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2)))
    assert reasons(model)["0"] == "its weight is computed anew before each call"


def test_a_quantizer_is_chosen_with_its_bytes():
    (candidate,) = found(nn.Sequential(nn.Linear(64, 16)))
    candidate.choose(Quantize(mode="dynamic"), {})
    assert candidate.quantizer is DYNAMIC_LINEAR
    assert (candidate.bytes_before, candidate.bytes_after) == (64 * 16 * 4, 64 * 16 + 16 * 8)
    step = candidate.step(8)
    assert (step.layer, step.what) == ("0", "INT8 weight, dynamic INT8 inputs")
    assert step.why == "a weight (16, 64) of float32"
    assert step.settings == {
        "by": "torch.ao.nn.quantized.dynamic.Linear",
        "version": torch.__version__,
        "mode": "dynamic",
        "bits": 8,
    }


def test_a_layer_that_would_grow_stays():
    (candidate,) = found(nn.Sequential(nn.Conv2d(8, 8, 3, groups=8)))
    candidate.choose(Quantize(mode="weight_only"), {})
    # One input for each output: a byte of value, five of scale and zero point.
    assert candidate.reasons["0"] == "it would take 432 bytes instead of 288"


def test_layers_that_share_a_weight_have_one_step():
    shared = found(Tied())[0]
    shared.choose(Quantize(mode="dynamic"), {})
    assert shared.quantizer is AO_DYNAMIC
    step = shared.step(8)
    assert step.settings["layers"] == ("table", "heads.0")
    assert "held by table and heads.0, which go on sharing it" in step.why


def test_int8_in_the_place_of_int4_is_explained():
    (candidate,) = found(nn.Sequential(nn.Embedding(8, 64)))
    candidate.choose(Quantize(mode="weight_only", bits=4), {})
    step = candidate.step(4)
    assert step.what == "INT8 weight"
    assert step.why.endswith("no INT4: there is no quantizer for this layer")
    (candidate,) = found(nn.Sequential(nn.Linear(64, 10)))
    candidate.choose(Quantize(mode="weight_only", bits=4), {})
    assert candidate.quantizer is AO_WEIGHT
    assert "no INT4: its 10 outputs" in candidate.step(4).why


def test_one_weight_cannot_have_inputs_of_several_ranges():
    shared = found(Tied(heads=2))[0]
    seen = Seen(axes={2})
    shared.choose(Quantize(mode="static"), dict.fromkeys(shared.paths, seen))
    assert "inputs of different ranges" in shared.reasons["table"]
    assert shared.quantizer is None


def test_a_weight_that_is_used_in_odd_ways_stays():
    model = nn.Sequential(nn.Embedding(4, 4), nn.Conv2d(4, 4, 1))
    linear = nn.Linear(4, 4)
    candidate = Candidate({"linear": linear, "conv": model[1]})
    candidate.choose(Quantize(mode="weight_only"), {})
    assert "cannot be quantized for all" in candidate.reasons["conv"]


def test_other_layers_with_floats_are_listed():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.LayerNorm(3), nn.ReLU(), Own(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    assert unknown_layers(dict(model.named_modules())) == {
        "0": "no quantizer for LayerNorm; its 6 numbers stay in floats",
        "2": "Own is a subclass of Linear and may compute something else",
        "3": "no quantizer for BatchNorm1d; its 8 numbers stay in floats",
    }


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
@pytest.mark.parametrize("how", ["packed", "torchao", "eight bits"])
def test_a_model_that_is_quantized_already_is_refused(how):
    layer = nn.Linear(32, 32)
    if how == "packed":
        layer = DYNAMIC_LINEAR.carry_out(layer, {})
    elif how == "torchao":
        layer = AO_WEIGHT.carry_out(layer, {})
    else:
        layer.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    model = nn.Sequential(nn.ReLU(), layer)
    with pytest.raises(SettingError, match=r"quantized already \(1 layers, such as '1"):
        check_not_quantized(dict(model.named_modules()))
    check_not_quantized(dict(mlp().named_modules()))
