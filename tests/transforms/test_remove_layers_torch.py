import json

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tiny_transformers import continued, continued_without_cache, tiny
from torch_workloads import bits_of, held, is_unchanged, mlp, outputs, workload

from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.remove_layers import RemoveLayers

LISTS = {
    "llama": "model.layers",
    "gpt2": "transformer.h",
    "bert": "bert.encoder.layer",
    "vit": "vit.layers",
    "resnet": "resnet.encoder.stages",
}


def shortened(case, **settings):
    transform = RemoveLayers(**settings)
    plan = transform.plan(case)
    return plan, transform.apply(case, plan)


def reasons(plan):
    return {each.layer: each.reason for each in plan.skipped}


@pytest.mark.parametrize("name", LISTS)
def test_a_shorter_model_computes_as_if_the_layer_let_all_pass(name):
    case = tiny(name)
    before = bits_of(case.model)
    plan, model = shortened(case, count=1)
    assert is_unchanged(case.model, before)
    assert plan.layers[0].startswith(LISTS[name])
    assert plan.shrinkage.value == held(case.model) / held(model) > 1
    case.model.get_submodule(plan.layers[0]).forward = lambda x, *_, **__: x
    assert (outputs(case.model, case) == outputs(model, case)).all()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_shorter_language_model_generates(name, count):
    case = tiny(name)
    plan, model = shortened(case, count=count)
    assert len(plan.steps) == count
    ids = case.inputs[0]
    assert torch.equal(continued(model, ids), continued_without_cache(model, ids))
    assert model.config.num_hidden_layers == 3 - count
    assert case.model.config.num_hidden_layers == 3
    layers = model.get_submodule(LISTS[name])
    assert [_attention(layer).layer_idx for layer in layers] == list(range(3 - count))


def _attention(layer):
    return getattr(layer, "self_attn", None) or layer.attn


def test_a_config_that_says_the_depth_rebuilds_the_model(tmp_path):
    case = tiny("llama")
    plan, model = shortened(case, count=1)
    assert "num_hidden_layers=2" in plan.notes[0]
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert (outputs(again, case) == outputs(model, case)).all()


def test_lists_in_a_config_lose_the_same_entries():
    transformers = require_part("transformers")
    config = transformers.Qwen2Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["full_attention", "sliding_attention"] * 2,
        sliding_window=4,
        use_sliding_window=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    case = workload(transformers.Qwen2ForCausalLM(config), 2, 7, vocabulary=50)
    plan, model = shortened(case, count=1)
    kept = [place for place in range(4) if f"model.layers.{place}" not in plan.layers]
    assert model.config.layer_types == [config.layer_types[place] for place in kept]
    ids = case.inputs[0]
    assert torch.equal(continued(model, ids), continued_without_cache(model, ids))


def test_the_layers_that_are_missed_least_go_first():
    case = tiny("vit")
    with torch.no_grad():
        block = case.model.vit.layers[1]
        for layer in (block.attention.o_proj, block.mlp.fc2):
            layer.weight.zero_()
            layer.bias.zero_()
    plan, model = shortened(case, count=2)
    assert plan.layers[0] == "vit.layers.1"
    assert plan.steps[0].settings == {"order": 0, "change_alone": 0.0, "change_together": 0.0}
    assert plan.steps[1].settings["change_together"] == plan.steps[1].settings["change_alone"] > 0
    assert len(model.vit.layers) == 1
    assert json.loads(json.dumps(plan.to_dict()))["steps"][0]["layer"] == "vit.layers.1"


def test_no_more_goes_than_can():
    plan, model = shortened(tiny("vit"), count=9)
    assert len(model.vit.layers) == 1
    assert "only 2 layers can be removed, 9 were asked for" in plan.notes
    assert any("nothing else of its kind is in its list" in why for why in reasons(plan).values())


def test_norms_do_not_spend_the_count():
    inner = [nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8)]
    case = workload(nn.Sequential(*inner, nn.Linear(8, 3)), 2, 8)
    plan, model = shortened(case, count=2)
    assert set(plan.layers) == {"0", "3"}
    assert reasons(plan)["1"].startswith("it multiplies by no matrix")
    assert len(model) == 3


def test_kept_layers_and_typing_errors_are_told():
    plan, _ = shortened(tiny("vit"), keep=("vit.layers.0", "vit.layer.1"))
    assert reasons(plan)["vit.layers.0"] == "kept by keep='vit.layers.0'"
    assert "keep='vit.layer.1' matches no layer that can be removed" in plan.notes


def test_a_model_without_such_layers_stays():
    case = workload(mlp(16), 2, 16)
    plan, model = shortened(case, keep=("0",))
    assert plan.is_empty
    assert held(model) == held(case.model)
    assert set(reasons(plan)) == {"0", "2"}


def test_encoder_layers_of_torch_can_go():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    case = workload(nn.Sequential(encoder, nn.Linear(16, 2)), 2, 5, 16)
    plan, model = shortened(case, count=1)
    assert plan.layers[0].startswith("0.layers.")
    assert len(model[0].layers) == 2


def test_what_cannot_be_called_or_changed_has_a_reason():
    with pytest.raises(SettingError, match="on calibration data or inputs, and there are none"):
        RemoveLayers().plan(Workload("bare", mlp(16), ()))
    plan = RemoveLayers().plan(Workload("f", lambda x: mlp(2)(x), (torch.ones(1, 2),)))
    assert "only the layers of a Module" in reasons(plan)[""]


def test_a_plan_is_carried_out_on_its_own_model_only():
    settings = RemoveLayers()
    plan = settings.plan(tiny("vit"))
    with pytest.raises(SettingError, match="make a plan for this model"):
        settings.apply(workload(mlp(16), 2, 16), plan)
    with pytest.raises(SettingError, match="this plan was made by"):
        RemoveLayers(count=2).apply(tiny("vit"), plan)
