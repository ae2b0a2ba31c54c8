import types

import pytest
from parts import require_part

torch = require_part("torch")
transformers = require_part("transformers")

from tiny_transformers import decoder, seeded

from tinytorch.transforms.static_generation.cache import (
    PreallocatedLayer,
    preallocated_cache,
    why_no_cache,
)


def states(length, *, heads=2, width=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, heads, length, width, generator=generator)


def layer_with_prompt(length=8, prompt=3):
    state = torch.zeros(1, dtype=torch.int64)
    layer = PreallocatedLayer(length, state)
    layer.prompt_length = prompt
    given = states(prompt), states(prompt, seed=1)
    returned = layer.update(*given)
    layer.prompt_length = 0
    state.fill_(prompt)
    return layer, state, given, returned


def test_a_prompt_is_kept_and_attended_to_as_it_is():
    layer, _, (keys, values), returned = layer_with_prompt()
    assert returned[0] is keys
    assert returned[1] is values
    assert torch.equal(layer.keys[:, :, :3], keys)
    assert torch.equal(layer.values[:, :, :3], values)
    assert not layer.keys[:, :, 3:].any()


def test_a_token_goes_where_the_state_says_and_nothing_moves():
    layer, state, (keys, _), _ = layer_with_prompt()
    place = layer.keys.data_ptr()
    for at in (3, 4):
        state.fill_(at)
        all_keys, all_values = layer.update(states(1, seed=at), states(1, seed=10 + at))
        assert all_keys is layer.keys
        assert torch.equal(all_keys[:, :, at : at + 1], states(1, seed=at))
        assert torch.equal(all_values[:, :, at : at + 1], states(1, seed=10 + at))
    assert torch.equal(layer.keys[:, :, :3], keys)
    assert layer.keys.data_ptr() == place


def test_it_tells_masks_what_there_is():
    layer, state, _, _ = layer_with_prompt()
    assert layer.get_mask_sizes(1) == (8, 0)
    assert layer.get_max_length() == 8
    assert layer.get_seq_length() == 3
    state.fill_(5)
    assert layer.get_seq_length() == 5
    layer.prompt_length = 4
    assert layer.get_mask_sizes(4) == (4, 0)
    assert layer.get_seq_length() == 0


def test_values_may_have_another_shape_than_keys():
    layer = PreallocatedLayer(8, torch.zeros(1, dtype=torch.int64))
    layer.prompt_length = 3
    layer.update(states(3, heads=1, width=6), states(3, heads=2, width=4))
    assert layer.keys.shape == (1, 1, 8, 6)
    assert layer.values.shape == (1, 2, 8, 4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_there_is_a_layer_for_each_that_keeps_something(name):
    model = decoder(name)
    assert why_no_cache(model) == ""
    cache = preallocated_cache(model, 16, torch.zeros(1, dtype=torch.int64))
    assert len(cache.layers) == 2
    assert all(each.length == 16 for each in cache.layers)


def test_an_encoder_with_a_decoder_is_refused():
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2
    )
    model = seeded(transformers.T5ForConditionalGeneration, config)
    assert "only decoders are supported" in why_no_cache(model)


def test_a_model_of_another_kind_of_memory_is_refused():
    config = transformers.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1)
    assert why_no_cache(seeded(transformers.MambaForCausalLM, config)) != ""


def test_layers_that_keep_something_else_are_named():
    model = decoder("llama")
    model.config.layer_types = ["full_attention", "linear_attention"]
    assert why_no_cache(model).startswith(
        ("some of its layers keep something else", "transformers has no static cache for it")
    )


def test_a_model_that_takes_no_cache_is_refused():
    config = transformers.OpenAIGPTConfig(vocab_size=50, n_embd=16, n_layer=1, n_head=2)
    model = seeded(transformers.OpenAIGPTLMHeadModel, config)
    assert (
        why_no_cache(model) == "its forward takes no past_key_values, so it cannot be given a cache"
    )


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), types.SimpleNamespace(), None])
def test_what_is_no_model_of_transformers_is_refused(model):
    assert "is no model of transformers" in why_no_cache(model)
