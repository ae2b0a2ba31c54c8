"""Finding a norm of rows in the graph of a model: it can be computed where its result is read."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

__all__ = ["RowNorm", "find_norm", "is_given", "value_of", "without_slices"]

NAMES: dict[Any, str] = {
    operator.mul: "mul",
    torch.mul: "mul",
    operator.add: "add",
    torch.add: "add",
    operator.pow: "pow",
    torch.pow: "pow",
    torch.mean: "mean",
    torch.rsqrt: "rsqrt",
    torch.square: "square",
}
METHODS = ("mul", "add", "pow", "mean", "rsqrt", "square", "to", "float")


@dataclass(frozen=True)
class RowNorm:
    """`weight * (x / root of the mean square of x)`: x, the weight, and the small number."""

    x: fx.Node
    weight: fx.Node
    eps: float
    begin: fx.Node
    """Where x is read first."""


def find_norm(node: Any) -> RowNorm | None:
    """Recognise a root-mean-square norm by what it computes, in 32 bits; None if it is none.

    Its steps are those that nearly every model writes: square, mean, a small number, the inverse
    root, the product with what was squared, the cast back, the product with a weight.
    """
    weighted = _operands(node, "mul")
    if len(weighted) != 2:
        return None
    for weight, scaled in (weighted, weighted[::-1]):
        size = value_of(weight)
        if size is not None and size.dim() == 1 and is_given(weight):
            found = _scaled(scaled)
            if found is not None:
                x, eps, begin = found
                rows = value_of(x)
                if rows is not None and rows.shape[-1] == len(size) and rows.dtype == size.dtype:
                    return RowNorm(x, weight, eps, begin)
    return None


def _scaled(node: Any) -> tuple[fx.Node, float, fx.Node] | None:
    """Give x, eps and the first step of `x * rsqrt(mean(x ** 2) + eps)`, in 32 bits, cast back."""
    product = _operands(_uncast(node), "mul")
    for wide, inverse in (product, product[::-1]) if len(product) == 2 else ():
        summed = _operands(next(iter(_operands(inverse, "rsqrt")), None), "add")
        if len(summed) != 2 or not isinstance(summed[1], float):
            continue
        squares = _mean_operand(summed[0])
        x = _uncast(wide)
        is_exact = _dtype(wide) is torch.float32 and _dtype(node) is _dtype(x)
        if is_exact and isinstance(x, fx.Node) and _is_square(squares, wide):
            return x, summed[1], wide if x is not wide else squares
    return None


def _is_square(node: Any, of: Any) -> bool:
    if _operands(node, "square") == [of]:
        return True
    power = _operands(node, "pow")
    return len(power) == 2 and power[0] is of and power[1] == 2


def _mean_operand(node: Any) -> Any:
    """Give what a node is the mean of, over the last axis, which stays."""
    operands = _operands(node, "mean")
    if not operands:
        return None
    axis = operands[1] if len(operands) > 1 else node.kwargs.get("dim")
    keeps = operands[2] if len(operands) > 2 else node.kwargs.get("keepdim", False)
    return operands[0] if axis in (-1, [-1], (-1,)) and keeps is True else None


def _uncast(node: Any) -> Any:
    """Give what was cast to another dtype, or the node itself."""
    cast = _operands(node, "to")
    if len(cast) == 2 and isinstance(cast[1], torch.dtype):
        return cast[0]
    return next(iter(_operands(node, "float")), node)


def _operands(node: Any, name: str) -> list[Any]:
    """Give what a function or method of this name is called with; nothing for other nodes."""
    if not isinstance(node, fx.Node):
        return []
    if node.op == "call_function":
        called = NAMES.get(node.target)
    else:
        called = str(node.target) if node.op == "call_method" and node.target in METHODS else None
    return list(node.args) if called == name else []


def _dtype(node: Any) -> torch.dtype | None:
    value = value_of(node)
    return None if value is None else value.dtype


def is_given(node: Any) -> bool:
    """Tell whether a node is a tensor that a graph is called with, or holds: not computed in it."""
    return isinstance(node, fx.Node) and node.op in ("placeholder", "get_attr")


def without_slices(node: Any) -> Any:
    """Give what a node takes all of, as in `x[:, 0:]`, if nothing else reads that; else the node.

    Decoders take those rows whose scores are wanted, which are all of them while they decode.
    """
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return node
    if node.target is not operator.getitem or not _is_everything(node.args[1]):
        return node
    taken: Any = node.args[0]
    is_alike = _shape(taken) is not None and _shape(taken) == _shape(node)
    return taken if is_alike and list(taken.users) == [node] else node


def _is_everything(index: Any) -> bool:
    places = index if isinstance(index, tuple) else (index,)
    return all(
        each is Ellipsis
        or (isinstance(each, slice) and not each.start and each.stop is None and each.step is None)
        for each in places
    )


def _shape(node: Any) -> tuple[int, ...] | None:
    value = value_of(node)
    return None if value is None else tuple(value.shape)


def value_of(node: Any) -> torch.Tensor | None:
    """Give the tensor that stands for a node and has its shape and dtype, or None."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None
