import pytest
from parts import require_part

torch = require_part("torch")
require_part("transformers")

from tiny_transformers import decoder, generated, prompts

from tinytorch.errors import ShapeError
from tinytorch.transforms.static_generation.generation import explain_divergence


@pytest.fixture(scope="module")
def model():
    return decoder("llama")


def scores_after(model, text):
    with torch.no_grad():
        return model(text).logits[0, -1].float()


def with_other_token(model, tokens, row, place, rank, padding=0):
    """Put in what the model holds to be second, third, ... at a place."""
    text = tokens[row : row + 1, padding:place]
    ranked = scores_after(model, text).argsort(descending=True)
    other = tokens.clone()
    other[row, place] = ranked[rank]
    other[row, place + 1 :] = 3
    return other


def test_equal_texts_do_not_part(model):
    ids, mask = prompts()
    tokens = generated(model, ids, mask)
    assert explain_divergence(model, tokens, tokens.clone(), ids.shape[1], mask) == ()


@pytest.mark.parametrize("place", [7, 8, 20])
def test_a_real_difference_is_not_called_rounding(model, place):
    ids, _ = prompts()
    tokens = generated(model, ids)
    other = with_other_token(model, tokens, 1, place, rank=1)
    (parted,) = explain_divergence(model, tokens, other, 7)
    assert (parted.sequence, parted.place) == (1, place - 7)
    assert (parted.expected, parted.found) == (tokens[1, place], other[1, place])
    scores = scores_after(model, tokens[1:2, :place]).sort(descending=True).values
    assert parted.gap == pytest.approx(float(scores[0] - scores[1]), rel=1e-3)
    assert not parted.is_rounding


def test_padding_of_a_prompt_is_not_part_of_the_text(model):
    ids, mask = prompts()
    tokens = generated(model, ids, mask)
    padding = int((mask[2] == 0).sum())
    other = with_other_token(model, tokens, 2, 12, rank=1, padding=padding)
    (parted,) = explain_divergence(model, tokens, other, 7, mask)
    scores = scores_after(model, tokens[2:3, padding:12]).sort(descending=True).values
    assert parted.gap == pytest.approx(float(scores[0] - scores[1]), rel=1e-3)


def test_equal_scores_are_a_matter_of_rounding():
    model = decoder("llama", tie_word_embeddings=False)
    ids, _ = prompts()
    place, row = 12, 0
    tokens = generated(model, ids)[:, : place + 1]
    best = int(tokens[row, place])
    twin = (best + 1) % model.config.vocab_size
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[best]
    other = tokens.clone()
    other[row, place] = twin
    (parted,) = explain_divergence(model, tokens, other, 7)
    assert parted.gap == 0
    assert parted.is_rounding


def continued(model, text, count):
    """Give a text and what the model writes after it, always reading all of it at once."""
    for _ in range(count):
        text = torch.cat([text, scores_after(model, text).argmax().view(1, 1)], dim=1)
    return text


def with_twin(count):
    """Give a model, a text of it, and one with a token that scores the same in place of the best.

    The token is the sixth after seven of a prompt; `count` follow from there.
    """
    model = decoder("llama", tie_word_embeddings=False)
    ids, _ = prompts()
    place = ids.shape[1] + 5
    tokens = continued(model, ids[:1], 5 + count)
    best = int(tokens[0, place])
    twin = (best + 1) % model.config.vocab_size
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[best]
    other = torch.cat([tokens[:, :place], torch.tensor([[twin]])], dim=1)
    return model, tokens, continued(model, other, count - 1)


@pytest.mark.parametrize("count", [3, 80])
@pytest.mark.parametrize("strays_at", [None, 6, 7])
def test_what_follows_a_matter_of_rounding_is_looked_at_too(count, strays_at):
    model, tokens, other = with_twin(count)
    if strays_at is not None:
        other[0, 7 + strays_at] = int(scores_after(model, other[:, : 7 + strays_at]).argmin())
    (parted,) = explain_divergence(model, tokens, other, 7)
    assert (parted.place, parted.strays_at) == (5, strays_at)
    assert parted.is_rounding == (strays_at is None)


@pytest.mark.parametrize(("strays_at", "most"), [(None, 2 + 7), (40, 2 + 7 + 35)])
def test_a_text_is_read_token_by_token_only_as_far_as_it_must_be(strays_at, most):
    model, tokens, other = with_twin(60)
    if strays_at is not None:
        other[0, 7 + strays_at] = int(scores_after(model, other[:, : 7 + strays_at]).argmin())
    calls = []
    handle = model.register_forward_pre_hook(lambda *_: calls.append(1))
    (parted,) = explain_divergence(model, tokens, other, 7)
    handle.remove()
    assert parted.strays_at == strays_at
    # At once: up to the place, then a block. One by one: all but the last of the prompt, then six.
    assert len(calls) == most


def test_in_bfloat16_a_close_second_is_rounding_and_a_far_one_is_not():
    model = decoder("llama", torch.bfloat16, tie_word_embeddings=False)
    ids, _ = prompts()
    tokens = generated(model, ids)[:, :13]
    best, twin = int(tokens[0, 12]), 49
    assert best != twin
    with torch.no_grad():  # a token that scores a rounding step less, or 30% less
        model.lm_head.weight[twin] = model.lm_head.weight[best] * (1 - 2**-8)
        near = tokens.clone()
        near[0, 12] = twin
        (close,) = explain_divergence(model, tokens, near, 7)
        model.lm_head.weight[twin] = model.lm_head.weight[best] * 0.7
        (far,) = explain_divergence(model, tokens, near, 7)
    assert close.is_rounding
    assert not far.is_rounding


def test_a_text_that_ends_too_early_parts(model):
    ids, _ = prompts(batch=1)
    tokens = generated(model, ids)
    (parted,) = explain_divergence(model, tokens, tokens[:, :20], 7)
    assert parted.place == 13
    assert not parted.is_rounding


def test_padding_after_the_end_is_no_difference(model):
    ids, _ = prompts(batch=1)
    tokens = generated(model, ids)
    longer = torch.nn.functional.pad(tokens, (0, 4), value=0)
    assert explain_divergence(model, tokens, longer, 7) == ()


def test_other_prompts_cannot_be_compared(model):
    ids, _ = prompts()
    tokens = generated(model, ids)
    other = tokens.clone()
    other[0, 0] += 1
    with pytest.raises(ShapeError, match="begin with other prompts"):
        explain_divergence(model, tokens, other, 7)


def test_a_prompt_of_one_token_can_be_explained(model):
    ids, _ = prompts(batch=1, length=1)
    tokens = generated(model, ids)
    other = with_other_token(model, tokens, 0, 1, rank=2)
    (parted,) = explain_divergence(model, tokens, other, 1)
    assert parted.place == 0
    assert not parted.is_rounding
