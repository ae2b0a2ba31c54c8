"""What a static generator refuses: prompts, settings, and models that cannot."""

import pytest
from parts import require_part

torch = require_part("torch")
transformers = require_part("transformers")

from plain_generators_torch import plain
from tiny_transformers import decoder, generated, prompts, seeded

from tinytorch.errors import (
    BackendError,
    DTypeError,
    ModelError,
    SettingError,
    ShapeError,
    TokenError,
)
from tinytorch.transforms.static_generation import generation_call
from tinytorch.transforms.static_generation.torch import StaticGenerator

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def model():
    return decoder("llama")


# ---------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("ids", "mask", "error", "message"),
    [
        ([[1, 2]], None, DTypeError, "a tensor of token ids, got list"),
        (torch.ones(1, 2), None, DTypeError, "whole numbers, got torch.float32"),
        (torch.ones(1, 2, dtype=torch.bool), None, DTypeError, "whole numbers, got torch.bool"),
        (torch.ones(2, dtype=torch.int64), None, ShapeError, r"\(batch, length\), got \(2,\)"),
        (torch.ones(1, 0, dtype=torch.int64), None, ShapeError, r"got \(1, 0\)"),
        (torch.ones(0, 3, dtype=torch.int64), None, ShapeError, r"got \(0, 3\)"),
        (torch.tensor([[1, 50]]), None, TokenError, "from 0 to 49, got 1 to 50"),
        (torch.tensor([[-1, 5]]), None, TokenError, "from 0 to 49, got -1 to 5"),
        (torch.ones(1, 2, dtype=torch.int64), [[1, 1]], DTypeError, "zeros and ones, got list"),
        (torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 3), ShapeError, r"mask is \(1, 3\)"),
        (torch.ones(1, 2, dtype=torch.int64), torch.tensor([[1, 0]]), SettingError, "on the left"),
        (
            torch.ones(1, 4, dtype=torch.int64),
            torch.tensor([[1, 0, 1, 1]]),
            SettingError,
            "on the left",
        ),
    ],
)
def test_wrong_prompts_are_refused(model, ids, mask, error, message):
    generator = plain(model)
    with pytest.raises(error, match=message):
        generator(ids, mask)
    assert generator.cache_bytes == 0


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "3"])
def test_a_wrong_number_of_new_tokens_is_refused(model, count):
    ids, _ = prompts()
    with pytest.raises(SettingError, match="max_new_tokens="):
        plain(model).generate(ids, max_new_tokens=count)
    with pytest.raises(SettingError, match="max_new_tokens="):
        plain(model, max_new_tokens=count)


def test_a_text_that_does_not_fit_is_refused(model):
    ids, _ = prompts()
    with pytest.raises(SettingError, match=r"7 tokens .* 20 new ones .* a cache of length=26"):
        plain(model, length=26)(ids)
    assert torch.equal(plain(model, length=27)(ids), generated(model, ids))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_more_positions_than_the_model_has_are_refused(name):
    model, (ids, _) = decoder(name), prompts()
    generator = plain(model)
    with pytest.raises(SettingError, match="do not fit into max_position_embeddings=96"):
        generator.generate(ids, max_new_tokens=90)
    expected = generated(model, ids, count=89)
    assert torch.equal(generator.generate(ids, max_new_tokens=89), expected)


def test_a_tiny_cache_is_enough_for_a_tiny_text(model):
    ids, _ = prompts(length=1)
    generator = plain(model, length=2, max_new_tokens=1)
    assert torch.equal(generator(ids), generated(model, ids, count=1))


def test_settings_that_are_not_known_are_named(model):
    ids, _ = prompts()
    with pytest.raises(SettingError, match=r"repetition_penalty cannot be set here; .* do_sample"):
        plain(model).generate(ids, repetition_penalty=1.2)
    with pytest.raises(SettingError, match="temperature=-1"):
        plain(model).generate(ids, do_sample=True, temperature=-1)


def test_prompts_on_another_device_are_refused(model):
    ids, _ = prompts()
    with pytest.raises(BackendError, match=r'on meta, the model is on cpu; .* \.to."cpu"'):
        plain(model)(ids.to("meta"))


def test_a_model_on_several_devices_is_refused(model):
    generator, (ids, _) = plain(model), prompts()
    model.model.norm.to("meta")
    with pytest.raises(BackendError, match="several devices"):
        generator(ids)


def test_training_mode_is_refused_because_of_dropout():
    model, (ids, _) = decoder("gpt2"), prompts()
    generator = plain(model)
    model.train()
    with pytest.raises(ModelError, match=r"training mode, .* call eval"):
        generator(ids)
    assert model.training
    model.eval()
    assert torch.equal(generator(ids), generated(model, ids))


# ---------------------------------------------------------------- models that cannot


@pytest.mark.parametrize("setting", [{"repetition_penalty": 1.3}, {"num_beams": 4}])
def test_a_config_that_asks_for_more_is_refused(model, setting):
    ids, _ = prompts()
    generator = plain(model)
    for name, value in setting.items():
        setattr(model.generation_config, name, value)
        with pytest.raises(ModelError, match=f"asks for more .*{name}={value}"):
            plain(model)
        with pytest.raises(ModelError, match=f"asks for more .*{name}={value}"):
            generator(ids)


def test_an_encoder_with_a_decoder_is_refused():
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2
    )
    with pytest.raises(ModelError, match="only decoders are supported"):
        plain(seeded(transformers.T5ForConditionalGeneration, config))


def test_a_state_space_model_is_refused():
    config = transformers.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1)
    with pytest.raises(ModelError, match="no generation with a preallocated cache"):
        plain(seeded(transformers.MambaForCausalLM, config))


def test_a_model_that_uses_the_cache_wrongly_is_refused():
    ids, _ = prompts()
    generator = plain(decoder("gpt_neo"))
    with pytest.raises(ModelError, match="it does not support such a cache"):
        generator(ids)
    assert generator.cache_bytes == 0


def test_wrappers_and_compiled_models_are_refused(model):
    with pytest.raises(ModelError, match=r"it is a Generation, .* give the model in it"):
        plain(generation_call(model, max_new_tokens=3))
    with pytest.raises(ModelError, match="it is a StaticGenerator"):
        plain(plain(model))
    with pytest.raises(ModelError, match="it is compiled"):
        plain(torch.compile(model, backend="eager"))


def test_a_plain_module_is_refused():
    with pytest.raises(ModelError, match="Linear is no model of transformers"):
        StaticGenerator(torch.nn.Linear(2, 2))
