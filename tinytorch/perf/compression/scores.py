"""How much each weight matters, and which of them matter least. Arrays only.

A score is not negative. A weight that is zero already has the score :data:`ZERO_ALREADY`, below all
others, so that it counts among those that become zero before any other is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tinytorch.core.backends import Array
from tinytorch.errors import SettingError

__all__ = [
    "ZERO_ALREADY",
    "ranks_within_outputs",
    "relative_scores",
    "share_out",
    "smallest",
    "weight_scores",
]

ZERO_ALREADY = -1.0
Mask = npt.NDArray[np.bool_]


def weight_scores(weight: Array, input_norms: Array | None = None) -> Array:
    """Give the magnitude of each weight, times the norm of its input if that is given.

    |w| ||x|| is what the output of a layer would change by on the calibration data if this weight
    alone were gone (Sun et al., 2023, "Wanda"). `input_norms` fits the weight by broadcasting.
    """
    if not np.isfinite(weight).all():
        raise SettingError("its weight holds NaN or infinity, which cannot be ranked")
    scores: Array = np.abs(weight)
    if input_norms is not None:
        scores = scores.astype(np.float64) * input_norms  # no product of small floats becomes 0
    return np.where(weight == 0, scores.dtype.type(ZERO_ALREADY), scores)


def relative_scores(scores: Array) -> Array:
    """Divide by the norm of all scores of the layer, so that those of several layers compare.

    The square of the result is the share of one weight in what the layer gives, with inputs taken
    to be independent. Multiplying a layer by a number changes none of them.
    """
    alive = scores >= 0
    norm = float(np.linalg.norm(scores[alive].astype(np.float64)))
    if norm == 0:
        return scores
    return np.where(alive, scores / norm, ZERO_ALREADY)


def ranks_within_outputs(scores: Array, output_axis: int) -> Array:
    """Replace each score by its rank among the weights of the same output.

    The smallest of these are as many in each output, up to one.
    """
    rows = np.moveaxis(scores, output_axis, 0)
    flat = rows.reshape(len(rows), -1)
    order = np.argsort(flat, axis=1, kind="stable")
    ranks = np.empty(flat.shape, np.float64)
    np.put_along_axis(ranks, order, np.arange(flat.shape[1], dtype=np.float64)[None], axis=1)
    ranks[flat < 0] = ZERO_ALREADY
    return np.moveaxis(ranks.reshape(rows.shape), 0, output_axis)


def smallest(scores: Array, count: int) -> Mask:
    """Mark exactly `count` of the smallest scores; of equal ones, those that come first."""
    flat = scores.reshape(-1)
    chosen = np.zeros(flat.shape, np.bool_)
    if count > 0:
        limit = np.partition(flat, count - 1)[count - 1]
        chosen[flat < limit] = True
        equal = np.flatnonzero(flat == limit)
        chosen[equal[: count - int(chosen.sum())]] = True
    return chosen.reshape(scores.shape)


def share_out(scores: Sequence[Array], count: int) -> list[int]:
    """Tell how many of the `count` smallest scores of several layers lie in each.

    The largest of each layer stays, because a layer without weights cuts a model in two. Of equal
    scores those of the first layers are taken. So :func:`smallest` of each layer, with its number,
    gives the smallest of all.
    """
    flat = [_without_largest(each) for each in scores]
    together = np.concatenate(flat) if flat else np.empty(0)
    if count > len(together):
        raise SettingError(f"{count:,} scores are asked for, there are {len(together):,}")
    if count == 0:
        return [0] * len(flat)
    limit = np.partition(together, count - 1)[count - 1]
    shares = [int((each < limit).sum()) for each in flat]
    left = count - sum(shares)
    for index, each in enumerate(flat):
        equal = min(left, int((each == limit).sum()))
        shares[index] += equal
        left -= equal
    return shares


def _without_largest(scores: Array) -> Array:
    """Give the scores in a row without the last one of the largest; all, if all weights are 0."""
    flat = scores.reshape(-1)
    if not flat.size:
        return flat
    last = flat.size - 1 - int(flat[::-1].argmax())
    return flat if flat[last] < 0 else np.delete(flat, last)
