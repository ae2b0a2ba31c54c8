"""Checking a preallocated cache: the model must score tokens with it as with its own cache.

Not every model that takes such a cache uses it well: one that derives a window from how long the
cache is would see other tokens, and nobody would tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tinytorch.errors import ModelError, first_line
from tinytorch.perf.memoization.generation_torch import vocabulary_size

if TYPE_CHECKING:
    from tinytorch.perf.memoization.decode_session_torch import DecodeSession

__all__ = ["check_step"]

PROMPT, STEPS = 4, 3
ALLOWED = {torch.float32: 1e-4, torch.float64: 1e-8, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far scores may move with the order of computing, relative to the largest."""


def check_step(session: DecodeSession) -> None:
    """Read a short text with the session's cache and with the model's own; compare the scores.

    Rounding may move single scores far (where experts are chosen), so the best of some steps
    counts; a mistake shows in all of them. Raises ModelError if the scores are different, or if the
    model cannot be called with that cache.
    """
    text, seen = _text(session)
    with torch.no_grad():
        expected = _scores_expected(session, text, seen)
    try:
        with session.running():
            found = _scores_found(session, text, seen)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model raises that expects a cache of another kind
        raise ModelError(
            f"{type(session.model).__name__} fails with a preallocated cache "
            f"({first_line(error)}): it does not support such a cache"
        ) from error
    largest = expected.float().abs().amax(-1).clamp_min(torch.finfo(torch.float32).tiny)
    apart = (found - expected).float().abs().amax(-1) / largest
    worst = float(apart.amin(0).max())  # (steps, batch): the best step of the worst row
    if not worst <= ALLOWED.get(found.dtype, ALLOWED[torch.bfloat16]):
        raise ModelError(
            f"{type(session.model).__name__} gives other scores with a preallocated cache than "
            f"with its own (by {worst:.2g} of the largest one): it does not support such a cache"
        )


def _text(session: DecodeSession) -> tuple[torch.Tensor, torch.Tensor]:
    batch, length = session.settings.batch, PROMPT + STEPS
    rows = torch.arange(batch, device=session.device)[:, None]
    places = torch.arange(length, device=session.device)[None, :]
    words = vocabulary_size(session.model)
    seen = torch.ones((batch, PROMPT), dtype=torch.bool, device=session.device)
    if session.settings.is_ragged:
        seen[::2, 0] = False
    return (5 * rows + 3 * places + 1) % words, seen


def _scores_found(session: DecodeSession, text: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Give the scores after each token of the text from the end of the prompt on."""
    session.mask.fill_(True)
    session.mask[:, :PROMPT] = seen
    session.tokens[:, :PROMPT] = text[:, :PROMPT]
    session.read_scores(PROMPT)
    scores = []
    for place in range(PROMPT, text.shape[1]):
        session.put(text[:, place])
        scores.append(session.next_scores())
    return torch.stack(scores)


def _scores_expected(
    session: DecodeSession, text: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    mask = torch.ones_like(text)
    mask[:, :PROMPT] = seen
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    cache: Any = None
    scores = []
    for begin, end in [(0, PROMPT), *((at, at + 1) for at in range(PROMPT, text.shape[1]))]:
        output = session.model(
            input_ids=text[:, begin:end],
            attention_mask=mask[:, :end],
            position_ids=positions[:, begin:end],
            past_key_values=cache,
            use_cache=True,
        )
        cache = output.past_key_values
        if begin:
            scores.append(output.logits[:, -1])
    return torch.stack(scores)
