"""What a static generator keeps, and what it leaves as it was."""

import copy
import pickle
import threading

import pytest
from parts import require_part

torch = require_part("torch")
transformers = require_part("transformers")

from plain_generators_torch import DRAWING, drawn, plain
from tiny_transformers import decoder, generated, prompts
from torch_workloads import bits_of, is_unchanged

from tinytorch.models.pytorch_tensors import WrappedModel, innermost
from tinytorch.models.workload import prepares_itself
from tinytorch.transforms.static_generation.torch import MOST_SESSIONS

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def model():
    return decoder("llama")


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
