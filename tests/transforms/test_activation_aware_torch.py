"""ActivationAwareQuantize: floats and bytes stay as they are, and rounding hurts less."""

import pytest
from parts import require_part

torch = require_part("torch")
require_part("torchao")
require_part("transformers")
nn = torch.nn

from tiny_transformers import DECODERS, VOCABULARY, gpt2, llama

from tinytorch.errors import SettingError
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms.activation_aware import ActivationAwareQuantize
from tinytorch.transforms.activation_aware.torch import (
    NEEDS_DATA,
    NO_PLACE,
    columns_of,
    exact_sites,
    fake_rounded,
    is_linear,
)
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.support.observing import calls_of
from tinytorch.tuning.loading import load_optimized
from tinytorch.tuning.saving import write_stack


def text(seed, rows=2):
    return torch.randint(VOCABULARY, (rows, 16), generator=torch.Generator().manual_seed(seed))


def decoder(make, **changes):
    """Return a decoder whose norms give some channels that are eight times as large."""
    model = make(use_cache=False, **changes).eval()
    with torch.no_grad():
        for module in model.modules():
            if "Norm" in type(module).__name__:
                module.weight[::7] *= 8
    calibration = [(text(seed),) for seed in range(3, 7)]
    return Workload("decoder", model, (text(1),), calibration)


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 4}


def sites_of(it):
    return {each.source.split(".", 2)[-1]: each for each in exact_sites(it.model, calls_of(it)[0])}


def test_sites_are_those_where_a_scale_changes_nothing():
    names = sites_of(decoder(llama, **SIZES))
    assert any("input_layernorm" in name for name in names)
    assert any("post_attention_layernorm" in name for name in names)
    assert any("mlp.up_proj" in name for name in names)  # the product with the gate is linear in it
    assert any("v_proj" in name for name in names)
    assert not any("gate_proj" in name or "q_proj" in name for name in names)


def test_a_nonlinear_function_between_two_layers_is_no_site():
    names = sites_of(decoder(gpt2))
    assert any("ln_1" in name for name in names)
    assert not any("c_fc" in name for name in names)


def test_a_norm_with_another_user_is_no_site():
    class Post(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = nn.LayerNorm(16), nn.Linear(16, 16)

        def forward(self, x):
            x = self.norm(x)
            return x + torch.relu(self.up(x))

    it = Workload("post", Post().eval(), (torch.randn(4, 16),), [(torch.randn(4, 16),)])
    assert exact_sites(it.model, calls_of(it)[0]) == []
    plan = ActivationAwareQuantize(bits=8).plan(it)
    assert plan.is_empty
    assert plan.skipped[0].reason == NO_PLACE


@pytest.mark.parametrize("bits", [8, 4])
def test_it_errs_less_than_plain_rounding_where_some_inputs_are_large(bits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 48)).eval()
    with torch.no_grad():
        model[0].weight[::32] *= 50
    data = [(torch.randn(32, 64),) for _ in range(3)]
    it = Workload("outliers", model, (torch.randn(32, 64),), data)
    ours, plain = ActivationAwareQuantize(bits=bits), Quantize(mode="weight_only", bits=bits)
    with torch.no_grad():
        expected = model(*it.inputs)
        scaled, rounded = (
            (each.apply(it, each.plan(it))(*it.inputs) - expected).square().mean()
            for each in (ours, plain)
        )
    assert scaled < (0.95 if bits == 8 else 0.5) * rounded


def test_a_decoder_takes_the_bytes_of_plain_rounding_and_is_not_changed():
    it = decoder(gpt2)
    before = {name: each.clone() for name, each in it.model.state_dict().items()}
    ours, plain = ActivationAwareQuantize(bits=8), Quantize(mode="weight_only", bits=8)
    held = [TorchAdapter().held_bytes(each.apply(it, each.plan(it))) for each in (ours, plain)]
    assert held[0] == held[1]
    assert all(torch.equal(before[name], each) for name, each in it.model.state_dict().items())


def test_what_it_makes_is_saved_and_loaded(tmp_path):
    it = decoder(llama, **SIZES)
    transform = ActivationAwareQuantize(bits=8)
    plan = transform.plan(it)
    path = write_stack(tmp_path, it, name="decoder", stack=["int8-weights-awq"], plans=[plan])
    again = load_optimized(path, it)
    expected = transform.apply(it, plan)
    assert torch.equal(again(*it.inputs).logits, expected(*it.inputs).logits)


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_for_the_choice_is_that_of_the_quantizer(bits):
    torch.manual_seed(0)
    layer = nn.Linear(64, 32, bias=False).eval()
    it = Workload("layer", nn.Sequential(layer).eval(), (torch.eye(64),))
    plain = Quantize(mode="weight_only", bits=bits)
    with torch.no_grad():
        found = plain.apply(it, plain.plan(it))(torch.eye(64)).float().T
    step = layer.weight.abs().max() / (127 if bits == 8 else 7.5)
    off = (fake_rounded(layer.weight.data, bits, None) - found).abs() / step
    assert off.max() < 1.01
    assert (off > 0.55).float().mean() <= 1 / 64  # the end of each row's range may go either way


def test_without_calibration_data_it_says_so():
    it = Workload("none", decoder(gpt2).model, (text(1),))
    assert ActivationAwareQuantize().plan(it).skipped[0].reason == NEEDS_DATA


def test_kept_layers_are_neither_scaled_nor_rounded():
    it = decoder(gpt2)
    plan = ActivationAwareQuantize(bits=8, keep=("*c_attn",)).plan(it)
    model = ActivationAwareQuantize(bits=8, keep=("*c_attn",)).apply(it, plan)
    for path, layer in it.model.named_modules():
        if path.endswith("c_attn"):
            assert torch.equal(layer.weight, model.get_submodule(path).weight)


def test_settings_are_checked():
    with pytest.raises(SettingError):
        ActivationAwareQuantize(bits=3)
    with pytest.raises(SettingError):
        ActivationAwareQuantize(samples=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DECODERS))
def test_every_decoder_computes_the_same_after_scaling(name):
    import transformers

    kind, config, changes = DECODERS[name]
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    model = getattr(transformers, kind)(
        getattr(transformers, config)(**sizes | {"use_cache": False, "pad_token_id": 0} | changes)
    ).eval()
    it = Workload(name, model, (text(1),))
    with torch.no_grad():
        before = model(text(1)).logits.clone()
        sites = exact_sites(model, calls_of(it)[0])
        after = model(text(1)).logits
    assert sites
    assert all(is_linear(model.get_submodule(user)) for each in sites for user in each.users)
    assert (after - before).abs().max() <= 1e-4 * before.abs().max()
    assert columns_of(model.get_submodule(sites[0].users[0])).dim() == 2
