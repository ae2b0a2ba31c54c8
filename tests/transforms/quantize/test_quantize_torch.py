import json
from dataclasses import replace

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
require_part("torchao")

from torch_workloads import (
    ADAPTER,
    Branching,
    Residual,
    Tied,
    bits_of,
    held,
    is_unchanged,
    mlp,
    quantized,
    relative_error,
    seeded,
    workload,
)

import tinytorch
from tinytorch.comparison.resources import measure_resources
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import Plan
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.quantize.sensitivity import measure_sensitivity
from tinytorch.transforms.quantize.torch import GRAPH, plan_torch

MODES = [
    {"mode": "weight_only"},
    {"mode": "weight_only", "bits": 4},
    {"mode": "dynamic"},
    {"mode": "static"},
]
# Relative change of the outputs of two or three layers: eight bits of weights give 0.5% per layer,
# inputs of seven or eight bits about 1%, four bits of weights 16 times as much as eight.
ERRORS = {
    ("weight_only", 8): 0.02,
    ("weight_only", 4): 0.25,
    ("dynamic", 8): 0.05,
    ("static", 8): 0.06,
}
MODELS = {
    "mlp": lambda dtype: workload(seeded(mlp), 8, 128, dtype=dtype),
    "convolutions": lambda dtype: workload(seeded(Residual), 4, 3, 12, 12, dtype=dtype),
    "untraceable": lambda dtype: workload(seeded(Branching), 4, 3, 12, 12, dtype=dtype),
    "tied": lambda dtype: workload(seeded(Tied), 2, 5, vocabulary=96, dtype=dtype),
}


def settings_of(plan):
    return {step.layer: step.settings for step in plan.steps}


def reasons(plan):
    return {each.layer: each.reason for each in plan.skipped}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("settings", MODES, ids=lambda each: "-".join(map(str, each.values())))
@pytest.mark.parametrize("name", MODELS)
def test_plans_are_carried_out_as_predicted(name, settings, dtype):
    case = MODELS[name](dtype)
    before = bits_of(case.model)
    plan, model = quantized(case, **settings)
    assert is_unchanged(case.model, before)
    assert (plan.transform, plan.settings) == ("Quantize", Quantize(**settings).to_dict())
    if plan.is_empty:
        assert reasons(plan)
        return
    assert plan.shrinkage.value == held(case.model) / held(model)
    assert relative_error(case, model) < ERRORS[settings["mode"], settings.get("bits", 8)]
    assert not any(each.requires_grad for each in model.parameters())
    # A copy, as every comparison makes, is the same model.
    twin = ADAPTER.clone(model)
    assert held(twin) == held(model)
    np.testing.assert_array_equal(
        *(ADAPTER.arrays(each(*case.inputs))[0] for each in (twin, model))
    )


def test_every_layer_with_floats_is_in_the_plan_once():
    case = MODELS["convolutions"](torch.float32)
    plan = Quantize(mode="static", keep=("head",)).plan(case)
    assert sorted([*plan.layers, *reasons(plan)]) == ["conv", "head", "norm", "stem"]
    assert reasons(plan)["head"] == "kept by keep='head'"
    assert reasons(plan)["norm"].startswith("torch folds it into the convolution before it")


def test_a_model_that_can_be_traced_is_quantized_as_one_graph():
    plan, model = quantized(MODELS["convolutions"](torch.float32), mode="static")
    assert {each["by"] for each in settings_of(plan).values()} == {GRAPH}
    assert isinstance(model, torch.fx.GraphModule)
    assert plan.shrinkage.basis.endswith("counted on a traced copy")


def test_one_that_cannot_is_quantized_layer_by_layer():
    plan, model = quantized(MODELS["untraceable"](torch.float32), mode="static")
    assert {each["by"] for each in settings_of(plan).values()} == {
        "torch.ao.quantization.QuantWrapper"
    }
    assert "cannot be traced (TraceError: symbolically traced variables" in plan.notes[0]
    assert type(model) is Branching


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_can_be_written_down(name):
    for settings in MODES:
        plan = Quantize(**settings).plan(MODELS[name](torch.float32))
        written = json.loads(json.dumps(plan.to_dict()))
        assert [step["layer"] for step in written["steps"]] == [each.layer for each in plan.steps]


def test_a_part_of_a_plan_can_be_carried_out():
    case = MODELS["convolutions"](torch.float32)
    transform = Quantize(mode="static")
    plan = transform.plan(case)
    for step in plan.steps:
        model = transform.apply(case, replace(plan, steps=(step,)))
        assert relative_error(case, model) < 0.03
    assert held(transform.apply(case, replace(plan, steps=()))) == held(case.model)


def test_layers_that_hurt_stay_in_floats():
    case = MODELS["mlp"](torch.float32)
    alone = measure_sensitivity(case, Quantize(mode="dynamic"))
    limit = max(each.error for each in alone.layers)
    assert limit < alone.together.error
    plan, model = quantized(case, mode="dynamic", max_error=limit)
    assert len(plan.steps) == 1
    assert "beyond max_error" in next(iter(reasons(plan).values()))
    assert plan.shrinkage.value == held(case.model) / held(model)


def test_a_tied_table_stays_tied_and_is_held_once():
    case = MODELS["tied"](torch.float32)
    for settings in MODES:
        plan, model = quantized(case, **settings)
        assert model.table.weight is model.heads[0].weight
        assert settings_of(plan)["table"]["layers"] == ("table", "heads.0")
        assert held(model) < held(case.model) / 2.5


def test_a_layer_in_two_places_stays_one_layer():
    layer = nn.Linear(64, 64)
    case = workload(nn.Sequential(layer, nn.ReLU(), layer), 4, 64)
    for settings in MODES:
        plan, model = quantized(case, **settings)
        assert plan.layers == ("0",)
        assert model[0] is model[2]


def test_hooks_and_modes_go_over_to_the_new_layers():
    model, calls = mlp(), []
    handle = model[0].register_forward_hook(lambda *_: calls.append(1))
    case = replace(workload(model, 8, 128))
    model[2].train()
    _, changed = quantized(case, mode="dynamic")
    calls.clear()
    changed(*case.inputs)
    assert calls == [1]
    assert (changed[0].training, changed[2].training) == (False, True)
    assert list(model[0]._forward_hooks) == [handle.id]


def test_the_model_may_be_a_single_layer():
    case = workload(nn.Linear(64, 32), 4, 64)
    plan, model = quantized(case, mode="dynamic")
    assert plan.layers == ("",)
    assert type(model) is not nn.Linear


def test_dynamic_mode_needs_no_inputs_to_plan():
    plan = Quantize(mode="weight_only").plan(Workload("alone", mlp(), ()))
    assert len(plan.steps) == 2


def test_nothing_is_promised_about_time():
    for settings in MODES:
        plan = Quantize(**settings).plan(MODELS["mlp"](torch.float32))
        assert plan.speedup is None
        assert "compare() measures it" in plan.not_predicted["speedup"]
    assert (
        "fast for bfloat16 only; for float32"
        in Quantize(mode="weight_only", bits=4).plan(MODELS["mlp"](torch.float32)).notes[0]
    )


@pytest.mark.parametrize("has_vnni", [False, True])
def test_a_bit_that_is_not_used_is_told(monkeypatch, has_vnni):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: has_vnni)
    linear = Quantize(mode="dynamic").plan(MODELS["mlp"](torch.float32))
    assert any("7 of the 8 bits" in note for note in linear.notes) is not has_vnni
    recurrent = Quantize(mode="dynamic").plan(workload(nn.LSTM(16, 16), 3, 2, 16))
    assert "inputs of recurrent layers" in recurrent.notes[0]


def test_what_holds_for_a_gpu_is_not_told_about_a_processor():
    for settings in MODES:
        notes = Quantize(**settings).plan(MODELS["tied"](torch.bfloat16)).notes
        assert not any("GPU" in note for note in notes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("settings", MODES, ids=lambda each: "-".join(map(str, each.values())))
def test_plans_for_a_gpu_say_that_uncompiled_layers_are_slow(settings):
    case = MODELS["mlp"](torch.bfloat16)
    case.model.cuda()
    batches = tuple(tuple(each.cuda() for each in batch) for batch in case.calibration)
    case = replace(case, inputs=tuple(each.cuda() for each in case.inputs), calibration=batches)
    plan = Quantize(**settings).plan(case)
    if plan.is_empty:
        pytest.skip("; ".join(plan.skipped_by_reason))
    assert any("slower than floats on a GPU" in note for note in plan.notes)


# ---------------------------------------------------------------- bad input


def test_a_model_is_not_quantized_twice():
    case = MODELS["mlp"](torch.float32)
    for settings in MODES:
        plan, model = quantized(case, **settings)
        again = replace(case, model=model)
        with pytest.raises(SettingError, match="quantized already"):
            Quantize(mode="dynamic").plan(again)
        with pytest.raises(SettingError, match="quantized already"):
            Quantize(**settings).apply(again, plan)


def test_static_quantization_needs_data():
    case = replace(MODELS["mlp"](torch.float32), calibration=())
    with pytest.raises(SettingError, match="needs calibration data"):
        Quantize(mode="static").plan(case)
    wrong = replace(case, calibration=((torch.ones(2, 3),),))
    with pytest.raises(SettingError, match="batch 0 of 1 does not fit the model"):
        Quantize(mode="static").plan(wrong)


def test_a_plan_belongs_to_its_model_and_settings():
    case = MODELS["mlp"](torch.float32)
    plan = Quantize(mode="dynamic").plan(case)
    with pytest.raises(SettingError, match="this plan was made by"):
        Quantize(mode="weight_only").apply(case, plan)
    other = workload(nn.ReLU(), 8, 128)
    with pytest.raises(SettingError, match="no layer '0'; make a plan for this model"):
        Quantize(mode="dynamic").apply(other, plan)
    odd = workload(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Linear(2, 2)), 1, 1, 2, 2)
    with pytest.raises(SettingError, match=r"cannot quantize '0', a Conv2d"):
        Quantize(mode="dynamic").apply(odd, plan)


def compiled_in_place():
    model = mlp()
    model[0].compile(backend="eager")
    return model


@pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(2)), "no shape yet"),
        (lambda: torch.jit.trace(mlp(), torch.ones(1, 128)), "compiled by torch.jit"),
        (lambda: torch.compile(mlp(), backend="eager"), "call torch.compile on the result"),
        (compiled_in_place, "call torch.compile on the result"),
        (lambda: mlp().forward, "only the layers of a Module"),
    ],
)
def test_models_whose_layers_nobody_can_replace_are_left_alone(model, reason):
    plan = plan_torch(Workload("odd", model(), (torch.ones(1, 128),)), Quantize(mode="dynamic"))
    assert isinstance(plan, Plan)
    assert plan.is_empty
    assert reason in reasons(plan)[""]


# ---------------------------------------------------------------- decoders, and the comparer


def gpt2(**changes):
    transformers = require_part("transformers")
    sizes = {"vocab_size": 131, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 32}
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    return seeded(transformers.GPT2LMHeadModel, transformers.GPT2Config(**sizes | tokens | changes))


@pytest.mark.parametrize("settings", MODES, ids=lambda each: "-".join(map(str, each.values())))
def test_gpt2_is_quantized_with_its_table_and_still_writes(settings):
    case = workload(gpt2(), 2, 8, vocabulary=131)
    before = bits_of(case.model)
    plan, model = quantized(case, **settings)
    assert is_unchanged(case.model, before)
    assert settings_of(plan)["transformer.wte"]["layers"] == ("transformer.wte", "lm_head")
    assert len(plan.steps) == 2 + 2 * 4
    assert all("LayerNorm" in reason for reason in reasons(plan).values())
    assert model.lm_head.weight is model.transformer.wte.weight
    assert plan.shrinkage.value == held(case.model) / held(model)
    assert relative_error(case, model) < ERRORS[settings["mode"], settings.get("bits", 8)]
    written = model.generate(torch.tensor([[1, 2]]), max_new_tokens=2, do_sample=False)
    assert written.shape == (1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", MODES, ids=lambda each: "-".join(map(str, each.values())))
@pytest.mark.parametrize("name", ["Llama", "Qwen2", "OPT"])
def test_decoders_of_other_families_are_quantized(name, settings):
    transformers = require_part("transformers")
    sizes = {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 2, "use_cache": False}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 64}
    if name == "OPT":
        sizes |= {"ffn_dim": 256, "word_embed_proj_dim": 128}
    else:
        sizes |= {"intermediate_size": 352, "num_key_value_heads": 2}
        sizes["tie_word_embeddings"] = name == "Qwen2"
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = seeded(getattr(transformers, f"{name}ForCausalLM"), config)
    case = workload(model, 2, 16, vocabulary=512)
    plan, changed = quantized(case, **settings)
    assert plan.shrinkage.value == held(model) / held(changed) > 3.4
    assert relative_error(case, changed) < ERRORS[settings["mode"], settings.get("bits", 8)]


def test_files_are_as_small_as_what_is_held(tmp_path):
    case = workload(seeded(mlp, 512), 8, 512)
    for number, settings in enumerate(MODES):
        _, model = quantized(case, **settings)
        path = tmp_path / str(number)
        ADAPTER.save(model, path)
        # Names and settings, and scales of torch that take twice the bytes in a file.
        assert held(model) <= path.stat().st_size < 1.05 * held(model) + 6000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "mode"),
    [
        (lambda: workload(seeded(mlp, 1024), 8, 1024), "dynamic"),
        (lambda: workload(gpt2(), 2, 8, vocabulary=131), "weight_only"),
    ],
    ids=["mlp", "gpt2"],
)
def test_the_comparer_takes_what_comes_out(make, mode):
    case = make()
    _, model = quantized(case, mode=mode)
    candidate = replace(case, name="quantized", model=model)
    found = tinytorch.compare(case, candidate, budget_s=0.2)
    before, after = (each.parameter_bytes for each in found.resources)
    assert (before, after) == (held(case.model), held(model))
    assert before / after > 3.4
    assert found.resources[1].peak_bytes > after
    assert found.outputs.sqnr_db > 25
    assert found.verdict in ("faster", "slower", "same", "inconclusive")


def test_a_quantized_model_is_measured_like_any_other():
    case = MODELS["convolutions"](torch.float32)
    _, model = quantized(case, mode="static")
    found = measure_resources(replace(case, model=model))
    assert found.parameter_bytes == held(model)
    assert set(found.not_measured) == {"device_peak_bytes"}
