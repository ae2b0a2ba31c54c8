"""Products of attention as they are written: what is the query, the key, the value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from tinytorch.perf.acceleration.attention_operations_torch import NotFused, operand, operation

__all__ = ["Layout", "permuted", "queries_and_keys", "values_of"]

OTHER = ("other", "mat2", "tensor2")


@dataclass(frozen=True)
class Layout:
    """A tensor in the graph, and how its axes are to be put: permuted, then new ones of size 1."""

    node: fx.Node
    order: tuple[int, ...] = ()
    inserted: tuple[int, ...] = ()
    is_transposed: bool = False

    def emit(self, graph: fx.Graph) -> fx.Node:
        """Write the nodes that lay it out, at the point of insertion of the graph."""
        node = self.node
        if self.is_transposed:
            node = graph.call_method("transpose", (node, -2, -1))
        node = permuted(graph, node, self.order)
        for place in self.inserted:
            node = graph.call_method("unsqueeze", (node, place))
        return node


def permuted(graph: fx.Graph, node: fx.Node, order: tuple[int, ...]) -> fx.Node:
    """Write a node that puts axes in an order, unless they stand so."""
    is_same = order == tuple(range(len(order)))
    return node if is_same else graph.call_method("permute", (node, *order))


def queries_and_keys(node: fx.Node, module: nn.Module) -> tuple[Layout, Layout]:
    """Read a product as that of query (..., time, width) and key (..., keys, width)."""
    if operation(node, module) == "einsum":
        return _of_einsum(node)
    query, key = operand(node, 0), operand(node, 1, *OTHER)
    if not (isinstance(query, fx.Node) and isinstance(key, fx.Node)):
        raise NotFused("one side of the product of queries and keys is no tensor of the call")
    if operation(key, module) == "transpose":
        axes = {operand(key, 1, "dim0", "axis0"), operand(key, 2, "dim1", "axis1")}
        if axes == {-1, -2}:
            return Layout(query), Layout(operand(key, 0))
    return Layout(query), Layout(key, is_transposed=True)


def values_of(node: fx.Node, weights: fx.Node, module: nn.Module) -> tuple[Layout, tuple[int, ...]]:
    """Read a product as that of weights and values (..., keys, width).

    Give the value, and the order of axes in which the result is wanted.
    """
    if operation(node, module) == "einsum":
        return _summed_by_einsum(node, weights)
    value: Any = operand(node, 1, *OTHER)
    if operand(node, 0) is weights and isinstance(value, fx.Node):
        return Layout(value), ()
    raise NotFused("the attention weights are multiplied from the other side")


# ---------------------------------------------------------------- einsum


def _terms(node: fx.Node) -> tuple[list[str], str, list[Any]]:
    """Give the letters of the operands and of the result, and the operands."""
    equation, *operands = node.args
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = list(operands[0])
    if not isinstance(equation, str) or "->" not in equation or len(operands) != 2:
        raise NotFused("its einsum has no equation of two operands and a result")
    given, result = equation.replace(" ", "").split("->")
    terms = given.split(",")
    if any(len(set(term)) != len(term) for term in (*terms, result)):
        raise NotFused(f"the einsum {equation!r} has dots, or takes a letter twice")
    return terms, result, operands


def _of_einsum(node: fx.Node) -> tuple[Layout, Layout]:
    (one, other), result, (first, second) = _terms(node)
    if len(result) < 2:
        raise NotFused("its einsum gives no matrix of scores")
    batch, row, column = result[:-2], result[-2], result[-1]
    if row in other and row not in one:
        one, other, first, second = other, one, second, first
    summed = (set(one) & set(other)) - set(result)
    if row not in one or row in other or column in one or column not in other or len(summed) != 1:
        raise NotFused(f"the einsum with the result {result!r} is no product of queries and keys")
    (width,) = summed
    query = _laid_out(first, one, batch, row + width)
    return query, _laid_out(second, other, batch, column + width)


def _summed_by_einsum(node: fx.Node, weights: fx.Node) -> tuple[Layout, tuple[int, ...]]:
    terms, result, operands = _terms(node)
    place = 0 if operands[0] is weights else 1
    own, term, value = terms[place], terms[1 - place], operands[1 - place]
    batch, row, column = own[:-2], own[-2], own[-1]
    width = set(term) - set(own)
    computed = f"{batch}{row}{''.join(width)}"
    if len(width) != 1 or set(result) != set(computed) or column not in term or row in term:
        raise NotFused(f"the einsum with the result {result!r} is no sum of values")
    order = tuple(computed.index(letter) for letter in result)
    return _laid_out(value, term, batch, column + "".join(width)), order


def _laid_out(node: fx.Node, term: str, batch: str, last: str) -> Layout:
    """Give the layout with the axes of the batch first, those it lacks with size 1."""
    wanted = batch + last
    if not set(term) <= set(wanted):
        raise NotFused(f"the einsum sums the axis {min(set(term) - set(wanted))!r} away")
    order = tuple(term.index(letter) for letter in wanted if letter in term)
    return Layout(node, order, tuple(wanted.index(each) for each in batch if each not in term))
