import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

torch = require_part("torch")
transformers = require_part("transformers")

from tinytorch.errors import SettingError
from tinytorch.transforms.static_generation.generation import TokenChoice, argmax_in_parts


def as_transformers(scores, temperature, top_k, top_p):
    """Draw one token for each row as `generate` does."""
    if temperature != 1:
        scores = transformers.TemperatureLogitsWarper(temperature)(None, scores)
    if top_k:
        scores = transformers.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = transformers.TopPLogitsWarper(top_p)(None, scores)
    return torch.multinomial(scores.softmax(-1), 1)[:, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_sample": True, "temperature": 0.0}, "temperature=0.0; it must be positive"),
        ({"do_sample": True, "temperature": float("nan")}, "it must be positive"),
        ({"top_k": -1}, "top_k=-1; it must be 0"),
        ({"top_k": 2.5}, "top_k=2.5; it must be 0"),
        ({"top_p": 0.0}, "top_p=0.0; it must be above 0"),
        ({"top_p": 1.5}, "top_p=1.5"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(SettingError, match=message):
        TokenChoice(**settings)


def test_greedy_is_the_highest_score_and_draws_nothing():
    scores = torch.tensor([[0.0, 2.0, 1.0], [5.0, 2.0, 1.0]])
    before = torch.get_rng_state()
    assert TokenChoice(temperature=0.0)(scores).tolist() == [1, 0]
    assert torch.equal(torch.get_rng_state(), before)


@given(
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([1.0, 0.5, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([1.0, 0.9, 0.2, 1e-6]),
)
def test_drawn_with_the_same_seed_it_is_the_token_of_transformers(seed, temperature, top_k, top_p):
    scores = 3 * torch.randn(4, 20, generator=torch.Generator().manual_seed(seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        expected = as_transformers(scores, temperature, top_k, top_p)
        torch.manual_seed(seed)
        assert torch.equal(TokenChoice(True, temperature, top_k, top_p)(scores), expected)


def test_scores_are_left_as_they_are():
    scores = torch.randn(2, 20, generator=torch.Generator().manual_seed(0))
    kept = scores.clone()
    with torch.random.fork_rng(devices=[]):
        TokenChoice(True, 0.5, 3, 0.5)(scores)
    assert torch.equal(scores, kept)


def test_half_precision_is_drawn_from_in_single():
    scores = torch.randn(4, 20, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = as_transformers(scores.float(), 0.7, 5, 0.9)
        torch.manual_seed(0)
        assert torch.equal(TokenChoice(True, 0.7, 5, 0.9)(scores), expected)


@given(seed=st.integers(0, 1000), length=st.sampled_from([1, 255, 256, 257, 1000]))
def test_part_by_part_it_is_the_same_place_and_the_first_of_equals(seed, length):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 3, (3, length), generator=generator).float()
    assert torch.equal(argmax_in_parts(scores), scores.argmax(-1))
    assert torch.equal(argmax_in_parts(scores * -torch.inf), (scores * -torch.inf).argmax(-1))
