"""Masks that are sure to be triangular, whatever the call: then attention is causal."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn

from tinytorch.perf.acceleration.attention_operations_torch import number_of, operand, operation

__all__ = ["HIDDEN", "Triangle", "causal_addend", "causal_mask", "kind_of_triangle"]

HIDDEN = -1e3
"""Scores that are so low weigh nothing: exp(-1000) is zero in every dtype."""
FLIPS = ("eq", "not")
PASSES = ("ne", "bool", "cast")
SHAPED = ("unsqueeze", "cast")


@dataclass(frozen=True)
class Triangle:
    """A mask whose entries other than 0 are to "keep", to "drop" or to "add".

    `held` is the attribute of the module that it is cut from: somebody may change that later.
    """

    node: fx.Node
    kind: str
    held: fx.Node | None


def causal_mask(mask: fx.Node, module: nn.Module, *, is_kept: bool) -> Triangle | None:
    """Give what a boolean mask is made of, if it hides exactly what comes later."""
    node: Any = mask
    while (name := operation(node, module)) in (*FLIPS, *PASSES):
        if name in ("eq", "ne") and operand(node, 1, "other") != 0:
            return None
        is_kept ^= name in FLIPS
        node = operand(node, 0)
    return _triangle(node, "keep" if is_kept else "drop", module)


def causal_addend(addend: fx.Node, module: nn.Module) -> Triangle | None:
    """Give what is added to scores, if it hides exactly what comes later, and changes no other."""
    return _triangle(addend, "add", module)


def kind_of_triangle(tensor: torch.Tensor) -> str:
    """Say as what a tensor is a causal mask: to "keep", to "drop" or to "add"; or nothing."""
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
    """Say which triangle is made in the call itself."""
    name, filled = operation(node, module), operand(node, 0)
    diagonal = operand(node, 1, "diagonal", default=0)
    if operation(filled, module) == "ones":
        return {("tril", 0): "keep", ("triu", 1): "drop"}.get((name, diagonal), "")
    value = number_of(filled, module)
    hides = (name, diagonal) == ("triu", 1) and value is not None and value <= HIDDEN
    return "add" if hides else ""


def _starts_at_zero(index: Any) -> bool:
    """Tell whether an index takes the first rows and columns, so that a triangle stays one."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None
        or part is Ellipsis
        or (isinstance(part, slice) and part.start in (None, 0) and part.step in (None, 1))
        for part in parts
    )
