"""Generation: `model.generate` as a call that can be measured, planned for and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from tinytorch.errors import ModelError, SettingError, ShapeError
from tinytorch.models.adapter import Array, GeneratingModel
from tinytorch.models.pytorch_tensors import WrappedModel, around_calls
from tinytorch.transforms.static_generation import Divergence

# ---------------------------------------------------------------- choosing the next token from
# scores, as transformers' generate does it. Imported after torch

LONG, PART = 4096, 256
"""A compiler lets one program look through a row, which takes long where it has more scores."""


@dataclass(frozen=True)
class TokenChoice:
    """Greedy, or drawn at a temperature from the likeliest: `top_k` of them, or `top_p` of all.

    The order is that of transformers: temperature, then `top_k`, then `top_p`. Drawn with the same
    seed on the same device, the tokens are the same, too.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.do_sample and not self.temperature > 0:
            raise SettingError(f"temperature={self.temperature}; it must be positive")
        if self.top_k != int(self.top_k) or self.top_k < 0:
            raise SettingError(f"top_k={self.top_k}; it must be 0 (all tokens) or more, and whole")
        if not 0 < self.top_p <= 1:
            raise SettingError(f"top_p={self.top_p}; it must be above 0 and at most 1")

    def __call__(self, scores: torch.Tensor) -> torch.Tensor:
        """Return one token for each row of scores."""
        scores = scores.float()
        if not self.do_sample:
            is_long = scores.shape[-1] > LONG and scores.is_cuda and torch.compiler.is_compiling()
            return argmax_in_parts(scores) if is_long else scores.argmax(-1)
        if self.temperature != 1:
            scores = scores / self.temperature
        if self.top_k:
            least = scores.topk(min(self.top_k, scores.shape[-1])).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if self.top_p < 1:
            ordered, places = scores.sort(descending=False)
            dropped = ordered.softmax(-1).cumsum(-1) <= 1 - self.top_p
            dropped[:, -1] = False
            scores = scores.masked_fill(dropped.scatter(1, places, dropped), -torch.inf)
        chances = scores.softmax(-1)
        # As torch.multinomial draws one; that one cannot be captured everywhere.
        return (chances / torch.empty_like(chances).exponential_(1)).argmax(-1)


def argmax_in_parts(scores: torch.Tensor) -> torch.Tensor:
    """Return the place of the first largest score of each row, (batch, scores), part by part."""
    rows, length = scores.shape
    filled = F.pad(scores, (0, -length % PART), value=-torch.inf)
    parts = filled.view(rows, -1, PART)
    best = parts.amax(-1).argmax(-1, keepdim=True)  # (batch, 1)
    inside = parts.argmax(-1).gather(1, best)
    return (best * PART + inside)[:, 0]


# ---------------------------------------------------------------- generation: `model.generate` as
# a call that can be measured, planned for and compared

HANDLED = {
    "max_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "use_cache",
    "cache_implementation", "cache_config", "max_cache_len", "pad_token_id", "bos_token_id",
    "eos_token_id", "transformers_version", "compile_config", "disable_compile",
    "early_stopping", "length_penalty", "decoder_start_token_id", "assistant_early_exit",
    "assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind",
    "num_assistant_tokens", "num_assistant_tokens_schedule",
}  # fmt: skip
"""What is given with each call, or does not matter for one beam of one decoder."""
NEUTRAL = {
    "num_beams": 1, "num_return_sequences": 1, "num_beam_groups": 1, "repetition_penalty": 1,
    "encoder_repetition_penalty": 1, "typical_p": 1, "guidance_scale": 1,
}  # fmt: skip
"""What leaves the tokens as they are; for all others that is zero, nothing or no."""
PROFILED_TOKENS = 8
"""So many show all layers, at the prompt and after it; recording hundreds takes minutes."""


class Generation(WrappedModel, GeneratingModel):
    """A decoder of transformers whose call generates text, by its own `generate`."""

    def __init__(self, model: Any, *, max_new_tokens: int, choice: TokenChoice) -> None:
        if not hasattr(model, "generate") or not hasattr(model, "generation_config"):
            raise ModelError(
                f"{type(model).__name__} has no generate(); give a decoder of transformers, such "
                "as AutoModelForCausalLM gives one"
            )
        check_new_tokens(max_new_tokens)
        super().__init__(model)
        self.max_new_tokens = max_new_tokens
        self.choice: TokenChoice = choice
        self.is_drawn = choice.do_sample

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the prompts and the tokens after them."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        choice = self.choice
        drawing: dict[str, Any] = {"do_sample": choice.do_sample}
        if choice.do_sample:
            drawing |= {"temperature": choice.temperature, "top_k": choice.top_k}
            drawing["top_p"] = choice.top_p
        _, pad = special_tokens(self.model)
        generate: Any = self.model.generate
        with around_calls(self.model):  # generate() goes past its wrappers
            tokens: torch.Tensor = generate(
                input_ids,
                attention_mask=mask,
                max_new_tokens=self.max_new_tokens,
                pad_token_id=pad,
                **drawing,
            )
        return tokens

    def shortened_for_profile(self) -> tuple[Generation, str]:
        if self.max_new_tokens <= PROFILED_TOKENS:
            return self, ""
        return self.with_new_tokens(PROFILED_TOKENS), (
            f"the profile is of {PROFILED_TOKENS} new tokens, of {self.max_new_tokens}: recording "
            "all of them would take long, and every one runs the same layers"
        )

    def with_new_tokens(self, count: int) -> Generation:
        """Return the same model as one whose call writes so many tokens."""
        other = Generation(self.model, max_new_tokens=count, choice=self.choice)
        return other.train(self.training)

    def rounding_explains(
        self,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        expected: Sequence[Array],
        found: Sequence[Array],
    ) -> tuple[str, ...]:
        """Return why other tokens are due to rounding; nothing where one is not, or is drawn."""
        if self.choice.do_sample or len(expected) != 1 or len(found) != 1:
            return ()
        ids, mask = prompts_of(inputs, keywords)
        own, other = (torch.as_tensor(each[0], device=ids.device) for each in (expected, found))
        parted = explain_divergence(self.model, own, other, ids.shape[1], mask)
        return tuple(map(str, parted)) if all(each.is_rounding for each in parted) else ()


def prompts_of(
    inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the tokens and the mask of a call, however they are passed."""
    named = {**dict(zip(("input_ids", "attention_mask"), inputs, strict=False)), **keywords}
    return named["input_ids"], named.get("attention_mask")


def check_new_tokens(count: Any) -> None:
    """Raise unless this is a number of tokens."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise SettingError(f"max_new_tokens={count!r}; it must be a whole number")
    if count < 1:
        raise SettingError(f"max_new_tokens={count}; it must be at least 1")


def special_tokens(model: Any) -> tuple[tuple[int, ...], int]:
    """Return the tokens that end a sequence, and what is written after them."""
    config = model.generation_config
    ends = config.eos_token_id
    stops = () if ends is None else tuple(ends) if isinstance(ends, (list, tuple)) else (ends,)
    pad = config.pad_token_id
    return stops, (stops[0] if stops else 0) if pad is None else pad


def vocabulary_size(model: Any) -> int:
    """Return how many tokens a model knows."""
    rows: int = model.get_input_embeddings().weight.shape[0]
    return rows


def unlike_settings(model: Any) -> dict[str, Any]:
    """Return the settings of a model's generation that would choose other tokens than ours."""
    settings = vars(model.generation_config)
    return {
        name: value
        for name, value in settings.items()
        if not name.startswith("_") and name not in HANDLED
        if value and value != NEUTRAL.get(name)
    }


# ---------------------------------------------------------------- finding and explaining where two
# generations part. Imported after torch

BLOCK = 64
"""So many tokens after the first difference are read at a time: their scores take memory."""
TYPICAL = 2
"""Two scores of a vocabulary may have moved little by chance: this many times the typical move."""


@torch.no_grad()
def explain_divergence(
    model: Any,
    expected: torch.Tensor,
    found: torch.Tensor,
    prompt: int,
    mask: torch.Tensor | None = None,
) -> tuple[Divergence, ...]:
    """Compare two generations from the same prompts of `prompt` tokens, sequence by sequence.

    For each that differs, the model itself scores both tokens at the first difference, once with
    all tokens before it at once and once token by token. After that token the texts are about
    something else; there, each token must be one that the model would write after those found
    before it. `mask` has zeros where prompts are padded.
    """
    if not torch.equal(expected[:, :prompt], found[:, :prompt]):
        raise ShapeError("the generations begin with other prompts")
    width = max(expected.shape[1], found.shape[1])
    stops, pad = special_tokens(model)
    expected, found = _widened(expected, width, pad), _widened(found, width, pad)
    is_other = expected != found
    parted = []
    for sequence in is_other.any(-1).nonzero()[:, 0].tolist():
        place = int(is_other[sequence].nonzero()[0, 0])
        padding = 0 if mask is None else int((mask[sequence, :prompt] == 0).sum())
        text = _until_end(found[sequence : sequence + 1, padding:], place - padding, stops)
        wanted, instead = int(expected[sequence, place]), int(found[sequence, place])
        steps = _Steps(text, prompt - padding, place - padding)
        gap, noise, stray = _judged(model, steps, [wanted, instead])
        strays_at = None if stray is None else stray + padding - prompt
        parted.append(Divergence(sequence, place - prompt, wanted, instead, gap, noise, strays_at))
    return tuple(parted)


def _widened(tokens: torch.Tensor, width: int, pad: int) -> torch.Tensor:
    """Write down that a shorter generation had ended."""
    return torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]), value=pad)


def _until_end(text: torch.Tensor, place: int, stops: tuple[int, ...]) -> torch.Tensor:
    """Cut off what follows the first token from a place on that ends a text."""
    for number, token in enumerate(text[0, place:].tolist(), start=place + 1):
        if token in stops:
            return text[:, :number]
    return text


@dataclass(frozen=True)
class _Steps:
    """A text, where its prompt ends, and where it differs from another one."""

    text: torch.Tensor
    prompt: int
    place: int

    @property
    def at_once(self) -> list[int]:
        """As many tokens at a time as can be: up to the place, then in blocks."""
        left = self.text.shape[1] - 1 - self.place
        blocks = [BLOCK] * (left // BLOCK) + ([left % BLOCK] if left % BLOCK else [])
        return [self.place, *blocks]

    @property
    def one_by_one(self) -> list[int]:
        """The prompt but for its last token, so that there is another order in any case."""
        first = max(1, min(self.prompt - 1, self.place))
        return [first, *[1] * (self.text.shape[1] - 1 - first)]


def _judged(model: Any, steps: _Steps, both: list[int]) -> tuple[float, float, int | None]:
    """Return how far two tokens are apart, how exact that is, and the first one that strays.

    Token by token takes as long as generating the text, so it is read so only as far as it must be:
    up to the place, and to every later token that the noise at the place does not explain.
    """
    at_once = enumerate(_scores(model, steps, steps.at_once), start=steps.place)
    one_by_one = enumerate(_scores(model, steps, steps.one_by_one), start=steps.place)
    gap, noise = _gap_and_noise(next(at_once)[1], next(one_by_one)[1], both)
    if not abs(gap) <= 2 * noise:
        return gap, noise, None  # what follows no longer matters
    for place, scores in at_once:
        best, token = int(scores.argmax()), int(steps.text[0, place])
        if float(scores[best]) - float(scores[token]) <= 2 * noise:
            continue
        again = next(each for reached, each in one_by_one if reached == place)
        below, exact = _gap_and_noise(scores, again, [best, token])
        if not below <= 2 * exact:
            return gap, noise, place
    return gap, noise, None


def _gap_and_noise(
    at_once: torch.Tensor, one_by_one: torch.Tensor, both: list[int]
) -> tuple[float, float]:
    """Return how far the scores of two tokens are apart, and how exact that is."""
    step = torch.finfo(at_once.dtype).eps * float(at_once[both].abs().max())
    at_once, one_by_one = at_once.float(), one_by_one.float()
    moved = (at_once - one_by_one).abs()
    typical = float(moved.square().mean().sqrt())
    noise = max(float(moved[both].max()), TYPICAL * typical, step)
    return float(at_once[both[0]] - at_once[both[1]]), noise


def _scores(model: Any, steps: _Steps, sizes: list[int]) -> Iterator[torch.Tensor]:
    """Yield the scores of every token from the place on, reading `sizes` tokens at a time."""
    cache, begin = None, 0
    for size in sizes:
        end = begin + size
        output = model(
            input_ids=steps.text[:, begin:end],
            attention_mask=torch.ones_like(steps.text[:, :end]),
            past_key_values=cache,
            use_cache=True,
        )
        cache = output.past_key_values
        yield from output.logits[0][max(0, steps.place - 1 - begin) :]
        begin = end
