"""Finding and explaining where two generations part. Imported after torch."""

from __future__ import annotations

from typing import Any

import torch

from tinytorch.errors import ShapeError
from tinytorch.perf.memoization.divergence import Divergence
from tinytorch.perf.memoization.generation_torch import special_tokens

__all__ = ["explain_divergence"]

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
    something else, so nothing further is compared. `mask` has zeros where prompts are padded.
    """
    if not torch.equal(expected[:, :prompt], found[:, :prompt]):
        raise ShapeError("the generations begin with other prompts")
    width = max(expected.shape[1], found.shape[1])
    _, pad = special_tokens(model)
    expected, found = _widened(expected, width, pad), _widened(found, width, pad)
    is_other = expected != found
    parted = []
    for sequence in is_other.any(-1).nonzero()[:, 0].tolist():
        place = int(is_other[sequence].nonzero()[0, 0])
        padding = 0 if mask is None else int((mask[sequence, :prompt] == 0).sum())
        text = expected[sequence : sequence + 1, padding:place]
        wanted, instead = int(expected[sequence, place]), int(found[sequence, place])
        gap, noise = _gap_and_noise(model, text, prompt - padding, [wanted, instead])
        parted.append(Divergence(sequence, place - prompt, wanted, instead, gap, noise))
    return tuple(parted)


def _widened(tokens: torch.Tensor, width: int, pad: int) -> torch.Tensor:
    """Write down that a shorter generation had ended."""
    return torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]), value=pad)


def _gap_and_noise(
    model: Any, text: torch.Tensor, prompt: int, both: list[int]
) -> tuple[float, float]:
    """Give how far two tokens are apart after a text, and how exact that is."""
    exact, at_once = _scores(model, text, first=text.shape[1])
    # The last token of the prompt is read alone, so that there is another order in any case.
    _, one_by_one = _scores(model, text, first=max(1, prompt - 1))
    moved = (at_once - one_by_one).abs()
    typical = float(moved.square().mean().sqrt())
    step = exact * float(at_once[both].abs().max())
    noise = max(float(moved[both].max()), TYPICAL * typical, step)
    return float(at_once[both[0]] - at_once[both[1]]), noise


def _scores(model: Any, text: torch.Tensor, *, first: int) -> tuple[float, torch.Tensor]:
    """Give how exact scores are, and those after a text: so many tokens at once, then singly."""
    cache, begin, end, scores = None, 0, first, torch.empty(0)
    while begin < text.shape[1]:
        output = model(
            input_ids=text[:, begin:end],
            attention_mask=torch.ones_like(text[:, :end]),
            past_key_values=cache,
            use_cache=True,
        )
        scores, cache = output.logits[0, -1], output.past_key_values
        begin, end = end, end + 1
    return torch.finfo(scores.dtype).eps, scores.float()
