"""Attention by hand in a graph: finding it, and writing fused attention in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import fx, nn

from tinytorch.transforms.fuse_attention.kernel import (
    HIDDEN,
    PRODUCTS,
    NotFused,
    ReachesOut,
    Triangle,
    attend,
    causal_addend,
    causal_mask,
    like_scores,
    number_of,
    operand,
    operation,
    shape_of,
)

# ---------------------------------------------------------------- products of attention as they
# are written: what is the query, the key, the value

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
    """Return the letters of the operands and of the result, and the operands."""
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
    """Return the layout with the axes of the batch first, those it lacks with size 1."""
    wanted = batch + last
    if not set(term) <= set(wanted):
        raise NotFused(f"the einsum sums the axis {min(set(term) - set(wanted))!r} away")
    order = tuple(term.index(letter) for letter in wanted if letter in term)
    return Layout(node, order, tuple(wanted.index(each) for each in batch if each not in term))


# ---------------------------------------------------------------- attention by hand in a graph:
# finding it, and writing fused attention in its place

QUESTIONS = ("size", "dim", "dtype", "device", "shape")
"""What may be asked about scores without needing their numbers."""
ODD_SETTINGS = ("alpha", "rounding_mode")
"""Settings of sums and quotients that are rarely used."""
PURE = ("eq", "ne", "not", "bool", "cast", "getitem", "transpose", "unsqueeze", "full")
"""Operations that are erased if their result is no longer used."""
ELSEWHERE = "its attention weights are used elsewhere, too"
RETURNED = "its attention weights are returned"


@dataclass
class Chain:
    """From the product of queries and keys to the sum of values, and what happens in between."""

    query: Layout
    key: Layout
    value: Layout
    order: tuple[int, ...]
    """That of the axes in the result."""
    nodes: list[fx.Node]
    """All of them, the last first."""
    factors: list[tuple[str, Any]] = field(default_factory=list)
    add: list[fx.Node] = field(default_factory=list)
    keep: list[fx.Node] = field(default_factory=list)
    drop: list[fx.Node] = field(default_factory=list)
    causal: Triangle | None = None
    spreads: bool = False
    fills: set[tuple[float, int]] = field(default_factory=set)
    """What masked scores become, and how many factors came before."""

    @property
    def is_causal(self) -> bool:
        """Whether it is causal, and nothing else is masked."""
        return self.causal is not None and not (self.add or self.keep or self.drop)

    @property
    def silenced(self) -> tuple[str, ...]:
        """Return the modules that are called no more."""
        return tuple(str(node.target) for node in self.nodes if node.op == "call_module")


class _Change(NamedTuple):
    """One operation on scores: "mul", "div", "add", "keep" or "drop"."""

    word: str
    value: Any
    fill: float = 0.0


def find_chains(graph: fx.Graph, module: nn.Module) -> tuple[list[Chain], list[NotFused]]:
    """Return the attention in a graph that can be fused, and why others cannot."""
    chains: list[Chain] = []
    reasons: list[NotFused] = []
    for node in graph.nodes:
        if operation(node, module) != "softmax":
            continue
        try:
            chains.append(_chain(node, module))
        except NotFused as error:
            reasons.append(error)
    return chains, reasons


def fuse_chains(graph: fx.Graph, module: nn.Module) -> tuple[list[Chain], list[NotFused]]:
    """Write fused attention instead of all chains; give them, and why others stay."""
    done: list[Chain] = []
    while True:
        # one by one: the result of a chain may be a query of the next
        chains, reasons = find_chains(graph, module)
        if not chains:
            return done, reasons
        _rewrite(graph, chains[0], module)
        done.append(chains[0])


def _chain(softmax: fx.Node, module: nn.Module) -> Chain:
    _check_axis(softmax, module)
    after = list(_after(softmax, module))
    value, order = values_of(after[-1], after[-2], module)
    changes, before = _before(operand(softmax, 0), softmax, module)
    query, key = queries_and_keys(before[-1], module)
    chain = Chain(query, key, value, order, [*reversed(after), *before])
    for change in reversed(changes):
        _take_in(chain, change, module)
    return chain


def _check_axis(softmax: fx.Node, module: nn.Module) -> None:
    if softmax.op == "call_module":
        axis: Any = module.get_submodule(str(softmax.target)).dim
    else:
        axis = operand(softmax, 1, "dim")
    shape = shape_of(softmax)
    if axis != -1 and (shape is None or axis != len(shape) - 1):
        raise NotFused("its softmax is not over the last axis")


# ---------------------------------------------------------------- from softmax to the values


def _after(softmax: fx.Node, module: nn.Module) -> Iterator[fx.Node]:
    """Yield the softmax and what its weights go through, up to the product with values."""
    node = softmax
    while True:
        yield node
        users = [user for user in node.users if not _is_question(user)]
        if any(user.op == "output" for user in users):
            raise ReachesOut(RETURNED)
        if len(users) != 1:
            raise NotFused(ELSEWHERE if users else "its attention weights are not used")
        (user,) = users
        name = operation(user, module)
        if name in PRODUCTS:
            yield user
            return
        if name == "dropout":
            _check_dropout(user, module)
        elif name != "cast":
            raise NotFused(f"between its softmax and the values stands {_what(user, module)}")
        node = user


def _check_dropout(node: fx.Node, module: nn.Module) -> None:
    if node.op == "call_module":
        dropout: Any = module.get_submodule(str(node.target))
        is_active, share = dropout.training, dropout.p
    else:
        share = operand(node, 1, "p", default=0.5)
        is_active = operand(node, 2, "training", "train", default=True)
    if is_active is not False and share != 0:
        raise NotFused("its dropout is active; call eval() on the model first")


# ---------------------------------------------------------------- from softmax to the product


def _before(node: Any, user: fx.Node, module: nn.Module) -> tuple[list[_Change], list[fx.Node]]:
    """Return what scores go through before softmax, the last first, and the nodes that do it."""
    name = operation(node, module)
    if not name:
        if isinstance(node, fx.Node) and node.op == "placeholder":
            raise ReachesOut("its scores come from outside of it")
        raise NotFused(f"its scores are of {_what(node, module)}, no product of queries and keys")
    if any(other is not user and not _is_question(other) for other in node.users):
        raise NotFused("its scores are used elsewhere, too")
    if name in PRODUCTS:
        return [], [node]
    for inner, change in _readings(node, name, module):
        try:
            changes, nodes = _before(inner, node, module)
        except NotFused as error:
            reason = error
        else:
            return [*change, *changes], [node, *nodes]
    raise reason


def _readings(node: fx.Node, name: str, module: nn.Module) -> Iterator[tuple[Any, list[_Change]]]:
    """Yield in which ways a node may be a change of scores: the scores, and the change."""
    one, other = operand(node, 0), operand(node, 1, "other")
    odd = [setting for setting in ODD_SETTINGS if setting in node.kwargs]
    if odd:
        raise NotFused(f"between the product and its softmax stands {name} with {odd[0]}=...")
    if name == "cast":
        yield one, []
    elif name in ("mul", "add"):
        yield one, [_Change(name, other)]
        yield other, [_Change(name, one)]
    elif name == "div":
        yield one, [_Change(name, other)]
    elif name == "masked_fill":
        fill = _fill(operand(node, 2, "value"), module)
        yield one, [_Change("drop", operand(node, 1, "mask"), fill)]
    elif name == "where":
        # as a method, x.where(condition, other)
        places = (1, 0, 2) if node.op == "call_method" else (0, 1, 2)
        names = ("condition", "input", "other")
        condition, first, second = map(operand, [node] * 3, places, names)
        if number_of(second, module) is not None:
            yield first, [_Change("keep", condition, _fill(second, module))]
        yield second, [_Change("drop", condition, _fill(first, module))]
    else:
        raise NotFused(f"between the product and its softmax stands {_what(node, module)}")


def _fill(value: Any, module: nn.Module) -> float:
    number = number_of(value, module)
    if number is None or number > HIDDEN:
        seen = "a tensor" if number is None else f"{number:g}"
        raise NotFused(f"what is masked becomes {seen}, which may still weigh something")
    return number


def _take_in(chain: Chain, change: _Change, module: nn.Module) -> None:
    """Add the next operation on scores to the chain, in the order of computing."""
    if change.word in ("mul", "div"):
        _check_factor(chain, change.value)
        chain.factors.append((change.word, change.value))
    elif change.word == "add":
        if shape_of(change.value) is None:
            return  # a number moves all scores alike: the weights stay
        found = causal_addend(change.value, module)
        if found is not None and chain.causal is None:
            chain.causal = found
        else:
            chain.add.append(change.value)
    else:
        is_finite = change.fill != -float("inf")
        chain.fills.add((change.fill, len(chain.factors) if is_finite else 0))
        if len(chain.fills) > 1:  # a query without keys would look at some of them
            raise NotFused("its masks give scores different numbers")
        chain.spreads |= is_finite
        found = causal_mask(change.value, module, is_kept=change.word == "keep")
        if found is not None and chain.causal is None:
            chain.causal = found
        else:
            (chain.keep if change.word == "keep" else chain.drop).append(change.value)


def _check_factor(chain: Chain, factor: Any) -> None:
    shape = shape_of(factor)
    if (shape or (1,))[-1] != 1:
        raise NotFused("its scores are multiplied by a tensor that differs from key to key")
    if chain.add:
        raise NotFused("its scores are scaled after something was added to them")
    is_masked = chain.causal is not None or chain.fills
    # what was low may become high
    if is_masked and (shape is not None or (isinstance(factor, (int, float)) and factor <= 0)):
        raise NotFused("its masked scores are multiplied by something that may be negative")


def _is_question(user: fx.Node) -> bool:
    """Return whether a node asks what a tensor is like, and not for its numbers."""
    if user.op == "call_method":
        return user.target in QUESTIONS
    return user.op == "call_function" and user.target is getattr and user.args[1] in QUESTIONS


def _what(node: Any, module: nn.Module) -> str:
    """Name an operation for a reader."""
    if not isinstance(node, fx.Node):
        return f"the value {node!r}"
    if node.op == "call_module":
        inner = module.get_submodule(str(node.target))
        return f"the module {node.target!r} ({type(inner).__name__})"
    if node.op == "get_attr":
        return f"its attribute {node.target!r}"
    return str(getattr(node.target, "__name__", node.target))


# ---------------------------------------------------------------- writing


def _rewrite(graph: fx.Graph, chain: Chain, module: nn.Module) -> None:
    last = chain.nodes[0]
    with graph.inserting_before(last):
        parts = tuple(each.emit(graph) for each in (chain.query, chain.key, chain.value))
        node = graph.call_function(attend, parts, _settings(chain))
        node = permuted(graph, node, chain.order)
    node.meta |= last.meta
    last.replace_all_uses_with(node)
    for each in chain.nodes:
        for user in [user for user in each.users if _is_question(user)]:
            with graph.inserting_before(user):
                parts = (chain.query.emit(graph), chain.key.emit(graph))
                user.replace_input_with(each, graph.call_function(like_scores, parts))
    for each in chain.nodes:
        _erase(graph, each, module)


def _settings(chain: Chain) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "scale": tuple(value for word, value in chain.factors if word == "mul"),
        "divide": tuple(value for word, value in chain.factors if word == "div"),
        "add": tuple(chain.add),
        "keep": tuple(chain.keep),
        "drop": tuple(chain.drop),
        "spread": chain.spreads,
    }
    if chain.causal is not None:
        settings |= {"causal": chain.causal.node, "kind": chain.causal.kind}
        settings["held"] = chain.causal.held
    return {name: value for name, value in settings.items() if value}


def _erase(graph: fx.Graph, node: fx.Node, module: nn.Module) -> None:
    """Erase a node that is no longer used, and what was computed for it alone."""
    if node.users or node not in graph.nodes:
        return
    inputs = list(node.all_input_nodes)
    graph.erase_node(node)
    for each in inputs:
        if operation(each, module) in PURE or each.op == "get_attr":
            _erase(graph, each, module)
