"""GPT-2 checkpoints as `transformers` writes them: the same logits, the same tokens."""

import json

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.checkpoints import read_arrays, write_arrays
from tinytorch.core.transformers import GPT, Transformer
from tinytorch.errors import CheckpointError

torch = require_part("torch")
transformers = require_part("transformers")

SHAPES = {
    "small": {},
    "one head": {"n_head": 1, "n_layer": 1},
    "one layer with many heads": {"n_embd": 24, "n_head": 12, "n_layer": 1},
    "deep": {"n_layer": 5, "n_embd": 8, "n_head": 2},
    "inner width": {"n_inner": 20},
    "exact gelu": {"activation_function": "gelu"},
    "other epsilon": {"layer_norm_epsilon": 1e-2},
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Keep progress bars and advice out of the report."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def their_model(kind="GPT2LMHeadModel", **settings):
    torch.manual_seed(0)
    defaults = {"vocab_size": 37, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 4}
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    # Larger weights than usual, so that the logits differ and every part matters.
    config = transformers.GPT2Config(
        **{**defaults, **special, "initializer_range": 0.3, **settings}
    )
    model = getattr(transformers, kind)(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def saved(folder, model, **settings):
    model.save_pretrained(folder, **settings)
    return folder


def assert_same_logits(ours, theirs, rng):
    ids = rng.integers(0, 37, (3, 16))
    with torch.no_grad():
        wanted = theirs(torch.tensor(ids)).logits.numpy()
    found = ours(ids)
    assert np.abs(found.data - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_greedy_tokens_are_those_of_transformers(name, tmp_path, rng):
    theirs = their_model(**SHAPES[name])
    ours = GPT.from_gpt2(saved(tmp_path, theirs))
    assert not ours.training
    assert_same_logits(ours, theirs, rng)
    prompt = rng.integers(1, 37, (2, 4))
    wanted = theirs.generate(
        torch.tensor(prompt),
        attention_mask=torch.ones(2, 4, dtype=torch.long),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
    )
    np.testing.assert_array_equal(ours.generate(prompt, 12).data, wanted.numpy())


def test_shards_are_read_together(tmp_path, rng):
    theirs = their_model()
    folder = saved(tmp_path, theirs, max_shard_size="10KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert_same_logits(GPT.from_gpt2(str(folder)), theirs, rng)


def test_a_model_without_its_head_is_read(tmp_path, rng):
    base = their_model("GPT2Model")
    ours = GPT.from_gpt2(saved(tmp_path, base))
    whole = their_model()
    whole.transformer.load_state_dict(base.state_dict())
    assert_same_logits(ours, whole, rng)


def test_half_precision_weights_are_read(tmp_path, rng):
    theirs = their_model().half()
    folder = saved(tmp_path, theirs)
    assert_same_logits(GPT.from_gpt2(folder), theirs.float(), rng)


def test_masks_that_old_checkpoints_carry_are_left_out(tmp_path, rng):
    theirs = their_model()
    path = saved(tmp_path, theirs) / "model.safetensors"
    arrays, _ = read_arrays(path)
    extra = {"transformer.h.0.attn.bias": np.tri(16), "lm_head.weight": np.zeros((37, 16))}
    write_arrays(path, arrays | extra)
    assert_same_logits(GPT.from_gpt2(tmp_path), theirs, rng)


def test_a_subclass_with_other_argument_names_can_be_read(tmp_path, rng):
    theirs = their_model(n_layer=3)
    ours = Transformer.from_gpt2(saved(tmp_path, theirs))
    assert type(ours) is Transformer
    assert ours.num_layers == 3
    assert_same_logits(ours, theirs, rng)


# ---------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', needs 'gpt2'"),
        ({"model_type": None}, "model_type is None, needs 'gpt2'"),
        ({"activation_function": "relu"}, "activation_function 'relu' is not one of gelu_new, "),
        ({"scale_attn_weights": False}, "scale_attn_weights=False is not supported"),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx=True is not supported",
        ),
        ({"add_cross_attention": True}, "add_cross_attention=True is not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False is not supported"),
        ({"n_embd": None}, "n_embd must be an integer above 0, got None"),
        ({"n_layer": "2"}, "n_layer must be an integer above 0, got '2'"),
        ({"n_head": 3}, "embed_dim=16 must be a multiple of num_heads=3"),
        ({"n_layer": 3}, "missing key 'blocks.2.norm1.weight'"),
        ({"n_layer": 1}, "unknown key 'blocks.1."),
        ({"vocab_size": 38}, r"'token_embedding.weight' has shape \(37, 16\), .* needs \(38, 16\)"),
    ],
)
def test_a_config_that_does_not_fit_is_named(change, message, tmp_path):
    path = saved(tmp_path, their_model()) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message) as caught:
        GPT.from_gpt2(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", ["{", "", "[1]", "\x00"])
def test_a_config_that_is_broken_is_named(content, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json (cannot be read|holds no settings)"):
        GPT.from_gpt2(tmp_path)


def test_a_folder_without_config_or_weights_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(CheckpointError, match="gpt2 is not a folder"):
        GPT.from_gpt2("gpt2")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read: .*No such file"):
        GPT.from_gpt2(tmp_path)
    saved(tmp_path, their_model())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*model\.safetensors"):
        GPT.from_gpt2(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    saved(tmp_path, their_model(), max_shard_size="10KB")
    shard = max(tmp_path.glob("model-*.safetensors"))
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"there is no checkpoint at .*{shard.name}"):
        GPT.from_gpt2(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"weight_map": 3}'])
def test_a_broken_index_is_named(content, tmp_path):
    saved(tmp_path, their_model())
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"index\.json is not an index of weights"):
        GPT.from_gpt2(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_truncated_weights_are_an_error_that_names_the_file(share, tmp_path):
    path = saved(tmp_path, their_model()) / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read .*truncated"):
        GPT.from_gpt2(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("transformer.extra", np.zeros(1), "unknown key 'transformer.extra'"),
        (
            "transformer.h.0.attn.c_attn.weight",
            np.zeros((16, 47)),
            r"'transformer.h.0.attn.c_attn.weight' .* multiple of 3, got shape \(16, 47\)",
        ),
        (
            "transformer.h.1.mlp.c_fc.bias",
            np.zeros(5),
            r"'blocks.1.mlp.layers.0.bias' has shape \(5,\), the model needs \(64,\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(name, array, message, tmp_path):
    path = saved(tmp_path, their_model()) / "model.safetensors"
    arrays, _ = read_arrays(path)
    write_arrays(path, arrays | {name: array})
    with pytest.raises(CheckpointError, match=message):
        GPT.from_gpt2(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"activation_function": ["gelu"]},
        {"activation_function": {}},
        {"n_layer": 10**9},
        {"n_layer": 100_000},
        {"vocab_size": 10**12},
        {"n_positions": 10**300},
        {"n_embd": 2**40},
        {"n_inner": 10**12},
        {"n_inner": "wide"},
        {"n_inner": True},
        {"n_inner": -4},
        {"layer_norm_epsilon": True},
        {"n_head": 0},
        {"n_layer": True},
        {"layer_norm_epsilon": "small"},
        {"layer_norm_epsilon": None},
        {"scale_attn_weights": [True]},
    ],
)
def test_a_hostile_config_is_refused_before_a_model_is_built(change, tmp_path):
    path = saved(tmp_path, their_model()) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError) as caught:
        GPT.from_gpt2(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "weight_map",
    [
        {"a": "../outside.safetensors"},
        {"a": "../../outside.safetensors"},
        {"a": "/outside.safetensors"},
        {"a": "inner/model.safetensors"},
        {"a": ".."},
        {"a": ""},
        {"a": "zero\0byte"},
        {"a": "n" * 5000},
        {"a": ["model.safetensors"]},
        {"a": 3},
        [],
        "model.safetensors",
        None,
    ],
)
def test_weights_come_from_the_folder_and_nowhere_else(weight_map, tmp_path):
    folder = tmp_path / "one" / "two"
    folder.mkdir(parents=True)
    saved(folder, their_model())
    whole = (folder / "model.safetensors").read_bytes()
    for outside in (tmp_path, tmp_path / "one"):
        (outside / "outside.safetensors").write_bytes(whole)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError) as caught:
        GPT.from_gpt2(folder)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["[" * 100_000, '{"n_layer": ' + "9" * 5000 + "}", "[]", ""])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_that_is_none_is_refused(text, name, tmp_path):
    saved(tmp_path, their_model())
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError):
        GPT.from_gpt2(tmp_path)
