"""Which operation stands at a node of a graph, whatever its spelling, and what it is given."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

__all__ = ["PRODUCTS", "NotFused", "ReachesOut", "number_of", "operand", "operation", "shape_of"]

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
    """Why a chain of operations is left as it is."""


class ReachesOut(NotFused):
    """A part of the chain is outside of the module: the one around it may hold all of it."""


def operation(node: Any, module: nn.Module) -> str:
    """Give the word for the operation at a node, or nothing if it is another one."""
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
    """Give an argument of an operation, by its place or by one of its names."""
    if place < len(node.args):
        return node.args[place]
    for name in SELF if place == 0 else names:
        if name in node.kwargs:
            return node.kwargs[name]
    return default


def shape_of(node: Any) -> tuple[int, ...] | None:
    """Give the shape of the tensor that stood at a node; None for other values."""
    return node.meta.get("seen_shape") if isinstance(node, fx.Node) else None


def number_of(value: Any, module: nn.Module) -> float | None:
    """Give the number that is sure to stand somewhere; None if it depends on a call.

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
