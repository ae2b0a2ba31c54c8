"""A generator with a preallocated cache gives the tokens of `generate`."""

import inspect

import pytest
from parts import require_part

torch = require_part("torch")
transformers = require_part("transformers")

from plain_generators_torch import DRAWING, drawn, plain
from tiny_transformers import DECODERS, decoder, generated, prompts

from tinytorch.errors import (
    ModelError,
)
from tinytorch.transforms.static_generation import static_generator
from tinytorch.transforms.static_generation import torch as module

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
QUICK = ["gpt2", "llama", "mistral"]


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


def knows_preallocated_caches(bloom):
    """Tell whether this version of transformers makes BLOOM's slopes as long as the cache."""
    return "kv_length" in inspect.getsource(type(bloom.transformer).forward)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(DECODERS) - {*QUICK, "gpt_neo"}))
def test_so_they_are_for_other_models(name):
    model = decoder(name)
    if name == "bloom" and not knows_preallocated_caches(model):
        pytest.skip("this version of transformers has no preallocated cache for BLOOM")
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
