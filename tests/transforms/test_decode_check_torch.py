import pytest
from parts import require_part

torch = require_part("torch")
require_part("transformers")

from tiny_transformers import decoder

from tinytorch.errors import ModelError
from tinytorch.transforms.static_generation.generation import TokenChoice
from tinytorch.transforms.static_generation.torch import DecodeSession, SessionSettings, check_step


def session(model, **changes):
    settings = {"batch": 3, "length": 64, "choice": TokenChoice(), "compile": False} | changes
    return DecodeSession(model, SessionSettings(**settings), torch.device("cpu"))


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "bloom"])
def test_a_model_that_uses_the_cache_well_passes(name, dtype, ragged):
    held = session(decoder(name, dtype), is_ragged=ragged)
    check_step(held)
    assert held.cache_bytes > 0


def test_a_batch_of_one_and_no_room_to_spare_pass():
    held = session(decoder("llama"), batch=1, length=2)
    check_step(held)
    assert held.cache_bytes > 0


def test_a_window_that_depends_on_the_length_of_the_cache_is_found():
    with pytest.raises(ModelError, match=r"GPTNeoForCausalLM gives other scores .* its own"):
        check_step(session(decoder("gpt_neo")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_that_are_not_followed_are_found(dtype, monkeypatch):
    model = decoder("llama", dtype)
    held, forward = session(model), model.forward

    def forgetful(**keywords):
        if keywords["past_key_values"] is held.cache:
            keywords["position_ids"] = torch.zeros_like(keywords["input_ids"])
        return forward(**keywords)

    monkeypatch.setattr(model, "forward", forgetful)
    with pytest.raises(ModelError, match="gives other scores"):
        check_step(held)


def test_scores_that_are_no_numbers_are_found():
    model = decoder("llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ModelError, match="by nan of the largest"):
        check_step(session(model))


def test_scores_that_are_all_zero_are_equal():
    model = decoder("llama", tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    held = session(model)
    check_step(held)
    assert held.cache_bytes > 0


def test_a_model_that_fails_with_the_cache_is_refused_with_what_it_said(monkeypatch):
    model = decoder("llama")
    held, forward = session(model), model.forward

    def failing(**keywords):
        if keywords["past_key_values"] is held.cache:
            raise RuntimeError("The expanded size of the tensor (64) must match")
        return forward(**keywords)

    monkeypatch.setattr(model, "forward", failing)
    message = r"LlamaForCausalLM fails with .* cache \(RuntimeError: The expanded size .* support"
    with pytest.raises(ModelError, match=message):
        check_step(held)


def test_too_little_memory_is_no_fault_of_the_model(monkeypatch):
    model = decoder("llama")
    held, forward = session(model), model.forward

    def failing(**keywords):
        if keywords["past_key_values"] is held.cache:
            raise torch.OutOfMemoryError("no room")
        return forward(**keywords)

    monkeypatch.setattr(model, "forward", failing)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        check_step(held)
