import pytest
from parts import require_part

torch = require_part("torch")
require_part("transformers")

from fake_capture import FakeCapture
from tiny_transformers import decoder, generated, prompts

from tinytorch.errors import ModelError
from tinytorch.transforms.static_generation import torch as decode_session_torch
from tinytorch.transforms.static_generation.generation import TokenChoice
from tinytorch.transforms.static_generation.torch import (
    MOST_PROMPTS,
    DecodeSession,
    SessionSettings,
)

GREEDY = TokenChoice()


@pytest.fixture(scope="module")
def model():
    return decoder("llama")


def session_for(model, **changes):
    settings = {"batch": 3, "length": 64, "choice": GREEDY, "compile": False} | changes
    return DecodeSession(model, SessionSettings(**settings), torch.device("cpu"))


def text_from(session, ids, count=20):
    with session.running():
        session.read(ids, torch.ones_like(ids, dtype=torch.bool))
        for _ in range(count - 1):
            session.step()
    return session.tokens[:, : ids.shape[1] + count]


def as_it_is(device):
    """Compile by tracing alone."""
    return lambda graph_module, inputs: graph_module.forward


def captured(session, capture):
    """Let a session on a processor replay its step, as it does on a device."""
    session.prepare()
    session._rewind()
    session._capture()
    return capture


# ---------------------------------------------------------------- compiling


@pytest.mark.parametrize("choice", [GREEDY, TokenChoice(True, 0.8, 10)])
def test_a_traced_step_gives_the_same_tokens(model, monkeypatch, choice):
    monkeypatch.setattr(decode_session_torch, "decode_backend", as_it_is)
    ids, _ = prompts()
    plain, traced = (
        session_for(model, choice=choice),
        session_for(model, choice=choice, compile=True),
    )
    plain.prepare()
    traced.prepare()
    assert [each.what for each in traced.preparations] == ["compiled"]
    assert traced.notes == []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = text_from(plain, ids)
        torch.manual_seed(0)
        assert torch.equal(text_from(traced, ids), expected)


def test_a_compiler_that_fails_is_noted_and_the_plain_step_is_used(model, monkeypatch):
    def failing(device):
        def backend(graph_module, inputs):
            raise RuntimeError("no such instruction")

        return backend

    monkeypatch.setattr(decode_session_torch, "decode_backend", failing)
    session, (ids, _) = session_for(model, compile=True), prompts()
    session.prepare()
    (note,) = session.notes
    assert "the step could not be compiled" in note
    assert "no such instruction" in note
    assert session.preparations == []
    assert torch.equal(text_from(session, ids), generated(model, ids))


@pytest.mark.slow
def test_many_sessions_are_all_compiled(model, monkeypatch):
    graphs = []

    def counting(device):
        return lambda graph_module, inputs: graphs.append(1) or graph_module.forward

    monkeypatch.setattr(decode_session_torch, "decode_backend", counting)
    limit = torch._dynamo.config.recompile_limit
    for length in range(16, 16 + limit + 1):
        session_for(model, batch=1, length=length, compile=True)._make_fast()
    assert len(graphs) == limit + 1


def test_a_compiler_that_is_not_there_is_noted(model, monkeypatch):
    def missing(device):
        raise ImportError("no inductor")

    monkeypatch.setattr(decode_session_torch, "decode_backend", missing)
    session = session_for(model, compile=True)
    session.prepare()
    assert session.notes == ["the step could not be compiled (ImportError: no inductor)"]


# ---------------------------------------------------------------- capturing, as far as it goes here


@pytest.mark.slow
def test_captured_prompts_and_steps_give_the_same_tokens(model, monkeypatch):
    capture = FakeCapture()
    monkeypatch.setattr(decode_session_torch, "capture", capture)
    session = session_for(model)
    captured(session, capture)
    for length in (7, 3, 7):
        ids, _ = prompts(length=length)
        assert torch.equal(text_from(session, ids), generated(model, ids))
    assert capture.count == 3  # the step and two lengths of prompts
    (done,) = session.preparations
    assert (done.what, done.seconds, done.nbytes) == ("captured", 3 * 0.5, 3 * 64)


@pytest.mark.slow
def test_few_lengths_of_prompts_are_captured(model, monkeypatch):
    capture = FakeCapture()
    monkeypatch.setattr(decode_session_torch, "capture", capture)
    session = session_for(model, batch=1)
    captured(session, capture)
    for length in range(1, MOST_PROMPTS + 3):
        ids, _ = prompts(batch=1, length=length)
        assert torch.equal(text_from(session, ids, 2), generated(model, ids, count=2))
    assert capture.count == 1 + MOST_PROMPTS


def test_ends_in_a_warm_up_do_not_end_the_text(model, monkeypatch):
    monkeypatch.setattr(decode_session_torch, "capture", FakeCapture())
    ids, _ = prompts(batch=1)
    tokens = generated(model, ids)
    session = session_for(model, batch=1, stops=(int(tokens[0, 12]),))
    captured(session, None)
    expected = text_from(session_for(model, batch=1, stops=session.settings.stops), ids)
    assert torch.equal(text_from(session, ids), expected)


def test_a_prompt_that_cannot_be_captured_is_read_by_the_program(model, monkeypatch):
    capture = FakeCapture()
    monkeypatch.setattr(decode_session_torch, "capture", capture)
    session, (ids, _) = session_for(model), prompts()
    captured(session, capture)

    def refusing(step, *, device):
        step()
        raise ModelError("it waits for the device")

    monkeypatch.setattr(decode_session_torch, "capture", refusing)
    for _ in range(2):
        assert torch.equal(text_from(session, ids), generated(model, ids))
    assert session.notes == ["reading the prompt could not be captured (it waits for the device)"]


def test_a_step_that_cannot_be_captured_is_noted(model, monkeypatch):
    def refusing(step, *, device):
        raise ModelError("it waits for the device")

    monkeypatch.setattr(decode_session_torch, "capture", refusing)
    session, (ids, _) = session_for(model), prompts()
    captured(session, None)
    assert session.notes == ["the step could not be captured (it waits for the device)"]
    assert torch.equal(text_from(session, ids), generated(model, ids))


# ---------------------------------------------------------------- buffers


def test_there_is_room_for_warming_up_however_short_the_text_is(model):
    session = session_for(model, length=2)
    session.prepare()
    assert session.tokens.shape == (3, decode_session_torch.LEAST_LENGTH)


def test_buffers_stay_where_they_are(model):
    session, (ids, _) = session_for(model), prompts()
    session.prepare()
    held = [session.tokens, session.token, session.state, session.mask, session.positions]
    held += [tensor for layer in session.cache.layers for tensor in (layer.keys, layer.values)]
    places = [each.data_ptr() for each in held]
    text_from(session, ids)
    assert [each.data_ptr() for each in held] == places


def test_a_closed_session_holds_nothing(model):
    session = session_for(model)
    session.prepare()
    assert session.cache_bytes > 0
    session.close()
    assert session.cache_bytes == 0


def test_a_model_without_a_number_of_heads_is_fine(model, monkeypatch):
    session, (ids, _) = session_for(model), prompts()
    config = model.config.get_text_config()
    with monkeypatch.context() as patch:
        patch.setitem(vars(config), "num_attention_heads", [4, 4])
        other = session_for(model)
    assert other.state.shape == (1,)
    assert torch.equal(text_from(other, ids), text_from(session, ids))
