"""Rewriting the graph of a decoding step: products that read matrices once, in few launches.

The graph is what `torch.compile` makes of a model's own code, so nothing depends on names. Linear
layers of one input become one product; where one of two goes through an activation and both are
multiplied, that is done in the same kernel. So is the norm before a product, and the sum after it.
What is left goes to inductor. Kernels read weights before the kernel before them has ended, so the
graph must neither compute nor write them."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import tinytorch.transforms.static_generation.operators  # noqa: F401 - registers them

# ---------------------------------------------------------------- finding a norm of rows in the
# graph of a model: it can be computed where its result is read

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
    """Return x, eps and the first step of `x * rsqrt(mean(x ** 2) + eps)` in 32 bits, cast back."""
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
    """Return what a node is the mean of, over the last axis, which stays."""
    operands = _operands(node, "mean")
    if not operands:
        return None
    axis = operands[1] if len(operands) > 1 else node.kwargs.get("dim")
    keeps = operands[2] if len(operands) > 2 else node.kwargs.get("keepdim", False)
    return operands[0] if axis in (-1, [-1], (-1,)) and keeps is True else None


def _uncast(node: Any) -> Any:
    """Return what was cast to another dtype, or the node itself."""
    cast = _operands(node, "to")
    if len(cast) == 2 and isinstance(cast[1], torch.dtype):
        return cast[0]
    return next(iter(_operands(node, "float")), node)


def _operands(node: Any, name: str) -> list[Any]:
    """Return what a function or method of this name is called with; nothing for other nodes."""
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
    """Return whether a node is an input or a constant of a graph: it is not computed in it."""
    return isinstance(node, fx.Node) and node.op in ("placeholder", "get_attr")


def without_slices(node: Any) -> Any:
    """Return what a node takes all of, as in `x[:, 0:]`, if nothing else reads that; else the node.

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
    """Return the tensor that stands for a node and has its shape and dtype, or None."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


# ---------------------------------------------------------------- rewriting the graph of a
# decoding step: products that read matrices once, in few launches

MOST_ROWS = 4
"""With more rows per step the matrix units of a device win: the products stay as they are."""
MOST_MATRICES = 3
LINEAR = {F.linear, torch._C._nn.linear}
GATED = torch.ops.tinytorch.gated_product.default
JOINT = torch.ops.tinytorch.joint_product.default
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Normed = tuple[Any, ...]
"""The rows that a norm is made of, its weight and its small number; empty without a norm."""
WRITING_OPERATORS = {
    operator.setitem, operator.delitem, operator.iadd, operator.isub, operator.imul,
    operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow, operator.iand,
    operator.ior, operator.ixor, operator.ilshift, operator.irshift, operator.imatmul,
}  # fmt: skip


def rewrite_products(graph_module: fx.GraphModule) -> int:
    """Rewrite the products of a few rows in place; give how many launches there are instead."""
    graph = graph_module.graph
    writes = Writes(graph)
    launches = 0
    for nodes in _of_one_input(graph, writes):
        normed = _norm_before(nodes, writes)
        for gate, act, up, product in list(_gated(nodes)):
            if writes.leave_alone([*gate.args, *up.args], gate, up, product):
                _replace_gated(graph, gate, act, up, product, normed)
                nodes.remove(gate)
                nodes.remove(up)
                launches += 1
        for alike in _alike(nodes):
            launches += _replace_joint(graph, alike, writes, normed)
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is torch.addmm and _is_small_addmm(node):
            if not writes.never_touch(node.args[0], node.args[2]):
                continue
            _replace_addmm(graph, node)
            launches += 1
    graph.lint()
    graph_module.recompile()
    return launches


# ---------------------------------------------------------------- what can be rewritten


def _of_one_input(graph: fx.Graph, writes: Writes) -> list[list[fx.Node]]:
    """Return the linear layers of few rows, those with the same input together."""
    groups: dict[Any, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in LINEAR or not _is_small(node):
            continue
        if writes.never_touch(node.args[1], _bias(node)):
            groups[node.args[0]].append(node)
    return list(groups.values())


def _size(node: fx.Node) -> tuple[int, ...]:
    value = value_of(node)
    return () if value is None else tuple(value.shape)


def _bias(node: fx.Node) -> Any:
    return node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")


def _is_small(node: fx.Node) -> bool:
    """Return whether a linear layer has few rows and plain, dense operands of one dtype."""
    if len(node.args) < 2 or set(node.kwargs) - {"bias"}:
        return False
    x, weight, bias = value_of(node.args[0]), value_of(node.args[1]), _bias(node)
    operands = [x, weight, *([] if bias is None else [value_of(bias)])]
    return _are_plain(operands, value_of(node)) and 1 <= _rows(x) <= MOST_ROWS


def _is_small_addmm(node: fx.Node) -> bool:
    """Return whether `bias + x @ weight` is a layer of few rows."""
    if node.kwargs or len(node.args) != 3:
        return False
    bias, x, weight = (value_of(each) for each in node.args)
    return _are_plain([x, weight, bias], value_of(node)) and 1 <= _rows(x) <= MOST_ROWS


def _are_plain(operands: list[torch.Tensor | None], result: torch.Tensor | None) -> bool:
    """Return whether our kernels take input, matrix and bias, if any, and give `result`."""
    if result is None or any(each is None for each in operands):
        return False
    known = [each for each in operands if each is not None]
    dtypes = {each.dtype for each in (*known, result)}  # under autocast the result has another
    # The first operand may lie in memory as it likes: it is small, and is copied together.
    return (
        len(dtypes) == 1
        and dtypes <= set(DTYPES)
        and known[1].dim() == 2
        and all(each.shape == result.shape[-1:] for each in known[2:])
        and all(each.is_contiguous() for each in known[1:])
        and not any(is_traceable_wrapper_subclass(each) for each in known)
    )


def _rows(x: torch.Tensor | None) -> int:
    return MOST_ROWS + 1 if x is None else x.numel() // max(1, x.shape[-1])


def _norm_before(nodes: list[fx.Node], writes: Writes) -> Normed:
    """Return rows, weight and small number of the norm that makes the input of products, if any.

    Nothing else may read its result, or it would have to be computed all the same.
    """
    x: Any = nodes[0].args[0]
    norm = find_norm(without_slices(x))
    if norm is None or set(x.users) != set(nodes) or not writes.never_touch(norm.weight):
        return ()
    if not writes.leave_alone([norm.x], norm.begin, *nodes):
        return ()
    return norm.x, norm.weight, norm.eps


def _sum_after(
    nodes: list[fx.Node], operands: list[Any], writes: Writes
) -> tuple[fx.Node | None, Any]:
    """Return the sum that is all that a layer's result is for, and what it is added to."""
    product = nodes[0]
    total = next(iter(product.users), None)
    if len(nodes) > 1 or len(product.users) != 1 or total is None:
        return None, None
    is_sum = total.op == "call_function" and total.target in (operator.add, torch.add)
    if not is_sum or len(total.args) != 2 or total.kwargs:
        return None, None
    added = total.args[1] if total.args[0] is product else total.args[0]
    known, rows = value_of(added), value_of(product)
    if known is None or rows is None or added is product:
        return None, None
    is_alike = (known.shape, known.dtype) == (rows.shape, rows.dtype)
    return (
        (total, added)
        if is_alike and writes.leave_alone(operands, product, total)
        else (None, None)
    )


def _alike(nodes: list[fx.Node]) -> Iterator[list[fx.Node]]:
    """Yield layers that one launch can compute: all with a bias, or none."""
    for has_bias in (False, True):
        chosen = [each for each in nodes if (_bias(each) is not None) is has_bias]
        for start in range(0, len(chosen), MOST_MATRICES):
            yield chosen[start : start + MOST_MATRICES]


def _gated(nodes: list[fx.Node]) -> Iterator[tuple[fx.Node, fx.Node, fx.Node, fx.Node]]:
    """Yield gate, activation, other and product of `activation(gate) * other`."""
    plain = [each for each in nodes if _bias(each) is None and len(each.users) == 1]
    for gate in plain:
        act = next(iter(gate.users))
        if not _activation(act) or len(act.users) != 1:
            continue
        product = next(iter(act.users))
        if not _is_product(product) or product.kwargs:
            continue
        for other in plain:
            if other is not gate and other in product.args and _size(other) == _size(gate):
                yield gate, act, other, product


def _is_product(node: fx.Node) -> bool:
    names = (operator.mul, torch.mul)
    return (node.op == "call_function" and node.target in names) or (
        node.op == "call_method" and node.target == "mul"
    )


def _activation(node: fx.Node) -> str:
    """Name the activation that a node is, or nothing."""
    if node.op != "call_function":
        return ""
    if node.target in (F.silu, torch._C._nn.silu):
        return "silu"
    if node.target in (F.relu, torch.relu):
        return "relu"
    if node.target in (F.gelu, torch._C._nn.gelu):
        kind = node.kwargs.get("approximate", "none")
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(kind), "")
    return ""


# ---------------------------------------------------------------- what is written in place


class Writes:
    """The operations of a graph that change memory, and which: products must not move past them."""

    def __init__(self, graph: fx.Graph) -> None:
        self._order = {node: place for place, node in enumerate(graph.nodes)}
        targets = [(place, _written(node)) for node, place in self._order.items()]
        self._writes = [(place, changed) for place, changed in targets if changed is not None]

    def never_touch(self, *weights: Any) -> bool:
        """Return whether weights, or None, are given to the graph and changed nowhere in it."""
        needed = [each for each in weights if each is not None]
        if not all(map(is_given, needed)):
            return False
        return self._are_apart(needed, [changed for _, changed in self._writes])

    def leave_alone(self, operands: list[Any], *nodes: fx.Node) -> bool:
        """Return whether nothing changes an operand from the first of these nodes to the last."""
        places = [self._order[each] for each in nodes]
        between = [changed for place, changed in self._writes if min(places) < place < max(places)]
        return self._are_apart(operands, between)

    @staticmethod
    def _are_apart(operands: list[Any], writes: list[list[Any]]) -> bool:
        if not writes:
            return True
        read = {_memory(each) for each in operands if isinstance(each, fx.Node)}
        written = {_memory(each) for changed in writes for each in changed}
        return None not in read | written and not read & written


def _written(node: fx.Node) -> list[Any] | None:
    """Return what an operation changes; None for nothing, something unknown where it is unknown."""
    if node.op in ("placeholder", "get_attr", "output"):
        return None
    if node.op == "call_module":
        return [None]
    if "out" in node.kwargs:
        return [node.kwargs["out"]]
    if isinstance(node.target, torch._ops.OpOverload):
        return [*node.args, *node.kwargs.values()] if node.target._schema.is_mutable else None
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return [None]
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    is_written = (
        (name.endswith("_") and not name.endswith("__"))
        or node.target in WRITING_OPERATORS
        or node.kwargs.get("inplace") is True
        or any(each is True for each in node.args[1:2])  # F.relu(x, True)
    )
    return list(node.args[:1]) if is_written else None


def _memory(node: Any) -> int | None:
    """Return what identifies the memory of a tensor, None where that is unknown."""
    value = value_of(node)
    return None if value is None else value.untyped_storage()._cdata


# ---------------------------------------------------------------- rewriting


def _replace_gated(
    graph: fx.Graph,
    gate: fx.Node,
    act: fx.Node,
    up: fx.Node,
    product: fx.Node,
    normed: Normed,
) -> None:
    with graph.inserting_before(product):
        rows, *norm = normed or (gate.args[0],)
        weights = (gate.args[1], up.args[1])
        new = graph.call_function(GATED, (rows, *weights, _activation(act), *norm))
    new.meta = dict(product.meta)
    product.replace_all_uses_with(new)
    for old in (product, act, up, gate):
        graph.erase_node(old)


def _replace_joint(graph: fx.Graph, nodes: list[fx.Node], writes: Writes, normed: Normed) -> int:
    """Compute at the first of the layers what all of them need; the others take their part.

    Gives the number of launches: none where an operand of a later layer is not there yet.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    nodes = sorted(nodes, key=order.__getitem__)
    x, weights = nodes[0].args[0], [each.args[1] for each in nodes]
    biases = [_bias(each) for each in nodes if _bias(each) is not None]
    operands = [x, *weights, *biases]
    is_late = any(order[each] > order[nodes[0]] for each in operands)
    if is_late or not writes.leave_alone(operands, *nodes):
        alone = [[each] for each in nodes if len(nodes) > 1]
        return sum(_replace_joint(graph, each, writes, normed) for each in alone)
    rows, *norm = normed or (x, None, 0.0)
    total, added = _sum_after(nodes, operands, writes)
    with graph.inserting_before(nodes[0] if total is None else total):
        new = graph.call_function(JOINT, (rows, weights, biases, False, *norm, added))
        parts = [new] if len(nodes) == 1 else _parts(graph, new, nodes)
    if total is not None:
        nodes, parts = [total, *nodes], [new, new]
    for old, part in zip(nodes, parts, strict=True):
        part.meta = dict(old.meta) if not part.meta else part.meta
        old.replace_all_uses_with(part)
        graph.erase_node(old)
    return 1


def _parts(graph: fx.Graph, joint: fx.Node, nodes: list[fx.Node]) -> list[fx.Node]:
    sizes = [_size(each)[-1] for each in nodes]
    split = graph.call_function(torch.split, (joint, sizes, -1))
    parts = [graph.call_function(operator.getitem, (split, place)) for place in range(len(nodes))]
    if _rows(value_of(nodes[0].args[0])) == 1:
        return parts
    # With more rows a part has gaps; what follows may view it in a way that allows none.
    return [graph.call_method("contiguous", (each,)) for each in parts]


def _replace_addmm(graph: fx.Graph, node: fx.Node) -> None:
    bias, x, weight = node.args
    with graph.inserting_before(node):
        new = graph.call_function(JOINT, (x, [weight], [bias], True))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def decode_backend(device: str) -> Callable[..., Any]:
    """Return a backend for `torch.compile`: the rewriting where we have kernels, then inductor."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    options: dict[str, Any] = {}
    if device == "cuda":
        options = {"combo_kernels": True, "triton.enable_pdl": True}
        known = config.get_config_copy()
        options = {name: value for name, value in options.items() if name in known}

    def backend(graph_module: fx.GraphModule, inputs: list[Any]) -> Any:
        if device == "cuda":
            rewrite_products(graph_module)
        return compile_fx(graph_module, inputs, config_patches=options)

    return backend
