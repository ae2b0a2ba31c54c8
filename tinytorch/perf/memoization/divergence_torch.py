"""Finding and explaining where two generations part. Imported after torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tinytorch.errors import ShapeError
from tinytorch.perf.memoization.divergence import Divergence
from tinytorch.perf.memoization.generation_torch import special_tokens

__all__ = ["explain_divergence"]

BLOCK = 64
"""So many tokens after the first difference are read at a time: their scores take memory."""
TYPICAL = 2
"""Two scores out of a whole vocabulary may have moved little by luck: so many times the typical."""


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
    """Give how far two tokens are apart, how exact that is, and the first one that strays.

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
    """Give how far the scores of two tokens are apart, and how exact that is."""
    step = torch.finfo(at_once.dtype).eps * float(at_once[both].abs().max())
    at_once, one_by_one = at_once.float(), one_by_one.float()
    moved = (at_once - one_by_one).abs()
    typical = float(moved.square().mean().sqrt())
    noise = max(float(moved[both].max()), TYPICAL * typical, step)
    return float(at_once[both[0]] - at_once[both[1]]), noise


def _scores(model: Any, steps: _Steps, sizes: list[int]) -> Iterator[torch.Tensor]:
    """Yield the scores of every token from the place on, with so many tokens read at a time."""
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
