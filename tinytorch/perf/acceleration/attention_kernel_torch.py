"""softmax(q k^T scale + mask) v with torch's fused kernel, for every spelling of the mask."""

from __future__ import annotations

import operator
from collections.abc import MutableMapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from tinytorch.perf.acceleration.attention_triangles_torch import kind_of_triangle

__all__ = ["AnotherCall", "attend", "expect", "like_scores"]

Shape = tuple[int, ...]

_known: MutableMapping[Tensor, tuple[int, str]] = WeakTensorKeyDictionary()
"""Masks that were looked at, by their version: looking waits for the device."""


class AnotherCall(Exception):
    """A call is not of the kind that a graph was made for: it is to be computed by hand."""


def expect(value: Any, seen: bool) -> None:
    """Check in a graph that a condition is what it was when the graph was made."""
    if bool(value) is not seen:
        raise AnotherCall


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: tuple[Any, ...] = (),
    divide: tuple[Any, ...] = (),
    add: tuple[Tensor, ...] = (),
    keep: tuple[Tensor, ...] = (),
    drop: tuple[Tensor, ...] = (),
    causal: Tensor | None = None,
    kind: str = "keep",
    held: Tensor | None = None,
    spread: bool = False,
) -> Tensor:
    """Compute attention without writing the scores to memory.

    query: (..., time, width), key and value: (..., keys, width). Scores are multiplied by all
    of `scale` and divided by all of `divide`, numbers or tensors; `add` is added to them, `keep`
    and `drop` are boolean. `causal` is a triangular mask whose entries other than 0 are of the
    `kind` "keep", "drop" or "add"; if it is cut from a tensor that is `held` by a module, that is
    looked at again whenever it was written to. With `spread`, a query that may look at no key
    looks at all of them alike, as it does where masks are large numbers.

    Shapes that the kernel has no place for are another call.
    """
    scores = _scores_shape(query, key, value)
    is_causal = causal is not None and not (add or keep or drop) and _is_square(causal, scores)
    if is_causal and held is not None:
        is_causal = _is_still(held, kind)
    if causal is not None and not is_causal:
        masks = {"add": add, "keep": keep, "drop": drop}
        masks[kind] = (*masks[kind], causal if kind == "add" else causal != 0)
        add, keep, drop = masks["add"], masks["keep"], masks["drop"]
    all_kept = [*(each.bool() for each in keep), *(~each.bool() for each in drop)]
    kept = reduce(operator.and_, all_kept) if all_kept else None
    added = reduce(operator.add, add) if add else None
    factors = [each for each in (*scale, *divide) if isinstance(each, Tensor)]
    parts = [each for each in (kept, added, *factors) if each is not None]
    if not all(_fits(each, scores) for each in parts) or not all(map(_is_per_query, factors)):
        raise AnotherCall
    query, factor = _scaled(query, scale, divide)
    if spread and kept is not None:
        query, kept, added = _spread(query, kept, added)
    mask = _joined(kept, added, _dtype_of_kernel(query))
    return _fused(query, key, value, scores, mask, is_causal=is_causal, scale=factor)


def like_scores(query: Tensor, key: Tensor) -> Tensor:
    """Give a tensor of the shape of the scores and the dtype of the query, without any numbers."""
    return query.new_empty(()).expand(_scores_shape(query, key))


def _scores_shape(*parts: Tensor) -> torch.Size:
    """Give the shape (..., time, keys) of query, key and maybe value, spread over all of them."""
    axes = parts[0].shape[:-2]
    if any(each.shape[:-2] != axes for each in parts):
        axes = torch.broadcast_shapes(*(each.shape[:-2] for each in parts))  # type: ignore[no-untyped-call]
    return torch.Size((*axes, parts[0].shape[-2], parts[1].shape[-2]))


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: Shape,
    mask: Tensor | None,
    *,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """Bring everything to four axes, which is what the fast kernels take."""
    axes, dtype = scores[:-2], value.dtype
    parts = [each.expand(*axes, *each.shape[-2:]) for each in (query, key, value)]
    if mask is not None:
        if mask.dim() < 2 or mask.shape[-1] != scores[-1]:
            rows = mask.shape[-2] if mask.dim() > 1 else 1
            mask = mask.expand(*mask.shape[:-2], rows, scores[-1]).contiguous()
        mask = mask.reshape(*(1,) * (len(scores) - mask.dim()), *mask.shape)
    missing = 4 - len(scores)
    if missing > 0:  # (batch, time, width) becomes (batch, 1, time, width)
        place = (slice(None),) * len(axes) + (None,) * missing
        parts = [each[place] for each in parts]
        mask = None if mask is None else mask[place]
    result = F.scaled_dot_product_attention(
        parts[0],
        parts[1],
        parts[2].to(parts[0].dtype),
        attn_mask=mask,
        is_causal=is_causal,
        scale=float(scale),
    )
    return result.reshape(*axes, *result.shape[-2:]).to(dtype)


def _scaled(query: Tensor, scale: tuple[Any, ...], divide: tuple[Any, ...]) -> tuple[Tensor, float]:
    """Give tensors among the factors to the query, and multiply the numbers."""
    factor = 1.0
    for each in scale:
        if isinstance(each, Tensor):
            query = query * each.to(query.dtype)
        else:
            factor *= each
    for each in divide:
        if isinstance(each, Tensor):
            query = query / each.to(query.dtype)
        else:
            factor /= each
    return query, factor


# ---------------------------------------------------------------- masks


def _is_square(causal: Tensor, scores: Shape) -> bool:
    """Tell whether a triangular mask is that of all queries and all keys, for every batch."""
    time, keys = scores[-2:]
    first = causal.shape[:-2]
    return time == keys and tuple(causal.shape[-2:]) == (time, keys) and first.numel() == 1


def _is_still(held: Tensor, kind: str) -> bool:
    """Tell whether a mask that a module holds is triangular now; no where nobody could notice."""
    if torch.compiler.is_compiling() or held.is_inference():
        return False
    known = _known.get(held)
    if known is None or known[0] != held._version:
        known = _known[held] = (held._version, kind_of_triangle(held))
    return known[1] == kind


def _spread(
    query: Tensor, kept: Tensor, added: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Let queries without any key look at all of them, with scores that are 0."""
    blind = ~kept.any(-1, keepdim=True)  # (..., time, 1)
    query = query.masked_fill(blind, 0.0)
    added = None if added is None else torch.where(blind, 0.0, added)
    return query, kept | blind, added


def _dtype_of_kernel(query: Tensor) -> torch.dtype:
    """Give the dtype in which it is computed: torch.autocast casts all that the kernel is given."""
    place = query.device.type
    is_cast = query.dtype == torch.float32 and torch.is_autocast_enabled(place)
    return torch.get_autocast_dtype(place) if is_cast else query.dtype


def _joined(kept: Tensor | None, added: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Give one mask: boolean, or numbers of a dtype."""
    if added is None:
        return kept
    if added.dtype != dtype:  # what is large in the one may be infinite in the other
        limit = torch.finfo(dtype)
        infinite = added.isinf()
        added = torch.where(infinite, added, added.clamp(limit.min, limit.max)).to(dtype)
    if kept is None:
        return added
    return torch.where(kept, added, torch.full((), -torch.inf, dtype=dtype, device=added.device))


def _fits(part: Tensor, scores: Shape) -> bool:
    """Tell whether something spreads over the scores without making them larger."""
    pairs = zip(reversed(part.shape), reversed(scores), strict=False)
    return part.dim() <= len(scores) and all(one in (1, other) for one, other in pairs)


def _is_per_query(factor: Tensor) -> bool:
    """Tell whether a factor is one number for each query at most, so that queries can have it."""
    return factor.dim() == 0 or factor.shape[-1] == 1
