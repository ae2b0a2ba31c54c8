"""softmax(q k^T scale + mask) v with torch's fused kernel, for every spelling of the mask."""

from __future__ import annotations

import operator
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

# ---------------------------------------------------------------- which operation stands at a node
# of a graph, whatever its spelling, and what it is given

FUNCTIONS: dict[Any, str] = {
    torch.matmul: "matmul",
    operator.matmul: "matmul",
    torch.bmm: "matmul",
    torch.einsum: "einsum",
    F.softmax: "softmax",
    torch.softmax: "softmax",
    F.dropout: "dropout",
    torch.dropout: "dropout",
    operator.mul: "mul",
    torch.mul: "mul",
    operator.truediv: "div",
    torch.div: "div",
    operator.add: "add",
    torch.add: "add",
    torch.masked_fill: "masked_fill",
    torch.where: "where",
    operator.eq: "eq",
    torch.eq: "eq",
    operator.ne: "ne",
    torch.ne: "ne",
    operator.invert: "not",
    torch.logical_not: "not",
    operator.getitem: "getitem",
    torch.unsqueeze: "unsqueeze",
    torch.transpose: "transpose",
    torch.tril: "tril",
    torch.triu: "triu",
    torch.ones: "ones",
    torch.full: "full",
    torch.tensor: "tensor",
    torch.finfo: "finfo",
    getattr: "getattr",
}
METHODS: dict[str, str] = {
    **dict.fromkeys(("matmul", "bmm"), "matmul"),
    **dict.fromkeys(("mul", "mul_"), "mul"),
    **dict.fromkeys(("div", "div_"), "div"),
    **dict.fromkeys(("add", "add_"), "add"),
    **dict.fromkeys(("masked_fill", "masked_fill_"), "masked_fill"),
    **{
        word: word for word in ("softmax", "where", "eq", "ne", "bool", "unsqueeze", "tril", "triu")
    },
    "logical_not": "not",
    **dict.fromkeys(("transpose", "swapaxes"), "transpose"),
    **dict.fromkeys(("to", "type", "type_as", "float", "half", "bfloat16", "double"), "cast"),
    **dict.fromkeys(("contiguous", "clone"), "cast"),
}
MODULES: dict[type[nn.Module], str] = {
    nn.Softmax: "softmax",
    nn.Dropout: "dropout",
    nn.Identity: "cast",
}
"""Exactly these classes: another one may compute something else."""

PRODUCTS = ("matmul", "einsum")
SELF = ("input", "self")


class NotFused(Exception):
    """The reason why a chain of operations is not fused."""


class ReachesOut(NotFused):
    """A part of the chain is outside of the module: the one around it may hold all of it."""


def operation(node: Any, module: nn.Module) -> str:
    """Return the word for the operation at a node, or nothing if it is another one."""
    if not isinstance(node, fx.Node):
        return ""
    if node.op == "call_function":
        return FUNCTIONS.get(node.target, "")
    if node.op == "call_method":
        return METHODS.get(str(node.target), "")
    if node.op == "call_module":
        return MODULES.get(type(module.get_submodule(str(node.target))), "")
    return ""


def operand(node: fx.Node, place: int, *names: str, default: Any = None) -> Any:
    """Return an argument of an operation, by its place or by one of its names."""
    if place < len(node.args):
        return node.args[place]
    for name in SELF if place == 0 else names:
        if name in node.kwargs:
            return node.kwargs[name]
    return default


def shape_of(node: Any) -> tuple[int, ...] | None:
    """Return the shape of the tensor that stood at a node; None for other values."""
    return node.meta.get("seen_shape") if isinstance(node, fx.Node) else None


def number_of(value: Any, module: nn.Module) -> float | None:
    """Return the number that is sure to stand somewhere; None if it depends on a call.

    The smallest number of a dtype is given as that of float16: it is as large, at least.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    name = operation(value, module)
    if name == "tensor":
        return number_of(operand(value, 0, "data"), module)
    if name == "full":
        return number_of(operand(value, 1, "fill_value"), module)
    if name == "getattr" and value.args[1] == "min":
        is_limit = operation(value.args[0], module) == "finfo"
        return torch.finfo(torch.float16).min if is_limit else None
    return None


# ---------------------------------------------------------------- masks that are sure to be
# triangular, whatever the call: then attention is causal

HIDDEN = -1e3
"""Scores that are so low weigh nothing: exp(-1000) is zero in every dtype."""
FLIPS = ("eq", "not")
PASSES = ("ne", "bool", "cast")
SHAPED = ("unsqueeze", "cast")


@dataclass(frozen=True)
class Triangle:
    """A mask whose entries other than 0 are to "keep", to "drop" or to "add".

    `held` is the attribute of the module that it is cut from, which may change later.
    """

    node: fx.Node
    kind: str
    held: fx.Node | None


def causal_mask(mask: fx.Node, module: nn.Module, *, is_kept: bool) -> Triangle | None:
    """Return what a boolean mask is made of, if it hides exactly what comes later."""
    node: Any = mask
    while (name := operation(node, module)) in (*FLIPS, *PASSES):
        if name in ("eq", "ne") and operand(node, 1, "other") != 0:
            return None
        is_kept ^= name in FLIPS
        node = operand(node, 0)
    return _triangle(node, "keep" if is_kept else "drop", module)


def causal_addend(addend: fx.Node, module: nn.Module) -> Triangle | None:
    """Return what is added to scores, if it hides what comes later and changes nothing else."""
    return _triangle(addend, "add", module)


def kind_of_triangle(tensor: torch.Tensor) -> str:
    """Return as what a tensor is a causal mask: to "keep", to "drop" or to "add"; or ""."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[:-2].numel() != 1:
        return ""
    square = tensor.detach().reshape(tensor.shape[-2:])
    later = torch.ones_like(square, dtype=torch.bool).triu(1)
    if len(square) < 2 or tensor.requires_grad:
        return ""
    if torch.equal(square != 0, ~later):
        return "keep"
    if not torch.equal(square != 0, later):
        return ""
    hides = square.is_floating_point() and bool((square[later] <= HIDDEN).all())
    return "add" if hides else "drop"


def _triangle(mask: Any, kind: str, module: nn.Module) -> Triangle | None:
    node = mask
    while isinstance(node, fx.Node) and (
        (name := operation(node, module)) in SHAPED
        or (name == "getitem" and _starts_at_zero(node.args[1]))
    ):
        node = operand(node, 0)
    if not isinstance(node, fx.Node):
        return None
    if node.op == "get_attr":
        is_known = kind_of_triangle(attrgetter(str(node.target))(module)) == kind
        return Triangle(mask, kind, node) if is_known else None
    return Triangle(mask, kind, None) if _made(node, module) == kind else None


def _made(node: fx.Node, module: nn.Module) -> str:
    """Return which triangle is made in the call itself."""
    name, filled = operation(node, module), operand(node, 0)
    diagonal = operand(node, 1, "diagonal", default=0)
    if operation(filled, module) == "ones":
        return {("tril", 0): "keep", ("triu", 1): "drop"}.get((name, diagonal), "")
    value = number_of(filled, module)
    hides = (name, diagonal) == ("triu", 1) and value is not None and value <= HIDDEN
    return "add" if hides else ""


def _starts_at_zero(index: Any) -> bool:
    """Return whether an index takes the first rows and columns, so that a triangle stays one."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None
        or part is Ellipsis
        or (isinstance(part, slice) and part.start in (None, 0) and part.step in (None, 1))
        for part in parts
    )


# ---------------------------------------------------------------- softmax(q k^T scale + mask) v
# with torch's fused kernel, for every spelling of the mask

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
    checked again whenever it was written to. With `spread`, a query that may attend to no key
    attends to all of them alike, as it does where masks are large numbers.

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
    """Return a tensor with the shape of the scores and the dtype of the query, but no numbers."""
    return query.new_empty(()).expand(_scores_shape(query, key))


def _scores_shape(*parts: Tensor) -> torch.Size:
    """Return the shape (..., time, keys) of query, key and maybe value, spread over all of them."""
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
    """Return tensors among the factors to the query, and multiply the numbers."""
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
    """Return whether a triangular mask is that of all queries and all keys, for every batch."""
    time, keys = scores[-2:]
    first = causal.shape[:-2]
    return time == keys and tuple(causal.shape[-2:]) == (time, keys) and first.numel() == 1


def _is_still(held: Tensor, kind: str) -> bool:
    """Return whether a mask that a module holds is still triangular; False where unknown."""
    if torch.compiler.is_compiling() or held.is_inference():
        return False
    known = _known.get(held)
    if known is None or known[0] != held._version:
        known = _known[held] = (held._version, kind_of_triangle(held))
    return known[1] == kind


def _spread(
    query: Tensor, kept: Tensor, added: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Make queries without any key attend to all of them, with scores of 0."""
    blind = ~kept.any(-1, keepdim=True)  # (..., time, 1)
    query = query.masked_fill(blind, 0.0)
    added = None if added is None else torch.where(blind, 0.0, added)
    return query, kept | blind, added


def _dtype_of_kernel(query: Tensor) -> torch.dtype:
    """Return the dtype of the computation: torch.autocast casts all inputs of the kernel."""
    place = query.device.type
    is_cast = query.dtype == torch.float32 and torch.is_autocast_enabled(place)
    return torch.get_autocast_dtype(place) if is_cast else query.dtype


def _joined(kept: Tensor | None, added: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return one mask: boolean, or numbers of a dtype."""
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
    """Return whether something spreads over the scores without making them larger."""
    pairs = zip(reversed(part.shape), reversed(scores), strict=False)
    return part.dim() <= len(scores) and all(one in (1, other) for one, other in pairs)


def _is_per_query(factor: Tensor) -> bool:
    """Return whether a factor is one number for each query at most, so that queries can have it."""
    return factor.dim() == 0 or factor.shape[-1] == 1
