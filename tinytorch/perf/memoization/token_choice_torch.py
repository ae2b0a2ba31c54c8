"""Choosing the next token from scores, as transformers' generate does it. Imported after torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from tinytorch.errors import SettingError

__all__ = ["TokenChoice", "argmax_in_parts"]

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
        """Give one token for each row of scores."""
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
    """Give the place of the first largest score of each row, (batch, scores), part by part."""
    rows, length = scores.shape
    filled = F.pad(scores, (0, -length % PART), value=-torch.inf)
    parts = filled.view(rows, -1, PART)
    best = parts.amax(-1).argmax(-1, keepdim=True)  # (batch, 1)
    inside = parts.argmax(-1).gather(1, best)
    return (best * PART + inside)[:, 0]
