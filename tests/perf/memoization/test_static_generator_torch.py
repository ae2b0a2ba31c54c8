import copy
import inspect
import pickle
import threading

import pytest
from parts import require_part

torch = require_part("torch")
transformers = require_part("transformers")

from tiny_transformers import DECODERS, decoder, generated, prompts, seeded
from torch_workloads import bits_of, is_unchanged

from tinytorch.adapters.pytorch_wrapping import WrappedModel, innermost
from tinytorch.errors import (
    BackendError,
    DTypeError,
    ModelError,
    SettingError,
    ShapeError,
    TokenError,
)
from tinytorch.perf.memoization import generation_call, static_generator
from tinytorch.perf.memoization import static_generator_torch as module
from tinytorch.perf.memoization.static_generator_torch import MOST_SESSIONS, StaticGenerator
from tinytorch.workloads.preparation import prepares_itself

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DRAWING = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9}
QUICK = ["gpt2", "llama", "mistral"]


def plain(model, **settings):
    return static_generator(model, **{"max_new_tokens": 20, "compile": False} | settings)


def drawn(seed, draw):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return draw()


@pytest.fixture
def model():
    return decoder("llama")


# ---------------------------------------------------------------- the tokens are those of generate


def check_like_generate(model, generator, **settings):
    ids, mask = prompts()
    for given in (None, mask):
        expected = generated(model, ids, given)
        assert torch.equal(generator.generate(ids, given, **settings), expected)
    expected = drawn(3, lambda: generated(model, ids, mask, **DRAWING))
    assert torch.equal(drawn(3, lambda: generator.generate(ids, mask, **DRAWING)), expected)


@pytest.mark.parametrize("name", QUICK)
def test_the_tokens_are_those_of_generate(name):
    model = decoder(name)
    check_like_generate(model, plain(model))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(DECODERS) - {*QUICK, "gpt_neo"}))
def test_so_they_are_for_other_models(name):
    model = decoder(name)
    check_like_generate(model, plain(model))


@pytest.mark.slow
def test_so_they_are_with_eager_attention_and_capped_scores():
    model = decoder("gemma2", attn_implementation="eager", attn_logit_softcapping=2.0)
    check_like_generate(model, plain(model))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_so_they_are_with_a_compiled_step(name):
    model = decoder(name)
    generator = static_generator(model, max_new_tokens=20)
    check_like_generate(model, generator)
    assert generator.notes == ()
    assert {each.what for each in generator.preparations} == {"compiled"}


def knows_preallocated_caches(bloom):
    """Tell whether this version of transformers makes BLOOM's slopes as long as the cache."""
    return "kv_length" in inspect.getsource(type(bloom.transformer).forward)


@needs_cuda
@pytest.mark.parametrize("name", sorted(set(DECODERS) - {"gpt_neo"}))
def test_so_they_are_with_a_captured_step(name):
    model = decoder(name).cuda()
    generator = static_generator(model, max_new_tokens=20)
    if name == "bloom" and not knows_preallocated_caches(model):
        with pytest.raises(ModelError, match="does not support such a cache"):
            generator.generate(prompts()[0].cuda())
        return
    ids, mask = (each.cuda() for each in prompts())
    for given in (None, mask):
        assert torch.equal(generator.generate(ids, given), generated(model, ids, given))
    if name in ("gpt2", "llama"):  # others may ask the device something between tokens
        assert generator.notes == ()
        assert {each.what for each in generator.preparations} == {"compiled", "captured"}


@pytest.mark.slow
def test_one_generator_serves_many_shapes_in_any_order(model):
    generator = plain(model)
    for batch, length, count in [
        (1, 1, 1),
        (3, 7, 20),
        (2, 60, 12),
        (1, 1, 2),
        (3, 7, 5),
        (1, 9, 3),
    ]:
        ids, mask = prompts(batch, length, seed=batch + length)
        expected = generated(model, ids, mask, count=count)
        assert torch.equal(generator.generate(ids, mask, max_new_tokens=count), expected)


def test_a_generation_knows_nothing_of_those_before(model):
    generator, (ids, mask) = plain(model), prompts()
    longer, _ = prompts(length=30, seed=5)
    expected = generator(ids, mask)
    generator(longer)
    generator(ids)
    assert torch.equal(generator(ids, mask), expected)


def test_preparing_draws_no_random_numbers(model):
    generator, (ids, _) = plain(model, **DRAWING), prompts()
    before = torch.get_rng_state()
    generator.prepare(ids)
    assert torch.equal(torch.get_rng_state(), before)
    assert generator.cache_bytes > 0


def test_ids_may_be_short_numbers(model):
    ids, _ = prompts()
    expected = generated(model, ids)
    assert torch.equal(plain(model)(ids.int()), expected)
    assert plain(model)(ids.int()).dtype == torch.int64


@pytest.mark.slow
def test_inference_mode_leaves_nothing_behind(model):
    generator, (ids, _) = plain(model), prompts()
    expected = generated(model, ids)
    with torch.inference_mode():
        inside = generator(ids.clone())
    assert not inside.is_inference()
    assert torch.equal(inside, expected)
    assert torch.equal(generator(ids), expected)
    assert not generator(ids).requires_grad


@pytest.mark.slow
def test_autocast_is_a_way_of_its_own(model):
    generator, (ids, _) = plain(model), prompts()
    expected = generated(model, ids)
    with torch.autocast("cpu", torch.bfloat16):
        half = generated(model, ids)
        assert torch.equal(generator(ids), half)
    assert torch.equal(generator(ids), expected)


# ---------------------------------------------------------------- ends


def ends_for(model, ids, *places):
    """Make tokens that the rows come to by themselves their ends."""
    tokens = generated(model, ids)
    return [int(tokens[row, ids.shape[1] + place]) for row, place in enumerate(places)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "pad"), [((5, 9, 2), None), ((0, 0, 0), 0), ((18, 3, 19), 0), ((17,), None)]
)
def test_rows_end_at_different_times_and_are_padded(model, places, pad):
    ids, mask = prompts()
    model.generation_config.eos_token_id = ends_for(model, ids, *places)
    model.generation_config.pad_token_id = pad
    generator = plain(model)
    filled = {"pad_token_id": model.generation_config.eos_token_id[0] if pad is None else pad}
    for given in (None, mask):
        expected = generated(model, ids, given, count=24, **filled)
        assert torch.equal(generator.generate(ids, given, max_new_tokens=24), expected)


def test_generation_stops_soon_after_all_have_ended(model, monkeypatch):
    ids, _ = prompts(batch=1)
    model.generation_config.eos_token_id = ends_for(model, ids, 2)
    generator, steps = plain(model), []
    generator.prepare(ids)
    (session,) = generator._sessions.values()
    own = session.step
    monkeypatch.setattr(session, "step", lambda: (steps.append(1), own())[1])
    generator.generate(ids, max_new_tokens=50)
    assert len(steps) < module.LOOK_EVERY


def test_ends_that_change_later_are_followed(model):
    ids, _ = prompts()
    generator = plain(model)
    generator(ids)
    model.generation_config.eos_token_id = ends_for(model, ids, 3, 4, 5)
    assert torch.equal(generator(ids), generated(model, ids))


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


# ---------------------------------------------------------------- the model stays as it is


def state_of(model):
    return model.config.to_dict(), model.generation_config.to_dict(), model.training


def test_the_model_is_left_as_it_was(model):
    ids, mask = prompts()
    bits, state = bits_of(model), state_of(model)
    generator = plain(model)
    generator(ids, mask)
    generator.generate(ids, **DRAWING)
    assert is_unchanged(model, bits)
    assert state_of(model) == state
    assert model.config._attn_implementation == "sdpa"
    assert generator.model is model


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_an_error_in_the_middle_everything_goes_on(model, monkeypatch, error):
    generator, (ids, mask) = plain(model), prompts()
    expected, state = generator(ids, mask), state_of(model)
    forward, calls = model.forward, []

    def failing(**keywords):
        calls.append(keywords)
        if len(calls) == 4:
            raise error("planted")
        return forward(**keywords)

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", failing)
        with pytest.raises(error, match="planted"):
            generator(ids, mask)
    assert state_of(model) == state
    assert torch.equal(generator(ids, mask), expected)


@pytest.mark.parametrize("call", [1, 3, 6, 7])
def test_an_interrupted_preparation_leaves_no_session(model, monkeypatch, call):
    generator, (ids, _) = plain(model), prompts()
    expected = generated(model, ids)
    forward, calls = model.forward, []

    def interrupted(**keywords):
        calls.append(keywords)
        if len(calls) == call:
            raise KeyboardInterrupt
        return forward(**keywords)

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generator.prepare(ids)
    assert generator.cache_bytes == 0
    assert torch.equal(generator(ids), expected)


@pytest.mark.slow
def test_new_weights_are_used_and_moved_ones_make_everything_new(model):
    generator, (ids, _) = plain(model), prompts()
    generator(ids)
    (first,) = generator._sessions.values()
    with torch.no_grad():
        model.lm_head.weight.mul_(torch.linspace(0.5, 2, 50)[:, None])
    assert torch.equal(generator(ids), generated(model, ids))
    assert list(generator._sessions.values()) == [first]
    model.double()
    assert torch.equal(generator(ids), generated(model, ids))
    (second,) = generator._sessions.values()
    assert second is not first


# ---------------------------------------------------------------- sessions


@pytest.mark.slow
def test_few_sessions_are_kept_and_the_one_unused_for_longest_goes(model):
    generator = plain(model, max_new_tokens=2)
    for batch in range(1, MOST_SESSIONS + 1):
        generator(prompts(batch)[0])
    assert generator.notes == ()
    generator(prompts(1)[0])
    generator(prompts(MOST_SESSIONS + 1)[0])
    batches = [each.batch for each in generator._sessions]
    assert batches == [*range(3, MOST_SESSIONS + 1), 1, MOST_SESSIONS + 1]
    assert "1 were dropped" in generator.notes[0]
    assert torch.equal(generator(prompts(2)[0]), generated(model, prompts(2)[0], count=2))


def test_releasing_frees_everything_and_it_goes_on(model):
    generator, (ids, _) = plain(model), prompts()
    expected = generator(ids)
    generator.release()
    assert generator.cache_bytes == 0
    assert generator.preparations == ()
    assert torch.equal(generator(ids), expected)


def test_greedy_settings_share_a_session(model):
    generator, (ids, _) = plain(model), prompts()
    generator(ids)
    generator.generate(ids, temperature=0.3, top_k=4)
    assert len(generator._sessions) == 1


def test_cache_bytes_are_those_of_keys_and_values(model):
    generator, (ids, _) = plain(model), prompts()
    generator(ids)
    # layers, keys and values, batch, heads, length, width, bytes
    assert generator.cache_bytes == 2 * 2 * 3 * 2 * 64 * 8 * 4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_is_a_fresh_generator(model, copied):
    generator, (ids, _) = plain(model, **DRAWING), prompts()
    expected = drawn(1, lambda: generator(ids))
    twin = copied(generator)
    assert twin.cache_bytes == 0
    assert twin.model is not model
    assert twin.choice == generator.choice
    assert torch.equal(drawn(1, lambda: twin(ids)), expected)
    assert generator.cache_bytes > 0


def test_it_can_be_wrapped(model):
    ids, _ = prompts()
    wrapped = WrappedModel(plain(model))
    assert torch.equal(wrapped(ids), generated(model, ids))
    assert torch.equal(wrapped.generate(ids, max_new_tokens=3), generated(model, ids, count=3))
    assert innermost(wrapped) is model


def test_the_comparer_knows_that_it_prepares_itself(model):
    assert prepares_itself(plain(model))


@pytest.mark.slow
def test_threads_wait_for_each_other(model):
    generator = plain(model)
    texts = [prompts(seed=seed) for seed in range(4)]
    expected = [generated(model, *text) for text in texts]
    found = [None] * len(texts)

    def generate(place):
        for _ in range(3):
            found[place] = generator(*texts[place])

    threads = [threading.Thread(target=generate, args=(place,)) for place in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
