"""Choosing the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.errors import SettingError

__all__ = ["Sampler"]


@dataclass(frozen=True)
class Sampler:
    """How to choose: the likeliest token at temperature 0, else a draw.

    `top_k` keeps the k likeliest tokens (and those that tie with the last of them); `top_p` then
    keeps the likeliest ones that together reach probability p.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise SettingError(f"temperature must be at least 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise SettingError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SettingError(f"top_p must be in (0, 1], got {self.top_p}")

    def choose(self, logits: Array, rng: np.random.Generator) -> Array:
        """Choose one token per row of logits (batch, vocabulary)."""
        likeliest = logits.argmax(axis=-1)
        # NaN counts as the largest, so looking at the largest is enough.
        highest = logits[np.arange(len(logits)), likeliest]
        if not np.isfinite(highest).all():
            raise _not_a_choice(highest)
        if self.temperature == 0:
            return likeliest
        probabilities = self.probabilities(logits)
        cumulative = probabilities.cumsum(axis=-1)
        draws = rng.random((len(logits), 1)) * cumulative[:, -1:]
        return (cumulative <= draws).sum(axis=-1)

    def probabilities(self, logits: Array) -> Array:
        """Give what is drawn from, in float64, for a temperature above 0."""
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        with np.errstate(over="ignore"):  # at a tiny temperature all but the likeliest are -inf
            scores = shifted / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            smallest_kept = np.partition(logits, -self.top_k, axis=-1)[:, -self.top_k, None]
            scores = np.where(logits < smallest_kept, -np.inf, scores)
        exponentials = np.exp(scores)
        probabilities: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
        if self.top_p is not None and self.top_p < 1:
            order = np.argsort(-probabilities, axis=-1, kind="stable")
            ranked = np.take_along_axis(probabilities, order, axis=-1)
            before = ranked.cumsum(axis=-1) - ranked  # what likelier tokens already reach
            ranked[before >= self.top_p] = 0
            np.put_along_axis(probabilities, order, ranked, axis=-1)
            probabilities /= probabilities.sum(axis=-1, keepdims=True)
        return probabilities


def _not_a_choice(highest: Array) -> SettingError:
    if np.isnan(highest).any():
        return SettingError("the logits hold NaN, so no token can be chosen; check the weights")
    wrong = highest[~np.isfinite(highest)][0]
    return SettingError(
        f"the largest logit is {wrong}, so no token can be chosen; check the weights"
    )
