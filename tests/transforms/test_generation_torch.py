import pytest
from parts import require_part

torch = require_part("torch")
require_part("transformers")

from tiny_transformers import decoder, generated, prompts

from tinytorch.errors import ModelError, SettingError
from tinytorch.measure.ceilings_torch import multiplies_in_tf32
from tinytorch.transforms.static_generation import generation_call
from tinytorch.transforms.static_generation.generation import (
    PROFILED_TOKENS,
    Generation,
    TokenChoice,
    special_tokens,
    unlike_settings,
    vocabulary_size,
)
from tinytorch.transforms.tensor_float32.torch import TensorFloat32Model


@pytest.fixture
def model():
    return decoder("llama")


def test_its_call_is_generate(model):
    ids, mask = prompts()
    call = generation_call(model, max_new_tokens=9)
    assert torch.equal(call(ids), generated(model, ids, count=9))
    assert torch.equal(call(ids, mask), generated(model, ids, mask, count=9))


def test_its_call_draws_as_generate_does(model):
    ids, mask = prompts()
    drawing = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9}
    call = generation_call(model, max_new_tokens=9, **drawing)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = generated(model, ids, mask, count=9, **drawing)
        torch.manual_seed(3)
        assert torch.equal(call(ids, attention_mask=mask), expected)
    assert call.is_drawn
    assert not generation_call(model, max_new_tokens=9).is_drawn


def test_settings_of_a_wrapper_hold_while_it_generates(model):
    seen = []

    class Watching(type(model)):
        def forward(self, *inputs, **keywords):
            seen.append(multiplies_in_tf32())
            return super().forward(*inputs, **keywords)

    model.__class__ = Watching
    generation_call(TensorFloat32Model(model), max_new_tokens=3)(prompts()[0])
    assert seen == [True] * 3
    assert not multiplies_in_tf32()


def test_without_drawing_it_is_greedy_whatever_the_model_would_do(model):
    ids, _ = prompts()
    model.generation_config.do_sample = True
    call = generation_call(model, max_new_tokens=9)
    assert torch.equal(call(ids), generated(model, ids, count=9))


def test_a_long_text_is_profiled_by_a_short_one_and_says_so(model):
    call = generation_call(model, max_new_tokens=200).eval()
    shorter, note = call.shortened_for_profile()
    assert shorter.model is model
    assert not shorter.training
    assert shorter(prompts()[0]).shape[1] == prompts()[0].shape[1] + PROFILED_TOKENS
    assert note.startswith("the profile is of 8 new tokens, of 200")
    assert call.max_new_tokens == 200


def test_a_short_text_is_profiled_as_it_is(model):
    call = generation_call(model, max_new_tokens=PROFILED_TOKENS)
    assert call.shortened_for_profile() == (call, "")


def test_it_can_tell_whether_other_tokens_are_a_matter_of_rounding():
    model = decoder("llama", torch.bfloat16, tie_word_embeddings=False)
    ids, mask = prompts()
    call = generation_call(model, max_new_tokens=6)
    expected = call(ids, mask)
    best, twin = int(expected[0, 12]), 49
    assert best != twin
    other = expected.clone()
    other[0, 12] = twin

    def explained(share, call=call):
        with torch.no_grad():  # so much less the other token scores
            model.lm_head.weight[twin] = model.lm_head.weight[best] * (1 - share)
        arrays = ((each.numpy(),) for each in (expected, other))
        return call.rounding_explains((ids,), {"attention_mask": mask}, *arrays)

    (told,) = explained(2**-8)
    assert told.startswith("sequence 0 differs from new token 5 on (49 instead of ")
    assert told.endswith("no more than rounding")
    assert explained(0.3) == ()
    drawing = generation_call(model, max_new_tokens=6, do_sample=True)
    assert explained(2**-8, drawing) == ()


@pytest.mark.parametrize("count", [0, -3, 2.0, True])
def test_new_tokens_are_a_positive_number(model, count):
    with pytest.raises(SettingError, match="max_new_tokens="):
        generation_call(model, max_new_tokens=count)


def test_a_model_without_generate_is_refused():
    with pytest.raises(ModelError, match="Linear has no generate"):
        Generation(torch.nn.Linear(2, 2), max_new_tokens=1, choice=TokenChoice())


@pytest.mark.parametrize(
    ("ends", "pad", "expected"),
    [
        (None, None, ((), 0)),
        (3, None, ((3,), 3)),
        ([3, 4], None, ((3, 4), 3)),
        ([3, 4], 7, ((3, 4), 7)),
        (None, 7, ((), 7)),
    ],
)
def test_padding_is_the_first_end_unless_given(model, ends, pad, expected):
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = pad
    assert special_tokens(model) == expected


def test_a_fresh_config_asks_for_nothing_special(model):
    assert unlike_settings(model) == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.2},
        {"num_beams": 4},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 5},
        {"bad_words_ids": [[3]]},
        {"return_dict_in_generate": True},
        {"stop_strings": ["x"]},
    ],
)
def test_settings_that_choose_other_tokens_are_found(model, settings):
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    assert unlike_settings(model) == settings


@pytest.mark.parametrize(
    "settings", [{"repetition_penalty": 1.0}, {"num_beams": 1}, {"min_new_tokens": 0}]
)
def test_settings_that_change_nothing_are_fine(model, settings):
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    assert unlike_settings(model) == {}


def test_the_vocabulary_is_that_of_the_embedding(model):
    assert vocabulary_size(model) == model.config.vocab_size
