"""Llama, Qwen2 and Qwen3 as `transformers` computes them: logits, tokens, gradients, caches."""

import json

import numpy as np
import pytest
from parts import require_part

from tinytorch import no_grad
from tinytorch.core.autograd import check_gradients
from tinytorch.core.dispatch import use_backend
from tinytorch.core.kernels import BACKENDS
from tinytorch.core.llama import GatedMLP, GroupedQueryAttention, Llama, RMSNorm, RotaryEmbedding
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CheckpointError, SettingError, ShapeError
from tinytorch.perf.memoization import disable_kv_cache, enable_kv_cache

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
    "rope_theta": 100.0,
}
MODELS = {
    "Llama": ("Llama", {}),
    "every head has its keys": ("Llama", {"num_key_value_heads": 4}),
    "one head of keys": ("Llama", {"num_key_value_heads": 1}),
    "biases, tied": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "scaled as Llama 3.1": ("Llama", {"rope_parameters": LLAMA3}),
    "linearly scaled": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "Qwen2": ("Qwen2", {}),
    "Qwen3, wide heads": ("Qwen3", {"head_dim": 8}),
}


def their_model(kind="Llama", **settings):
    torch, transformers = require_part("torch"), require_part("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    defaults = {
        "vocab_size": 37,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        # Larger weights than usual, so that the logits differ and every part matters.
        "initializer_range": 0.3,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    }
    config = getattr(transformers, f"{kind}Config")(**{**defaults, **settings})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean="norm" in name, std=0.3)
    return model


def their_logits(model, ids):
    torch = require_part("torch")
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.float().numpy()


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens_are_those_of_transformers(name, tmp_path, rng):
    kind, settings = MODELS[name]
    theirs = their_model(kind, **settings)
    theirs.save_pretrained(tmp_path)
    ours = Llama.from_transformers(tmp_path)
    assert not ours.training
    ids = rng.integers(0, 37, (3, 16))
    wanted = their_logits(theirs, ids)
    for backend in BACKENDS:
        with use_backend(backend):
            assert np.abs(ours(ids).data - wanted).max() < 1e-4 * np.abs(wanted).max()
    torch = require_part("torch")
    prompt = rng.integers(1, 37, (2, 4))
    tokens = theirs.generate(
        torch.tensor(prompt),
        attention_mask=torch.ones(2, 4, dtype=torch.long),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
    )
    np.testing.assert_array_equal(ours.generate(prompt, 12).data, tokens.numpy())
    np.testing.assert_array_equal(ours.generate(prompt[0], 12).data, tokens.numpy()[0])


def test_bfloat16_weights_are_read_exactly(tmp_path, rng):
    theirs = their_model().bfloat16()
    theirs.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = Llama.from_transformers(tmp_path)
    table = theirs.model.embed_tokens.weight.detach().float().numpy()
    np.testing.assert_array_equal(ours.token_embedding.weight.data, table)
    gate = theirs.model.layers[1].mlp.gate_proj.weight.detach().float().numpy()
    np.testing.assert_array_equal(ours.blocks[1].mlp.gate_proj.weight.data, gate.T)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mamba"},
        {"hidden_act": "gelu"},
        {"use_sliding_window": True},
        {"hidden_size": "16"},
        {"num_hidden_layers": 3},
        {"rms_norm_eps": "small"},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_cannot_be_computed_the_same_way_is_an_error(change, tmp_path):
    their_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError):
        Llama.from_transformers(tmp_path)


@pytest.mark.parametrize("name", ["../one.safetensors", "/one.safetensors", "..", "", "n" * 5000])
def test_weights_come_from_the_folder_and_nowhere_else(name, tmp_path):
    folder = tmp_path / "folder"
    their_model().save_pretrained(folder)
    (folder / "model.safetensors").rename(tmp_path / "one.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError) as caught:
        Llama.from_transformers(folder)
    assert len(str(caught.value).splitlines()) == 1


def test_a_truncated_file_is_an_error(tmp_path):
    their_model().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError):
        Llama.from_transformers(tmp_path)


# ---------------------------------------------------------------- without PyTorch


@pytest.fixture
def llama():
    model = Llama(50, 32, 2, 4, 64, num_kv_heads=2, hidden_dim=40, qk_norm=True, rng=0)
    return model.astype(np.float64).eval()


def test_a_cache_changes_no_logits(llama, rng):
    ids = rng.integers(0, 50, (2, 12))
    cache = llama.make_cache(2)
    assert cache.num_heads == 2
    parts = [ids[:, :5], ids[:, 5:6], ids[:, 6:9], ids[:, 9:10], ids[:, 10:]]
    logits = np.concatenate([llama.forward_with_cache(part, cache)[0].data for part in parts], 1)
    with no_grad():
        np.testing.assert_allclose(logits, llama(ids).data, atol=1e-12)


def test_rows_of_different_lengths_are_continued_as_if_alone(llama):
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    for prompt, row in zip(prompts, llama.generate(prompts, 6), strict=True):
        np.testing.assert_array_equal(row.data, llama.generate(prompt, 6, use_cache=False).data)


def test_an_attached_cache_continues_calls(llama, rng):
    ids = rng.integers(0, 50, (1, 9))
    with no_grad():
        wanted = llama(ids).data
    enable_kv_cache(llama)
    parts = [llama(ids[:, :4]).data, llama(ids[:, 4:]).data]
    disable_kv_cache(llama)
    np.testing.assert_allclose(np.concatenate(parts, 1), wanted, atol=1e-12)


def test_gradients_are_those_of_finite_differences(rng):
    rotary = RotaryEmbedding(4, 8)
    attention = GroupedQueryAttention(8, 4, 2, rotary, qk_norm=1e-6, rng=0)
    layers = (rotary, attention, GatedMLP(8, 12, rng=0), RMSNorm(8))
    for layer, width in zip(layers, (4, 8, 8, 8), strict=True):
        layer.astype(np.float64)
        x = Tensor(rng.normal(size=(2, 3, width)), requires_grad=True)
        slopes = Tensor(rng.normal(size=x.shape))
        check_gradients(
            lambda *inputs, layer=layer, slopes=slopes: (layer(inputs[0]) * slopes).sum(),
            *(x, *layer.parameters()),
        )


def test_positions_are_relative(rng):
    rotary = RotaryEmbedding(8, 100)
    query, key = (Tensor(rng.normal(size=(1, 1, 8))) for _ in range(2))
    scores = [
        float((rotary(query, start + 5).data * rotary(key, start).data).sum())
        for start in (0, 17, 90)
    ]
    np.testing.assert_allclose(scores, scores[0], atol=1e-12)
    np.testing.assert_allclose(
        np.square(rotary(query, 40).data).sum(), np.square(query.data).sum(), rtol=1e-12
    )


def test_settings_that_do_not_fit_are_errors():
    with pytest.raises(SettingError):
        Llama(50, 30, 2, 4)
    with pytest.raises(SettingError):
        Llama(50, 32, 2, 4, num_kv_heads=3)
    with pytest.raises(SettingError):
        RotaryEmbedding(7, 10)
    with pytest.raises(ShapeError):
        RotaryEmbedding(8, 4)(Tensor(np.zeros((1, 5, 8))))
    with pytest.raises(ShapeError):
        RMSNorm(8)(Tensor(np.zeros((1, 5, 7))))
