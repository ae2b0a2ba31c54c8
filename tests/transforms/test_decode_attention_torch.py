import threading

import pytest
from parts import require_part

torch = require_part("torch")
require_part("transformers")

from tiny_transformers import decoder, prompts
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tinytorch.transforms.static_generation import cache as decode_attention_torch
from tinytorch.transforms.static_generation.cache import NAME, decoding_attention
from tinytorch.transforms.static_generation.generation import TokenChoice
from tinytorch.transforms.static_generation.torch import DecodeSession, SessionSettings


@pytest.fixture
def calls(monkeypatch):
    """Count what our operator is asked for."""
    made = []
    own = decode_attention_torch.attend

    def attend(*args):
        made.append(args)
        return own(*args)

    monkeypatch.setattr(decode_attention_torch, "attend", attend)
    return made


def texts(model, *, ours, ragged=False):
    """Generate, on a processor too, by our attention or by that of the model."""
    ids, mask = prompts()
    settings = SessionSettings(3, 64, TokenChoice(), is_ragged=ragged, compile=False)
    session = DecodeSession(model, settings, torch.device("cpu"))
    seen = mask.bool() if ragged else torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        session.read(ids, seen)
        for _ in range(20):
            if ours:
                with decoding_attention(model, session.state):
                    session.step()
            else:
                session.step()
    return session.tokens


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_the_tokens_are_those_of_the_models_own_attention(name, ragged, calls):
    model = decoder(name)
    expected = texts(model, ours=False, ragged=ragged)
    assert calls == []
    assert torch.equal(texts(model, ours=True, ragged=ragged), expected)
    assert len(calls) == 2 * 20


@pytest.mark.parametrize("name", ["gemma2", "gpt2"])
def test_attention_of_another_kind_stays_as_it_is(name, calls):
    model = decoder(name, attn_implementation="eager")
    expected = texts(model, ours=False)
    assert torch.equal(texts(model, ours=True), expected)
    assert calls == []


def interrupted(model):
    with decoding_attention(model, torch.zeros(13)):
        assert model.config._attn_implementation == NAME
        raise KeyboardInterrupt


def test_the_model_is_as_before_also_after_an_error():
    model = decoder("llama")
    with pytest.raises(KeyboardInterrupt):
        interrupted(model)
    assert model.config._attn_implementation == "sdpa"
    assert decode_attention_torch._serving.state is None


def test_a_prompt_is_attended_to_as_transformers_does(calls):
    model, (ids, _) = decoder("llama"), prompts()
    with torch.no_grad():
        expected = model(ids).logits
        with decoding_attention(model, torch.zeros(13, dtype=torch.int64)):
            assert torch.equal(model(ids).logits, expected)
    assert calls == []


def test_another_thread_that_uses_the_model_meanwhile_is_not_served(calls):
    model, (ids, _) = decoder("llama"), prompts(batch=1)
    expected = model.generate(ids, max_new_tokens=5, do_sample=False)
    found = []

    def generate():
        found.append(model.generate(ids, max_new_tokens=5, do_sample=False))

    with decoding_attention(model, torch.zeros(13, dtype=torch.int64)):
        thread = threading.Thread(target=generate)
        thread.start()
        thread.join()
    assert torch.equal(found[0], expected)
    assert calls == []


def test_values_that_lie_otherwise_than_keys_are_left_to_transformers(calls):
    layer = decoder("llama").model.layers[0].self_attn
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 1, 8, generator=generator)
    key, value = torch.randn(2, 2, 4, 4, 8, generator=generator)
    state = torch.full((9,), 3)
    served = decode_attention_torch._serving
    for other in (value, value.transpose(0, 1).contiguous().transpose(0, 1)):
        expected, _ = sdpa_attention_forward(layer, query, key, other, None, scaling=0.3)
        with decoding_attention(layer, state):
            assert served.state is state
            found, _ = decode_attention_torch._decode_attention(
                layer, query, key, other, None, scaling=0.3
            )
        torch.testing.assert_close(found, expected)
    assert len(calls) == 1  # for the first of the two


def test_a_state_without_room_for_all_heads_is_not_used(calls):
    model = decoder("llama")
    session = DecodeSession(
        model, SessionSettings(3, 64, TokenChoice(), compile=False), torch.device("cpu")
    )
    ids, _ = prompts()
    with torch.no_grad(), decoding_attention(model, session.state[:3].clone()):
        session.read(ids, torch.ones_like(ids, dtype=torch.bool))
        session.step()
    assert calls == []
