"""How much each weight of a PyTorch model matters, computed where it lies. Imported after torch.

The same scores as in ``scores.py``, in float32, or float64 for such weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tinytorch.errors import SettingError
from tinytorch.perf.compression.scores import ZERO_ALREADY

__all__ = [
    "ranks_within_outputs",
    "relative_scores",
    "share_out",
    "smallest",
    "weight_scores",
]

BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Floats that are not negative are ordered as the whole numbers with the same bits, and the one
negative score, of zeros that are there already, lies below them in both."""


def weight_scores(weight: torch.Tensor, input_norms: torch.Tensor | None = None) -> torch.Tensor:
    """Give magnitudes, times the norms of the inputs if given, which fit by broadcasting."""
    weight = weight.detach()
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    scores = weight.abs().to(wide)
    if input_norms is not None:
        scores = scores * input_norms.to(scores)
    return scores.masked_fill_(weight == 0, ZERO_ALREADY)


def relative_scores(scores: torch.Tensor) -> torch.Tensor:
    """Divide by the norm of all scores of the layer, so that those of several layers compare."""
    alive = scores >= 0
    norm = torch.linalg.vector_norm(scores.clamp(min=0), dtype=torch.float64).item()
    return torch.where(alive, scores / norm, ZERO_ALREADY) if norm else scores


def ranks_within_outputs(scores: torch.Tensor, output_axis: int) -> torch.Tensor:
    """Replace each score by its rank among the weights of the same output."""
    rows = scores.movedim(output_axis, 0)
    flat = rows.reshape(len(rows), -1)
    order = flat.argsort(dim=1, stable=True)
    ranks = torch.empty_like(flat)
    places = torch.arange(flat.shape[1], dtype=flat.dtype, device=flat.device)
    ranks.scatter_(1, order, places.expand_as(flat))
    ranks.masked_fill_(flat < 0, ZERO_ALREADY)
    return ranks.reshape(rows.shape).movedim(0, output_axis)


def smallest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Mark exactly `count` of the smallest scores; of equal ones, those that come first."""
    bits = scores.reshape(-1).view(BITS[scores.dtype])
    limit = _limit(lambda each: int((bits < each).sum()), count, bits.dtype)
    chosen = bits < limit
    missing = count - int(chosen.sum())
    if missing:
        chosen[(bits == limit).nonzero().reshape(-1)[:missing]] = True
    return chosen.reshape(scores.shape)


def share_out(scores: Sequence[torch.Tensor], count: int) -> list[int]:
    """Tell how many of the `count` smallest scores of several layers lie in each.

    The largest of each layer stays, unless the layer is zero throughout. The scores need not be
    brought together, nor lie on one device.
    """
    wide = torch.float64 if any(s.dtype == torch.float64 for s in scores) else torch.float32
    bits = [each.to(wide).reshape(-1).view(BITS[wide]) for each in scores]
    most = [len(each) - 1 if bool((each >= 0).any()) else len(each) for each in bits]
    if count > sum(most):
        raise SettingError(f"{count:,} scores are asked for, there are {sum(most):,}")

    def below(limit: int) -> list[int]:
        """Count what lies below a limit, but for the one that stays."""
        counts = (int((each < limit).sum()) for each in bits)
        return [min(found, bound) for found, bound in zip(counts, most, strict=True)]

    limit = _limit(lambda each: sum(below(each)), count, BITS[wide])
    shares = below(limit)
    left = count - sum(shares)
    for index, bound in enumerate(most):
        equal = min(left, bound - shares[index], int((bits[index] == limit).sum()))
        shares[index] += equal
        left -= equal
    return shares


def _limit(below: Callable[[int], int], count: int, dtype: torch.dtype) -> int:
    """Find the largest limit with not more than `count` numbers below it, bit by bit.

    That is one comparison of all numbers for each bit, many times faster than sorting on a GPU.
    """
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    while low < high:
        middle = low + (high - low + 1) // 2
        low, high = (middle, high) if below(middle) <= count else (low, middle - 1)
    return low
